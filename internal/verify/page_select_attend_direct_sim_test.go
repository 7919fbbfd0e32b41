package verify

import (
	"fmt"
	"testing"

	"github.com/kvloom/kvloom/gen/plan"
	"github.com/kvloom/kvloom/gen/render"
	"github.com/kvloom/kvloom/runtime/nvrtc/nvrtctest"
	"github.com/kvloom/kvloom/runtime/sim"
	"github.com/kvloom/kvloom/specs"
)

// directShapes are the shapes that the tests of page_select_attend's direct form go over.
var directShapes = []struct {
	name, reason   string
	dim, page      int
	group, kvs     int
	dtype          string
	cap            float64
	warps, cluster int
	cases          []string
}{
	{"group 4", "the bar's shape", 128, 16, 4, 8, "bf16", 0, 16, 8, nil},
	{"group 7", "a group that is no power of two, several tiles a warp", 128, 32, 7, 2, "fp16", 0, 8, 8, nil},
	{"group 16", "two n tiles of heads, sixteen blocks", 128, 16, 16, 2, "bf16", 0, 16, 16, []string{"half-full last page", "holes"}},
	{"group 12", "blocks that finish parts of two heads", 64, 16, 12, 2, "bf16", 30, 8, 16, []string{"half-full last page", "holes"}},
	{"group 1", "a head that sixteen blocks finish", 64, 64, 1, 2, "fp16", 0, 16, 16, []string{"half-full last page"}},
}

// TestDirectResources: keys, values and sums stay in registers.
func TestDirectResources(t *testing.T) {
	t.Parallel()
	for _, tc := range directShapes {
		s := immaSpec(tc.dim, tc.page, 4, 4, tc.group, tc.kvs, tc.dtype)
		s.Attention.LogitSoftcap, s.Locks.BudgetTokens = tc.cap, 2048
		s.Workloads = append(s.Workloads, specs.Workload{Context: 1 << 17, Batch: 1}) // defaults follow the longest row
		for _, c := range chosenBy(plan.PageSelectAttend, s, func(c plan.Candidate) bool { return c.Param("stages") == 0 }) {
			t.Run(fmt.Sprintf("%s %s", tc.name, c.ID()), func(t *testing.T) {
				src, err := render.Candidate(c)
				if err != nil {
					t.Fatal(err)
				}
				r := nvrtctest.Compile(t, src).Resources
				if t.Logf("%s: %s", c.ID(), r); r.Known && (r.SpillStores > 0 || r.SpillLoads > 0) {
					t.Errorf("%s: %s", c.ID(), r)
				}
			})
		}
	}
}

// TestPageSelectAttendDirectOnSimulator is TestPageSelectAttendOnSimulator of the form that keeps no keys and values in shared memory.
func TestPageSelectAttendDirectOnSimulator(t *testing.T) {
	t.Parallel()
	for _, tc := range directShapes {
		t.Run(tc.name, func(t *testing.T) {
			cases := tc.cases
			if cases == nil {
				cases = []string{"33 pages", "head lengths", "crosses 1024 tokens", "half-full last page", "holes", "replayed at other lengths"}
			}
			s := immaSpec(tc.dim, tc.page, 4, 4, tc.group, tc.kvs, tc.dtype)
			s.Attention.LogitSoftcap = tc.cap
			first := func(f plan.Family) plan.Candidate { return plan.ForFamily(f, s, plan.Targets["sm_90a"]).Candidates[0] }
			fused := chosenBy(plan.PageSelectAttend, s, func(c plan.Candidate) bool {
				return c.Param("stages") == 0 && c.Param("warps") == tc.warps && c.Param("cluster") == tc.cluster && len(c.Params) == 3
			})
			if len(fused) != 1 {
				t.Fatalf("%s: %d candidates, want 1", tc.reason, len(fused))
			}
			dev, err := sim.New(sim.Config{Sanitize: true, Schedule: "random:3"})
			if err != nil {
				t.Fatal(err)
			}
			l := NewLoader(t.Context(), dev, nvrtctest.Compiler(t))
			e := NewEnv(dev, l.Compile)
			candidates := []plan.Candidate{first(plan.PageSummary), first(plan.PageScore), fused[0]}
			n := 0
			for _, only := range cases {
				o := Options{Only: only, Seed: 1, Workloads: "small"}
				results, err := Check(t.Context(), e, s, fused[0], o)
				if err != nil {
					t.Fatal(err)
				}
				for _, r := range append(results, CheckChain(t.Context(), e, s, tc.name, candidates, o)...) {
					if n++; !r.OK() {
						t.Errorf("%s (%s), %s, %s: %s", fused[0].ID(), tc.reason, r.Case, r.Metric, r.Failure)
					}
				}
			}
			if n < 4*len(cases) {
				t.Errorf("%d results", n)
			}
			if err := e.Close(); err != nil {
				t.Error(err)
			}
			if err := l.Unload(); err != nil {
				t.Error(err)
			}
		})
	}
}

// TestDirectRanksOnSimulator has many pages in the bin of the cut, more than a warp ranks alone, more than are ranked without a second cut,
// and equal ones among them.
func TestDirectRanksOnSimulator(t *testing.T) {
	s := immaSpec(128, 16, 4, 4, 4, 1, "bf16")
	s.Locks.BudgetTokens = 1024
	c := chosenBy(plan.PageSelectAttend, s, func(c plan.Candidate) bool {
		return c.Param("stages") == 0 && c.Param("warps") == 8 && c.Param("cluster") == 8 && len(c.Params) == 3
	})[0]
	dev, err := sim.New(sim.Config{Sanitize: true, Schedule: "random:5"})
	if err != nil {
		t.Fatal(err)
	}
	l := NewLoader(t.Context(), dev, nvrtctest.Compiler(t))
	e := NewEnv(dev, l.Compile)
	k, err := e.Kernel(c)
	if err != nil {
		t.Fatal(err)
	}
	near := func(width float64) func(r *selectAttendRun, page int) float32 {
		return func(r *selectAttendRun, _ int) float32 { return 3 + float32(width*r.rand.NormFloat64()) }
	}
	tied := func(r *selectAttendRun, page int) float32 {
		switch {
		case page%40 == 7:
			return 5 // above the cut
		case page%15 == 3:
			return 2 // some dozens, equal
		}
		return r.normal(page)/8 - 8
	}
	row := Case{Name: "900 pages", KVHeads: 1, Lens: []int{14400 - 5}, Layout: TokenMajor, Data: Random}
	for _, r := range selectAttendCase(e, s, k, row, 1, near(0.3), near(0.05), near(0.01), tied) {
		if !r.OK() {
			t.Errorf("%s, %s: %s", c.ID(), r.Metric, r.Failure)
		}
	}
	if err := e.Close(); err != nil {
		t.Error(err)
	}
	if err := l.Unload(); err != nil {
		t.Error(err)
	}
}
