package verify

import (
	"slices"
	"testing"

	"github.com/kvloom/kvloom/gen/plan"
	"github.com/kvloom/kvloom/gen/render"
	"github.com/kvloom/kvloom/runtime/nvrtc/nvrtctest"
	"github.com/kvloom/kvloom/specs"
)

// attendShapes differ in every compile-time constant of page_attend.
var attendShapes = []struct {
	name, reason     string
	dim, page, group int
	dtype, rule      string
	softcap          float64
	all              bool // cases
}{
	{"llama", "the first speed bar's shape", 128, 16, 4, "bf16", "share_average", 0, true},
	{"d64 g5 p32", "two tiles a page", 64, 32, 5, "bf16", "share_average", 0, false},
	{"d80 g1 p4", "four pages a tile, ten pieces a row", 80, 4, 1, "fp16", "share_average", 0, false},
	{"d96 g7 p8 capped", "two pages a tile, a softcap", 96, 8, 7, "bf16", "share_average", 30, false},
	{"d112 g12", "two n tiles, the second half empty", 112, 16, 12, "fp16", "share_average", 0, false},
	{"d128 g24", "two head tiles, the second half empty", 128, 16, 24, "bf16", "share_average", 0, false},
	{"d192 g16", "head tiles of one n tile", 192, 16, 16, "bf16", "share_average", 0, false},
	{"d256 g3 p128", "the widest head, the longest page (S2)", 256, 128, 3, "bf16", "share_average", 0, false},
	{"d128 g64 p64", "the largest group", 128, 64, 64, "bf16", "share_average", 0, false},
	{"per_head", "a list a query head", 64, 16, 6, "bf16", "per_head", 0, false},
	{"e4m3 llama", "8 bits, scales that are no powers of two", 128, 16, 4, "fp8_e4m3", "share_average", 0, true},
	{"e4m3 d80 g1 p4", "8 bits: five pieces a row, a k step without its pair", 80, 4, 1, "fp8_e4m3", "share_average", 0, false},
	{"e4m3 d112 g12 capped", "8 bits: two n tiles, rows of seven pieces, a softcap", 112, 16, 12, "fp8_e4m3", "share_average", 30, false},
	{"e4m3 d256 g16", "8 bits: the widest head", 256, 32, 16, "fp8_e4m3", "share_average", 0, false},
}

func attendSpec(dim, page, group int, dtype, rule string, softcap float64) *specs.Spec {
	kvHeads := 2
	if group > 16 {
		kvHeads = 1 // time
	}
	s := selectSpec(group, kvHeads, page, rule)
	s.Attention.HeadDim, s.Attention.SoftmaxScale, s.Attention.LogitSoftcap, s.Cache.DType = dim, 0.1, softcap, dtype
	return s
}

// TestPageAttendOnSimulator runs the PTX of the defaults of both forms, dense and over page lists.
func TestPageAttendOnSimulator(t *testing.T) {
	t.Parallel()
	corners := []string{"no pages", "mixed lengths", "holes", "head lengths", "wide logits", "around the splits", "fewer live requests"}
	for _, tc := range attendShapes {
		t.Run(tc.name, func(t *testing.T) {
			s := attendSpec(tc.dim, tc.page, tc.group, tc.dtype, tc.rule, tc.softcap)
			fp := plan.ForFamily(plan.PageAttend, s, plan.Targets["sm_90a"])
			var candidates []plan.Candidate
			for _, form := range []plan.Form{plan.Hopper, plan.Portable} {
				c, ok := fp.DefaultOf(form)
				if !ok {
					t.Fatalf("no %s candidate: %v", form, fp.Rejected)
				}
				candidates = append(candidates, c)
			}
			cases := corners
			if tc.all {
				cases = nil
			}
			onSimulator(t, s, tc.reason, candidates, cases)
		})
	}
}

// TestPageAttendStages runs every number of stages and warps, and a single split, which writes the output without the workspace.
func TestPageAttendStages(t *testing.T) {
	t.Parallel()
	s := attendSpec(128, 16, 4, "bf16", "share_average", 0)
	candidates := chosenBy(plan.PageAttend, s, func(plan.Candidate) bool { return true })
	one := candidates[slices.IndexFunc(candidates, func(c plan.Candidate) bool { return c.Kernel == "kvloom::page_attend" })]
	one.Geometry.Grid[0].Times = 1
	onSimulator(t, s, "stages, warps and splits", append(candidates, one), []string{"around the splits", "crosses 1024 tokens"})
}

// TestPageAttendResources compiles the default of each form for every shape: they keep everything in registers.
func TestPageAttendResources(t *testing.T) {
	for _, tc := range attendShapes {
		s := attendSpec(tc.dim, tc.page, tc.group, tc.dtype, tc.rule, tc.softcap)
		fp := plan.ForFamily(plan.PageAttend, s, plan.Targets["sm_90a"])
		for _, form := range []plan.Form{plan.Hopper, plan.Portable} {
			c, _ := fp.DefaultOf(form)
			src, err := render.Candidate(c)
			if err != nil {
				t.Fatal(err)
			}
			if r := nvrtctest.Compile(t, src).Resources; r.SpillStores+r.SpillLoads+r.StackBytes > 0 {
				t.Errorf("%s (%s, %s): %s", c.ID(), tc.name, tc.reason, r)
			}
		}
	}
}
