package verify

import (
	"testing"

	"github.com/kvloom/kvloom/gen/plan"
	"github.com/kvloom/kvloom/gen/render"
	"github.com/kvloom/kvloom/runtime/nvrtc/nvrtctest"
	"github.com/kvloom/kvloom/specs"
)

// scoreSpec is a spec with the fields that page_score depends on.
func scoreSpec(dim, page, rank, bits, group int, dtype string, softcap float64) *specs.Spec {
	s := &specs.Spec{Name: "test"}
	s.Attention = specs.Attention{QueryHeads: group * 2, KVHeads: 2, HeadDim: dim, SoftmaxScale: 0.1, LogitSoftcap: softcap}
	s.Cache = specs.Cache{DType: dtype, PageSize: page, Layout: "strides"}
	s.Locks.Rank, s.Locks.BasisBits, s.Locks.CoefficientBits, s.Locks.CentroidBits = rank, bits, 8, 8
	return s
}

// TestPageScoreResources compiles the default of each form for the common shapes: they keep everything in registers.
func TestPageScoreResources(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		name, reason          string
		dim, page, rank, bits int
		group                 int
		dtype                 string
		softcap               float64
	}{
		{"llama-3.1-8b", "group 4, the first speed bar", 128, 16, 4, 4, 4, "bf16", 0},
		{"llama-3.1-8b r8", "the paper's largest rank", 128, 16, 8, 4, 4, "bf16", 0},
		{"glm-4-9b", "group 16: two n tiles", 128, 16, 4, 4, 16, "bf16", 0},
		{"glm-4-9b r8", "group 16, rank 8", 128, 16, 8, 4, 16, "bf16", 0},
		{"qwen2.5-7b", "group 7", 128, 16, 4, 4, 7, "bf16", 0},
		{"smollm2", "group 3, head dim 64", 64, 16, 4, 4, 3, "bf16", 0},
		{"phi-3", "group 1, head dim 96", 96, 16, 4, 4, 1, "fp16", 0},
		{"capped", "softcap", 128, 16, 4, 4, 8, "bf16", 50},
		{"two bits", "two-bit basis", 128, 16, 4, 2, 4, "bf16", 0},
		{"eight bits", "eight-bit basis", 128, 16, 4, 8, 4, "bf16", 0},
		{"sixteen bits", "bf16 basis", 128, 16, 4, 16, 4, "bf16", 0},
		{"d256", "wide heads", 256, 32, 8, 4, 8, "bf16", 0},
	} {
		t.Run(tc.name, func(t *testing.T) {
			s := scoreSpec(tc.dim, tc.page, tc.rank, tc.bits, tc.group, tc.dtype, tc.softcap)
			fp := plan.ForFamily(plan.PageScore, s, plan.Targets["sm_90a"])
			for _, form := range []plan.Form{plan.Hopper, plan.Portable} {
				c, ok := fp.DefaultOf(form)
				if !ok {
					t.Fatalf("%s: no %s candidate: %v", tc.reason, form, fp.Rejected)
				}
				src, err := render.Candidate(c)
				if err != nil {
					t.Fatal(err)
				}
				m := nvrtctest.Compile(t, src)
				if r := m.Resources; r.Known && (r.SpillStores > 0 || r.SpillLoads > 0 || r.StackBytes > 0) {
					t.Errorf("%s (%s): %s", c.ID(), tc.reason, r)
				}
			}
		})
	}
}
