package verify

import (
	"context"
	"fmt"
	"testing"

	"github.com/kvloom/kvloom/gen/plan"
	"github.com/kvloom/kvloom/gen/render"
	"github.com/kvloom/kvloom/runtime/nvrtc/nvrtctest"
	"github.com/kvloom/kvloom/runtime/sim"
	"github.com/kvloom/kvloom/specs"
)

// selectSpec is a spec with the fields that page_select and page_attend depend on.
func selectSpec(group, kvHeads, page int, combine string) *specs.Spec {
	s := &specs.Spec{Name: "test"}
	s.Attention = specs.Attention{QueryHeads: group * kvHeads, KVHeads: kvHeads, HeadDim: 64, SoftmaxScale: 0.125}
	s.Cache = specs.Cache{DType: "bf16", PageSize: page, Layout: "strides"}
	s.Locks.Combine, s.Locks.BudgetTokens = combine, 24*page
	s.Locks.AlwaysKeep = specs.Keep{SinkPages: 1, RecentPages: 1}
	return s
}

// onSimulator checks candidates over the small cases, or over the named ones.
func onSimulator(t *testing.T, s *specs.Spec, reason string, candidates []plan.Candidate, cases []string) {
	t.Helper()
	dev, err := sim.New(sim.Config{})
	if err != nil {
		t.Fatal(err)
	}
	l := NewLoader(t.Context(), dev, nvrtctest.Compiler(t))
	e := NewEnv(dev, l.Compile)
	if cases == nil {
		cases = []string{""}
	}
	for _, c := range candidates {
		for _, name := range cases {
			results, err := Check(context.Background(), e, s, c, Options{Only: name, Seed: 1, Workloads: "small"})
			if err != nil {
				t.Fatal(err)
			}
			for _, r := range results {
				if !r.OK() {
					t.Errorf("%s (%s), %s, %s: %s", c.ID(), reason, r.Case, r.Metric, r.Failure)
				}
			}
		}
	}
	if err := e.Close(); err != nil {
		t.Error(err)
	}
	if err := l.Unload(); err != nil {
		t.Error(err)
	}
}

// chosenBy keeps the candidates whose parameters the filter wants.
func chosenBy(f plan.Family, s *specs.Spec, want func(plan.Candidate) bool) (list []plan.Candidate) {
	for _, c := range plan.ForFamily(f, s, plan.Targets["sm_90a"]).Candidates {
		if want(c) {
			list = append(list, c)
		}
	}
	return list
}

// TestPageSelectOnSimulator runs the PTX of one block and of clusters over every rule.
func TestPageSelectOnSimulator(t *testing.T) {
	t.Parallel()
	defaults := func(c plan.Candidate) bool {
		return c.Param("threads") == 512 && c.Param("cluster") == 8 || c.Form == plan.Portable && c.Param("threads") == 1024
	}
	for _, tc := range []struct {
		group, page int
		rule        string
		want        func(plan.Candidate) bool
		reason      string
	}{
		{4, 16, "share_average", defaults, "the first speed bar's shape"},
		{4, 16, "share_average", func(c plan.Candidate) bool { return c.Param("threads") == 256 || c.Param("cluster") == 16 }, "other block and cluster sizes"},
		{7, 32, "share_average", defaults, "a group that no vector divides"},
		{64, 4, "peak_normalised", defaults, "the largest group: scores are not staged"},
		{12, 128, "group_mass", defaults, "a logarithm of a sum"},
		{5, 8, "group_max", defaults, "no normaliser"},
		{3, 64, "per_head", defaults, "a list a query head"},
	} {
		t.Run(fmt.Sprintf("%s g%d p%d", tc.rule, tc.group, tc.page), func(t *testing.T) {
			s := selectSpec(tc.group, 2, tc.page, tc.rule)
			onSimulator(t, s, tc.reason, chosenBy(plan.PageSelect, s, tc.want), nil)
		})
	}
}

// TestPageSelectSpillsKeys shrinks the buffer, so that keys of short rows go to the workspace, as those of millions of tokens do.
func TestPageSelectSpillsKeys(t *testing.T) {
	s := selectSpec(4, 2, 16, "share_average")
	candidates := chosenBy(plan.PageSelect, s, func(c plan.Candidate) bool {
		return c.Kernel == "kvloom::page_select" && c.Param("threads") == 512 && c.Param("cluster") <= 8
	})
	for i := range candidates {
		for j, k := range candidates[i].Constants {
			if k.Name == "kBufferWords" {
				candidates[i].Constants = append([]plan.Constant(nil), candidates[i].Constants...)
				candidates[i].Constants[j].Value = "64"
				candidates[i].Geometry.DynamicShared = 256
			}
		}
	}
	onSimulator(t, s, "rows longer than the buffer", candidates, []string{"random", "mixed rows", "steps", "replayed at other lengths"})
}

// TestPageSelectShared holds the plan's figure of static shared memory against the compiler's, and spills against none.
func TestPageSelectShared(t *testing.T) {
	for _, tc := range []struct {
		group  int
		rule   string
		reason string
	}{
		{4, "share_average", "the usual group"},
		{64, "share_average", "the most statistics"},
		{3, "per_head", "one head a list"},
	} {
		s := selectSpec(tc.group, 2, 16, tc.rule)
		for _, c := range plan.ForFamily(plan.PageSelect, s, plan.Targets["sm_90a"]).Candidates {
			src, err := render.Candidate(c)
			if err != nil {
				t.Fatal(err)
			}
			r := nvrtctest.Compile(t, src).Resources
			if static := plan.SelectStatic(s, c); r.StaticShared > static || r.StaticShared < static-1024 {
				t.Errorf("%s (%s): %d B of static shared memory, the plan says %d", c.ID(), tc.reason, r.StaticShared, static)
			}
			if r.SpillStores+r.SpillLoads+r.StackBytes > 0 {
				t.Errorf("%s (%s): %s", c.ID(), tc.reason, r)
			}
		}
	}
}
