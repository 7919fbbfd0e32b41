package verify

import (
	"errors"
	"testing"

	"github.com/kvloom/kvloom/gen/plan"
	"github.com/kvloom/kvloom/gen/render"
	"github.com/kvloom/kvloom/runtime/nvrtc/nvrtctest"
	"github.com/kvloom/kvloom/runtime/sim"
)

// kiviShapes differ in every compile-time constant of the kernels of KIVI caches.
var kiviShapes = []struct {
	name, reason     string
	dim, page, group int
	dtype, rule      string
	softcap          float64
	all              bool // cases
}{
	{"llama", "the speed bar's shape", 128, 16, 4, "kivi4", "share_average", 0, true},
	{"two bits", "two groups a word", 128, 16, 4, "kivi2", "share_average", 0, true},
	{"d64 g5 p32", "two tiles a page, a vector of two words", 64, 32, 5, "kivi4", "share_average", 0, false},
	{"d80 g1 p4", "a quarter of a tile, a group of 16 channels", 80, 4, 1, "kivi4", "share_average", 0, false},
	{"d80 g2 p16 two bits", "a word of one and a half groups", 80, 16, 2, "kivi2", "share_average", 0, false},
	{"d96 g7 p8 capped", "half a tile, a softcap", 96, 8, 7, "kivi4", "share_average", 30, false},
	{"d112 g12 two bits", "two n tiles, the second half empty", 112, 16, 12, "kivi2", "share_average", 0, false},
	{"d192 g16", "head tiles of one n tile", 192, 16, 16, "kivi4", "share_average", 0, false},
	{"d256 g3 p128", "the widest head, the longest page", 256, 128, 3, "kivi4", "share_average", 0, false},
	{"d256 g3 p64 two bits", "eight groups in four words", 256, 64, 3, "kivi2", "share_average", 0, false},
	{"per_head", "a list a query head", 64, 16, 6, "kivi4", "per_head", 0, false},
}

// TestKiviAttendOnSimulator runs the defaults of both forms of page_attend over quantised caches, dense and over page lists.
func TestKiviAttendOnSimulator(t *testing.T) {
	t.Parallel()
	corners := []string{"no pages", "mixed lengths", "holes", "head lengths", "wide logits", "around the splits", "fewer live requests"}
	for _, tc := range kiviShapes {
		t.Run(tc.name, func(t *testing.T) {
			s := attendSpec(tc.dim, tc.page, tc.group, tc.dtype, tc.rule, tc.softcap)
			cases := corners
			if tc.all {
				cases = nil
			}
			onSimulator(t, s, tc.reason, onePerForm(t, plan.PageAttend, s), cases)
		})
	}
}

// TestKVQuantizeOnSimulator quantises pages of every shape, once with the keys written back.
func TestKVQuantizeOnSimulator(t *testing.T) {
	t.Parallel()
	corners := []string{"no pages", "mixed lengths", "holes", "extreme keys", "degenerate pages", "pages filled while decoding", notFinite}
	for i, tc := range kiviShapes {
		t.Run(tc.name, func(t *testing.T) {
			s := attendSpec(tc.dim, tc.page, tc.group, tc.dtype, tc.rule, tc.softcap)
			s.Locks.Summaries = []string{"post", "pre"}[i%2]
			cases := corners
			if tc.all {
				cases = nil
			}
			onSimulator(t, s, tc.reason, onePerForm(t, plan.KVQuantize, s), cases)
		})
	}
}

// TestKiviSummariesOnSimulator builds and scores summaries beside quantised pages: keys lie in the row table's blocks, records in the others.
func TestKiviSummariesOnSimulator(t *testing.T) {
	for _, tc := range []struct {
		name, reason          string
		dim, page, rank, bits int
	}{
		{"d128", "the direct build, integer scores", 128, 16, 4, 4},
		{"d64 p8", "eight pages a warp", 64, 8, 2, 2},
		{"d80 p32", "a block a page", 80, 32, 3, 8},
	} {
		t.Run(tc.name, func(t *testing.T) {
			s := scoreSpec(tc.dim, tc.page, tc.rank, tc.bits, 4, "kivi4", 0)
			s.Locks.BudgetTokens, s.Locks.Combine = 2048, "share_average"
			for _, f := range []plan.Family{plan.PageSummary, plan.PageScore} {
				onSimulator(t, s, tc.reason, onePerForm(t, f, s), []string{"mixed lengths", "holes", "pages filled while decoding", "replayed at other lengths"})
			}
		})
	}
}

// TestKiviResources compiles the default of each form for every shape: they keep everything in registers.
func TestKiviResources(t *testing.T) {
	for _, tc := range kiviShapes {
		s := attendSpec(tc.dim, tc.page, tc.group, tc.dtype, tc.rule, tc.softcap)
		for _, f := range []plan.Family{plan.PageAttend, plan.KVQuantize} {
			for _, c := range onePerForm(t, f, s) {
				src, err := render.Candidate(c)
				if err != nil {
					t.Fatal(err)
				}
				r := nvrtctest.Compile(t, src).Resources
				t.Logf("%s (%s): %s", c.ID(), tc.name, r)
				if r.SpillStores+r.SpillLoads+r.StackBytes > 0 {
					t.Errorf("%s (%s, %s): %s", c.ID(), tc.name, tc.reason, r)
				}
			}
		}
	}
}

// TestKiviChainOnSimulator quantises and summarises pages as they become complete, then scores, selects and attends, in one graph.
func TestKiviChainOnSimulator(t *testing.T) {
	for _, tc := range []struct{ name, dtype, summaries string }{
		{"summaries of the keys in bf16", "kivi4", "post"}, {"summaries of the quantised keys", "kivi2", "pre"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			dev, err := sim.New(sim.Config{})
			if err != nil {
				t.Fatal(err)
			}
			l := NewLoader(t.Context(), dev, nvrtctest.Compiler(t))
			e := NewEnv(dev, l.Compile)
			s := scoreSpec(128, 16, 4, 4, 4, tc.dtype, 0)
			s.Locks.BudgetTokens, s.Locks.Combine, s.Locks.Summaries = 2048, "share_average", tc.summaries
			links, ok := ChainCandidates(plan.New(s, plan.Targets["sm_90a"]), "")
			if !ok {
				t.Fatal("no chain")
			}
			for _, name := range []string{"mixed lengths", "replayed at other lengths", "fewer live requests"} {
				for _, r := range CheckChain(t.Context(), e, s, tc.name, links, Options{Only: name, Seed: 1, Workloads: "small"}) {
					if !r.OK() {
						t.Errorf("%s, %s: %s", r.Case, r.Metric, r.Failure)
					}
				}
			}
			if err := errors.Join(e.Close(), l.Unload()); err != nil {
				t.Error(err)
			}
		})
	}
}
