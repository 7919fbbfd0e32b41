package verify

import (
	"math/rand/v2"
	"testing"

	"github.com/kvloom/kvloom/gen/plan"
	"github.com/kvloom/kvloom/runtime/nvrtc/nvrtctest"
	"github.com/kvloom/kvloom/runtime/sim"
	"github.com/kvloom/kvloom/specs"
)

// clusterCases reach what the contract's cases leave out: rows that fill every page of a thread, rows beyond them, and cuts inside a
// bin whose pages lie in several blocks.
var clusterCases = []ScoreCase{
	{Name: "longest row that fits, and one page more", KVHeads: 1, Pages: []int{8192}, Replays: [][]int{{8193}, {8191}, {130}}, Slots: 128, Fill: normalScores},
	{Name: "every page of a thread", KVHeads: 1, Pages: []int{14000}, Replays: [][]int{{12289}, {4097}}, Slots: 128, Fill: normalScores},
	{Name: "rows that end inside four pages", KVHeads: 2, Pages: []int{8189}, Replays: [][]int{{8186}, {4099}}, Slots: 128, Fill: normalScores},
	{Name: "rows that are not aligned", KVHeads: 2, Pages: []int{8191}, Padded: true, Replays: [][]int{{8190}}, Slots: 128, Fill: normalScores},
	{Name: "few values, many ties across blocks", KVHeads: 1, Pages: []int{8100}, Slots: 100, Fill: each(fewValues)},
	{Name: "near ties across blocks", KVHeads: 1, Pages: []int{8000}, Slots: 128, Fill: each(nearTies)},
	{Name: "all nearly equal", KVHeads: 1, Pages: []int{8000}, Replays: [][]int{{3000}}, Slots: 128, Fill: each(nearlyEqual)},
	{Name: "all nearly equal, in one bin", KVHeads: 1, Pages: []int{6000}, Slots: 128, Fill: each(oneBin)},
	{Name: "a row beyond what threads keep, nearly equal", KVHeads: 1, Pages: []int{30000}, Replays: [][]int{{9000}, {20001}}, Slots: 128, Fill: each(nearlyEqual)},
	{Name: "the reference far below the peak", KVHeads: 1, Pages: []int{3000}, Slots: 64, Fill: each(lowReference)},
	{Name: "one NaN", KVHeads: 1, Pages: []int{3000}, Slots: 64, Fill: each(oneNaN)},
	{Name: "slots for forced pages alone", KVHeads: 1, Pages: []int{3000}, Slots: 2, Fill: normalScores},
}

// fewValues has 40 pages well above the rest and then ties in every block, fewer than the cluster exchanges.
func fewValues(_ *rand.Rand, _, page, _ int) float32 {
	switch {
	case page%200 == 7:
		return 5
	case page%20 == 3:
		return 2
	}
	return -8
}

// nearTies puts 400 pages within a thousandth of each other, in every block.
func nearTies(r *rand.Rand, _, page, _ int) float32 {
	if page%20 == 11 {
		return 4 + float32(r.Float64()*1e-3)
	}
	return float32(r.NormFloat64()) - 4
}

// nearlyEqual is what pages of random keys score.
func nearlyEqual(r *rand.Rand, _, _, _ int) float32 { return 3 + float32(0.1*r.NormFloat64()) }

// oneBin spreads less than a bin is wide, an eighth of an octave.
func oneBin(r *rand.Rand, _, _, _ int) float32 { return 3 + float32(0.01*r.NormFloat64()) }

func lowReference(r *rand.Rand, _, page, _ int) float32 {
	if page < 2 {
		return -90
	}
	return float32(r.NormFloat64())
}

func oneNaN(r *rand.Rand, _, page, _ int) float32 {
	if page == 1234 {
		return nan32
	}
	return float32(r.NormFloat64())
}

// clusterCasesOnSimulator runs clusterCases of a page_select in a random order of its warps.
func clusterCasesOnSimulator(t *testing.T, s *specs.Spec, candidate plan.Candidate, reason string, sanitize bool) {
	t.Helper()
	dev, err := sim.New(sim.Config{Sanitize: sanitize, Schedule: "random:5"})
	if err != nil {
		t.Fatal(err)
	}
	l := NewLoader(t.Context(), dev, nvrtctest.Compiler(t))
	e := NewEnv(dev, l.Compile)
	k, err := e.Kernel(candidate)
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range clusterCases {
		if r := selectCase(e, s, k, c, 3); !r.OK() {
			t.Errorf("%s (%s), %s: %s", candidate.ID(), reason, c.Name, r.Failure)
		}
	}
	if err := e.Close(); err != nil {
		t.Error(err)
	}
	if err := l.Unload(); err != nil {
		t.Error(err)
	}
}

// TestPageSelectClusterOnSimulator runs page_select_cluster: contract cases, and clusterCases with shapes that keep all pages in
// registers, or some in shared memory; once under the sanitizer.
func TestPageSelectClusterOnSimulator(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		group, threads, cluster, pages int
		reason                         string
	}{
		{4, 512, 8, 2, "the bar's shape"},
		{1, 256, 8, 4, "one head: a lane a rank"},
		{7, 512, 8, 4, "a group that is no power of two"},
		{16, 512, 8, 4, "a page of each thread in shared memory"},
		{4, 512, 2, 8, "two blocks a list"},
		{4, 1024, 2, 4, "two blocks of all threads"},
		{16, 512, 16, 8, "five pages of each thread in shared memory, sixteen blocks"},
	} {
		s := selectSpec(tc.group, 1, 16, "share_average")
		candidates := chosenBy(plan.PageSelect, s, func(c plan.Candidate) bool {
			return len(c.Params) == 3 && c.Param("threads") == tc.threads && c.Param("cluster") == tc.cluster && c.Param("pages") == tc.pages
		})
		if len(candidates) != 1 {
			t.Fatalf("group %d (%s): %d candidates, want 1", tc.group, tc.reason, len(candidates))
		}
		onSimulator(t, s, tc.reason, candidates, []string{"random", "mixed rows", "replayed at other lengths", "one head all NaN", "sink is best"})
		clusterCasesOnSimulator(t, s, candidates[0], tc.reason, tc.group == 7)
	}
}
