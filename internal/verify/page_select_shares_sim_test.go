package verify

import (
	"regexp"
	"strings"
	"testing"

	"github.com/kvloom/kvloom/gen/plan"
	"github.com/kvloom/kvloom/gen/render"
	"github.com/kvloom/kvloom/runtime/nvrtc"
	"github.com/kvloom/kvloom/runtime/nvrtc/nvrtctest"
	"github.com/kvloom/kvloom/runtime/sim"
	"github.com/kvloom/kvloom/specs"
)

var spills = regexp.MustCompile(`(\d+) bytes spill stores`)

// sharesSpec has rows that are long enough for a first launch.
func sharesSpec(group, kvs int) *specs.Spec {
	s := immaSpec(128, 16, 4, 4, group, kvs, "bf16")
	s.Workloads = append(s.Workloads, specs.Workload{Context: 1 << 20, Batch: 1})
	return s
}

// TestPageSelectSharesOnSimulator runs both launches of page_select from shares on contract cases and clusterCases, once under the sanitizer.
func TestPageSelectSharesOnSimulator(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		group, kvs, cluster, slices int
		reason                      string
	}{
		{4, 8, 8, 2, "the bar's shape"},
		{16, 2, 16, 4, "sixteen blocks, sixteen heads"},
		{7, 2, 8, 8, "a group that is no power of two"},
	} {
		s := sharesSpec(tc.group, tc.kvs)
		candidates := chosenBy(plan.PageSelect, s, func(c plan.Candidate) bool {
			return c.First != nil && c.Param("cluster") == tc.cluster && c.Param("slices") == tc.slices
		})
		if len(candidates) != 1 {
			t.Fatalf("group %d (%s): %d candidates, want 1", tc.group, tc.reason, len(candidates))
		}
		src, err := render.Candidate(candidates[0])
		if err != nil {
			t.Fatal(err)
		}
		m, err := nvrtctest.Compiler(t).Compile(t.Context(), src, nvrtc.Options{})
		if err != nil {
			t.Fatal(err)
		}
		for _, entry := range []string{"page_select_shares", "page_select"} {
			_, of, found := strings.Cut(m.Log, "Compiling entry function '"+entry+"'")
			if spill := spills.FindStringSubmatch(of); !found || spill == nil || spill[1] != "0" {
				t.Errorf("%s, %s: the compiler's log does not say that nothing is spilled: %q", candidates[0].ID(), entry, spill)
			}
		}
		clusterCasesOnSimulator(t, s, candidates[0], tc.reason, tc.group == 7)
	}
}

// TestPageSelectAttendFromSharesOnSimulator runs the launch that selects from shares and attends, under the sanitizer, alone and behind the
// build and page_score.
func TestPageSelectAttendFromSharesOnSimulator(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		group, kvs, warps, stages, cluster int
		reason                             string
	}{
		{16, 2, 16, 1, 16, "the bar's shape: half of the warps for eight heads each"},
		{4, 8, 8, 2, 8, "two tiles a warp"},
		{16, 2, 16, 0, 16, "keys and values in registers"},
	} {
		s := sharesSpec(tc.group, tc.kvs)
		first := func(f plan.Family) plan.Candidate { return plan.ForFamily(f, s, plan.Targets["sm_90a"]).Candidates[0] }
		fused := chosenBy(plan.PageSelectAttend, s, func(c plan.Candidate) bool {
			return c.First != nil && c.Param("warps") == tc.warps && c.Param("stages") == tc.stages && c.Param("cluster") == tc.cluster
		})
		if len(fused) == 0 {
			t.Fatalf("group %d (%s): no candidate", tc.group, tc.reason)
		}
		dev, err := sim.New(sim.Config{Sanitize: true, Schedule: "random:3"})
		if err != nil {
			t.Fatal(err)
		}
		l := NewLoader(t.Context(), dev, nvrtctest.Compiler(t))
		e := NewEnv(dev, l.Compile)
		candidates := []plan.Candidate{first(plan.PageSummary), first(plan.PageScore), fused[0]}
		n := 0
		for _, only := range []string{"33 pages", "replayed at other lengths"} {
			o := Options{Only: only, Seed: 1, Workloads: "small"}
			results, err := Check(t.Context(), e, s, fused[0], o)
			if err != nil {
				t.Fatal(err)
			}
			for _, r := range append(results, CheckChain(t.Context(), e, s, tc.reason, candidates, o)...) {
				if n++; !r.OK() {
					t.Errorf("%s (%s), %s, %s: %s", fused[0].ID(), tc.reason, r.Case, r.Metric, r.Failure)
				}
			}
		}
		if n < 8 {
			t.Errorf("%d results", n)
		}
		if err := e.Close(); err != nil {
			t.Error(err)
		}
		if err := l.Unload(); err != nil {
			t.Error(err)
		}
	}
}
