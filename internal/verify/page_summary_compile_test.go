package verify

import (
	"fmt"
	"strings"
	"testing"

	"github.com/kvloom/kvloom/gen/plan"
	"github.com/kvloom/kvloom/gen/render"
	"github.com/kvloom/kvloom/runtime/nvrtc/nvrtctest"
	"github.com/kvloom/kvloom/specs"
)

// summarySpec is a spec that only says what a page summary depends on.
func summarySpec(dtype string, dim, page, rank, bits, kvHeads int) *specs.Spec {
	s := &specs.Spec{Name: "summary-test"}
	s.Attention = specs.Attention{QueryHeads: kvHeads, KVHeads: kvHeads, HeadDim: dim, SoftmaxScale: 1}
	s.Cache = specs.Cache{DType: dtype, PageSize: page, Layout: "strides"}
	s.Locks.Rank, s.Locks.BasisBits, s.Locks.BudgetTokens, s.Locks.Combine = rank, bits, 2048, "share_average"
	return s
}

// TestRecordMirrors compiles assertions that every offset of the CUDA header's record is that of specs.NewFormRecord.
func TestRecordMirrors(t *testing.T) {
	c, _ := plan.ForFamily(plan.PageSummary, summarySpec("bf16", 64, 16, 1, 16, 1), plan.Targets["sm_90a"]).DefaultOf(plan.Portable)
	src, err := render.Candidate(c)
	if err != nil {
		t.Fatal(err)
	}
	var text strings.Builder
	for _, d := range []int{64, 80, 96, 112, 128, 192, 256} {
		for _, page := range []int{4, 8, 16, 32, 64, 128} {
			for _, rank := range []int{1, 3, 7, 8, 16} {
				for _, bits := range []int{2, 4, 8, 16} {
					writeMirrors(&text, specs.NewRecord(d, page, rank, bits), fmt.Sprintf("kvloom::Record<%d, %d, %d, %d>", d, page, rank, bits))
					if page != 16 {
						continue
					}
					for _, form := range []specs.RecordForm{{Coefficients4: true}, {Centroid4: true}, {Grouped: true}, {Coefficients4: true, Centroid4: true, Grouped: true}} {
						writeMirrors(&text, specs.NewFormRecord(d, page, rank, bits, form), fmt.Sprintf("kvloom::Record<%d, %d, %d, %d, kvloom::RecordForm<%d, %d, %t>>",
							d, page, rank, bits, form.CoefficientBits(), form.CentroidBits(), form.Grouped))
					}
				}
			}
		}
	}
	src.Text += text.String()
	nvrtctest.Compile(t, src)
}

// writeMirrors writes the assertions for one record, layout being its type.
func writeMirrors(text *strings.Builder, r specs.Record, layout string) {
	for _, f := range []struct {
		name string
		want int
	}{{"kQuarterBytes", r.QuarterBytes}, {"kMuQuarterBytes", r.MuQuarterBytes}, {"kRankPad", r.RankPad}, {"kScaleGroups", r.ColumnGroups},
		{"kMuScales", r.MuGroups}, {"kV", r.V}, {"kMu", r.Mu}, {"kC", r.C}, {"kTokenScales", r.TokenScales},
		{"kColumnScales", r.ColumnScales}, {"kMuScale", r.MuScale}, {"kBytes", r.Bytes}} {
		fmt.Fprintf(text, "static_assert(%s::%s == %d, \"specs.NewFormRecord differs\");\n", layout, f.name, f.want)
	}
}

func TestSummaryCompiles(t *testing.T) {
	t.Parallel()
	tests := []struct {
		dtype                 string
		dim, page, rank, bits int
		reason                string
	}{
		{"bf16", 128, 16, 4, 4, "the usual shape"},
		{"fp16", 128, 16, 8, 4, "half keys"},
		{"bf16", 256, 16, 15, 16, "most registers of the warp form"},
		{"bf16", 80, 8, 3, 2, "a row that is no whole number of words a lane"},
		{"bf16", 128, 32, 8, 4, "block form, two warps"},
		{"fp16", 256, 128, 16, 16, "most shared memory"},
	}
	for _, tt := range tests {
		t.Run(fmt.Sprintf("%s d%d p%d r%d b%d", tt.dtype, tt.dim, tt.page, tt.rank, tt.bits), func(t *testing.T) {
			fp := plan.ForFamily(plan.PageSummary, summarySpec(tt.dtype, tt.dim, tt.page, tt.rank, tt.bits, 2), plan.Targets["sm_90a"])
			forms := []plan.Form{plan.Hopper} // the code is the same; both, once, for the usual shape
			if tt.rank == 4 {
				forms = append(forms, plan.Portable)
			}
			for _, form := range forms {
				c, ok := fp.DefaultOf(form)
				if !ok {
					t.Fatalf("%s: no %s candidate", tt.reason, form)
				}
				src, err := render.Candidate(c)
				if err != nil {
					t.Fatal(err)
				}
				m := nvrtctest.Compile(t, src)
				t.Logf("%s: %s, %d B shared", c.ID(), m.Resources, c.Geometry.DynamicShared)
				if m.Resources.StackBytes+m.Resources.SpillStores+m.Resources.SpillLoads > 0 {
					t.Errorf("%s: %s uses local memory: %s", tt.reason, c.ID(), m.Resources)
				}
			}
		})
	}
}

// TestWeightedBlocksCompile: what the plan says of a weighted block's shared memory is what the kernel lays out, by the direct method and by
// powers, for one page and for several, at the narrowest and the widest heads; no candidate spills.
func TestWeightedBlocksCompile(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct{ dim, page, tokens, rank int }{
		{64, 16, 32, 1}, {80, 32, 32, 2}, {256, 16, 64, 2}, {128, 64, 128, 1}, {112, 64, 64, 4}, {256, 32, 32, 8},
	} {
		s := summarySpec("bf16", tt.dim, tt.page, tt.rank, 4, 2)
		s.Locks.Basis, s.Locks.SummaryTokens, s.Locks.Rerank = plan.QueryWeighted, tt.tokens, 2
		p := plan.ForFamily(plan.PageSummary, s, plan.Targets["sm_90a"])
		for _, form := range []plan.Form{plan.Hopper, plan.Portable} {
			c, ok := p.DefaultOf(form)
			if !ok {
				t.Fatalf("%+v: no %s candidate: %v", tt, form, p.Rejected)
			}
			src, err := render.Candidate(c)
			if err != nil {
				t.Fatal(err)
			}
			if m := nvrtctest.Compile(t, src); m.Resources.SpillLoads > 0 {
				t.Errorf("%+v: %s spills %d bytes", tt, c.ID(), m.Resources.SpillLoads)
			}
		}
	}
}
