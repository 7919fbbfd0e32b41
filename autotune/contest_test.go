package autotune

import (
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/kvloom/kvloom/autotune/store"
	"github.com/kvloom/kvloom/gen/plan"
)

// A GPU that gets 4 % slower with every window: measured one after the other the default, which came first, looks faster than one that takes
// a tenth less; measured in turn it does not. Stopped in the middle, the contest goes on where it was.
func TestContestSeesThroughDrift(t *testing.T) {
	path := filepath.Join(t.TempDir(), "trials.db")
	start := func() *Tuner {
		tuner := testTuner(t, path, "drift")
		tuner.Options.Rounds = DefaultRounds
		tuner.Options.Works = tuner.Options.Works[:1]
		tuner.Spec.Workloads = tuner.Spec.Workloads[:1]
		for i, warps := range []int{100, 98, 102, 90} {
			tuner.Plan.Families[0].Candidates[i].Params[0].Value = warps
		}
		return tuner
	}
	tuner := start()
	windows := 0
	tuner.Observe = func(e Event) {
		if e.Kind == "contest" {
			windows++
		}
	}
	out, err := tuner.Run(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	tuner.Host.Close()
	trials, err := tuner.DB.Trials(t.Context(), store.Filter{})
	if err != nil {
		t.Fatal(err)
	}
	c := Choose(trials)[0]
	if windows == 0 || out.Contests != 1 {
		t.Fatalf("%d windows, %d contests: %+v", windows, out.Contests, out)
	}
	if got := c.Best.Candidate.Param("warps"); got != 90 {
		t.Errorf("chose %d, want 90, which is the fastest but was measured last; %d tied", got, c.Tied)
	}
	leaders := leadersOf(trials, nobody)
	want := windows
	windows = 0
	again := start()
	again.Observe = tuner.Observe
	if _, err := again.Run(t.Context()); err != nil {
		t.Fatal(err)
	}
	if windows != 0 {
		t.Errorf("%d windows of a contest of %d leaders and %d windows that was over", windows, len(leaders), want)
	}
}

func nobody(store.Trial) bool { return false }

func TestContested(t *testing.T) {
	at := time.Unix(1700000000, 0)
	mk := func(warps int, us float64, isDefault bool, rounds ...[]float64) store.Trial {
		tr := store.Trial{Family: "page_score", Class: store.OK, LoUS: us, MedianUS: us, HiUS: us, Samples: []float64{us}, Default: isDefault,
			Candidate: plan.Candidate{Form: plan.Portable, Params: []plan.Param{{Name: "warps", Value: warps}}}}
		for i, samples := range rounds {
			tr.Windows = append(tr.Windows, store.Window{Contest: "c", Round: i, Samples: samples, Started: at})
		}
		return tr
	}
	rounds := func(us float64, n int) (all [][]float64) {
		for i := range n {
			all = append(all, []float64{us * (1 + 0.1*float64(i))})
		}
		return all
	}
	failing := rounds(1, 10)
	failing[4] = []float64{}
	tests := []struct {
		name, reason string
		trials       []store.Trial
		want, tied   int
	}{
		{"contest decides", "the windows measured in turn count, not the first ones", []store.Trial{mk(4, 9, false, rounds(10, 10)...), mk(2, 10, true, rounds(9, 10)...)}, 2, 1},
		{"tie below what matters", "a sure 0.3 % is a tie, and the default wins it", []store.Trial{mk(4, 9, false, rounds(10, 10)...), mk(2, 10, true, rounds(10.03, 10)...)}, 2, 2},
		{"too few rounds to be sure", "two rounds prove nothing: tied", []store.Trial{mk(4, 9, false, rounds(9, 2)...), mk(2, 10, true, rounds(10, 2)...)}, 2, 2},
		{"one round is none", "it falls back on the intervals", []store.Trial{mk(4, 9, false, rounds(10, 1)...), mk(2, 10, true, rounds(9, 1)...)}, 4, 1},
		{"failed in the contest", "a leader that fails when measured again is no choice", []store.Trial{mk(8, 1, false, failing...), mk(4, 9, false, rounds(9, 10)...), mk(2, 10, true, rounds(10, 10)...)}, 4, 1},
		{"much faster since", "one that was measured after the contest, and is surely faster than all of it, wins without", []store.Trial{mk(8, 1, false), mk(4, 9, false, rounds(9, 10)...), mk(2, 10, true, rounds(10, 10)...)}, 8, 1},
		{"others stay out", "a trial that was not in the contest does not win by a few percent of its first window", []store.Trial{mk(8, 12.9, false), mk(4, 9, false, rounds(9, 10)...), mk(2, 10, true, rounds(10, 10)...)}, 4, 1},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			c := Choose(tt.trials)[0]
			if got := c.Best.Candidate.Param("warps"); got != tt.want || c.Tied != tt.tied {
				t.Errorf("warps %d, %d tied; want %d, %d: %s", got, c.Tied, tt.want, tt.tied, tt.reason)
			}
			if c.Default.Candidate.Param("warps") != 2 {
				t.Errorf("default is %d", c.Default.Candidate.Param("warps"))
			}
		})
	}
}

