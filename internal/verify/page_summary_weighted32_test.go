package verify

import (
	"fmt"
	"testing"

	"github.com/kvloom/kvloom/gen/plan"
	"github.com/kvloom/kvloom/gen/render"
	"github.com/kvloom/kvloom/runtime/nvrtc/nvrtctest"
)

// TestWeighted32SummaryOnSim runs the form with a warp for each 32 tokens: every case once, then layouts that differ.
func TestWeighted32SummaryOnSim(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		dtype                 string
		dim, page, rank, bits int
		reason                string
		only                  []string // cases; none: all
	}{
		{"bf16", 64, 16, 1, 4, "two pages a group, every case", nil},
		{"bf16", 128, 32, 2, 8, "two vectors, one page; two passes over the columns", append([]string{noQueries, oneQuery, decaying, "low rank", "near-equal spectrum"}, formCases...)},
		{"fp16", 96, 8, 2, 4, "four pages a group, rows that are not exchanged", formCases},
		{"bf16", 128, 16, 1, 4, "the shape of the speed bar", []string{"half-full last page", "degenerate pages", "holes", oddStrides, "replayed at other lengths", "shared prefix"}},
	} {
		t.Run(fmt.Sprintf("%s d%d p%d r%d b%d", tt.dtype, tt.dim, tt.page, tt.rank, tt.bits), func(t *testing.T) {
			s := summarySpec(tt.dtype, tt.dim, tt.page, tt.rank, tt.bits, 2)
			s.Locks.Basis, s.Locks.SummaryTokens, s.Locks.Rerank = plan.QueryWeighted, 32, 2
			p := plan.ForFamily(plan.PageSummary, s, plan.Targets["sm_90a"])
			for _, c := range p.Candidates {
				if c.Form == plan.Portable && c.Kernel == "kvloom::page_summary_weighted32" {
					checkSummaryOnSim(t, s, c, tt.reason, tt.only)
					return
				}
			}
			t.Fatalf("%s: no candidate: %v", tt.reason, p.Rejected)
		})
	}
}

// TestWeighted32Compiles: no candidate uses local memory, and the plan gives what the kernel lays out.
func TestWeighted32Compiles(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		dtype                 string
		dim, page, rank, bits int
	}{{"bf16", 128, 16, 1, 4}, {"fp16", 128, 32, 2, 8}, {"bf16", 96, 16, 2, 4}, {"bf16", 32, 8, 1, 4}} {
		s := summarySpec(tt.dtype, tt.dim, tt.page, tt.rank, tt.bits, 2)
		s.Locks.Basis, s.Locks.SummaryTokens, s.Locks.Rerank = plan.QueryWeighted, 32, 2
		for _, c := range plan.ForFamily(plan.PageSummary, s, plan.Targets["sm_90a"]).Candidates {
			if c.Form != plan.Hopper || c.Kernel != "kvloom::page_summary_weighted32" {
				continue
			}
			src, err := render.Candidate(c)
			if err != nil {
				t.Fatal(err)
			}
			m := nvrtctest.Compile(t, src)
			t.Logf("%s: %s, %d B shared", c.ID(), m.Resources, c.Geometry.DynamicShared)
			if m.Resources.StackBytes+m.Resources.SpillStores+m.Resources.SpillLoads > 0 {
				t.Errorf("%+v: %s uses local memory: %s", tt, c.ID(), m.Resources)
			}
		}
	}
}