// Leaders are few: the fastest three, the first five in the fixed order of those near them, and the default unless it is slower by more than any drift.
func TestLeaders(t *testing.T) {
	var trials []store.Trial
	for i := range 40 {
		us := 10 + 0.01*float64(i)
		trials = append(trials, store.Trial{Class: store.OK, MedianUS: us, LoUS: us, HiUS: us, Candidate: plan.Candidate{Params: []plan.Param{{Name: "warps", Value: 100 - i}}}})
	}
	trials = append(trials, store.Trial{Class: store.OK, MedianUS: 11, LoUS: 11, HiUS: 11, Default: true}, store.Trial{Class: store.Wrong, MedianUS: 1})
	leaders := leadersOf(trials, nobody)
	var got []float64
	for _, l := range leaders {
		got = append(got, l.MedianUS)
	}
	if d := cmp.Diff([]float64{10, 10.01, 10.02, 10.16, 10.17, 10.18, 10.19, 10.2, 11}, got, cmpopts.EquateApprox(0, 1e-9)); d != "" {
		t.Errorf("(-want +got):\n%s", d)
	}
	trials[40].MedianUS, trials[40].LoUS, trials[40].HiUS = 11.2, 11.2, 11.2
	if got := leadersOf(trials, nobody); len(got) != 8 || got[7].Default {
		t.Errorf("%d leaders, the default at 1.12 times the best among them: %v", len(got), got[len(got)-1].Default)
	}
	turned := slices.Clone(leaders)
	slices.Reverse(turned)
	if contestID("b", leaders) != contestID("b", turned) {
		t.Error("the order of leaders changes the contest")
	}
	if got := leadersOf(trials[len(trials)-1:], nobody); len(got) != 0 {
		t.Errorf("%d leaders of wrong ones", len(got))
	}
}

// C2: the fastest candidate passes the quick check and is wrong in a case that only leaders are checked in: it is condemned wherever it
// leads, the next one is chosen, and a second run does not choose it either.
func TestLeadersAreCheckedWhole(t *testing.T) {
	path := filepath.Join(t.TempDir(), "trials.db")
	for _, checkers := range []int{0, 3} {
		tuner := testTuner(t, path, "edge")
		tuner.Options.Rounds, tuner.Options.Checkers = DefaultRounds, checkers
		for _, fp := range tuner.Plan.Families {
			for i, warps := range []int{60, 2, 59, 80} {
				fp.Candidates[i].Params[0].Value = warps
			}
		}
		if _, err := tuner.Run(t.Context()); err != nil {
			t.Fatal(err)
		}
		tuner.Host.Close()
		trials, err := tuner.DB.Trials(t.Context(), store.Filter{})
		if err != nil {
			t.Fatal(err)
		}
		choices := Choose(trials)
		if len(choices) != 4 {
			t.Fatalf("%d choices", len(choices))
		}
		for _, c := range choices {
			if c.Best.Candidate.Param("warps") != 59 || c.Counts["wrong"] != 1 || len(c.Best.Windows) != DefaultRounds {
				t.Errorf("%s %d: chose %s, %v, %d rounds", c.Family, c.Context, c.Best.Candidate.ID(), c.Counts, len(c.Best.Windows))
			}
		}
	}
}
