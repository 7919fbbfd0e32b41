package plan

import (
	"fmt"
	"strings"
	"testing"

	"github.com/kvloom/kvloom/internal/launch"
	"github.com/kvloom/kvloom/specs"
)

func summarySpec(dim, page, rank, bits int) *specs.Spec {
	s := &specs.Spec{}
	s.Attention = specs.Attention{QueryHeads: 32, KVHeads: 8, HeadDim: dim}
	s.Cache = specs.Cache{DType: "bf16", PageSize: page}
	s.Locks.Rank, s.Locks.BasisBits = rank, bits
	return s
}

func TestEverySummaryHasAPortableForm(t *testing.T) {
	for _, d := range []int{64, 80, 96, 112, 128, 192, 256} {
		for _, page := range []int{4, 8, 16, 32, 64, 128} {
			for rank := 1; rank <= 16 && rank < page; rank++ {
				for _, bits := range []int{2, 4, 8, 16} {
					for _, arch := range []string{"sm_90a", "sm_90", "sm_80"} {
						p := planPageSummary(summarySpec(d, page, rank, bits), Targets[arch])
						name := fmt.Sprintf("d%d p%d r%d b%d %s", d, page, rank, bits, arch)
						c, ok := p.DefaultOf(Portable)
						if !ok {
							t.Fatalf("%s: no portable candidate: %v", name, p.Rejected)
						}
						if got := c.Geometry.DynamicShared; got+128 > Targets["sm_80"].SharedPerBlock && arch == "sm_80" {
							t.Errorf("%s: %d B of shared memory", name, got)
						}
						if _, ok := p.DefaultOf(Hopper); ok != (arch != "sm_80") {
							t.Errorf("%s: a Hopper form is planned: %t", name, ok)
						}
						for _, r := range p.Rejected {
							if !strings.Contains(r.Reason, "shared memory") {
								t.Errorf("%s: rejected for %q", name, r.Reason)
							}
						}
					}
				}
			}
		}
	}
}

func TestSummaryGrid(t *testing.T) {
	for _, tt := range []struct {
		name     string
		page     int
		problem  launch.Problem
		want     [2]int64
		whatWith string
	}{
		{"one page of a decode step", 16, launch.Problem{NewPages: 1, KVHeads: 8, Batch: 64}, [2]int64{1, 64}, "a warp takes four pages, so eight heads are one block of four warps"},
		{"a prompt", 16, launch.Problem{NewPages: 8192, KVHeads: 8, Batch: 1}, [2]int64{396, 1}, "blocks that stay: three an SM"},
		{"a block a page", 64, launch.Problem{NewPages: 3, KVHeads: 8, Batch: 2}, [2]int64{24, 2}, "large pages"},
	} {
		c, _ := planPageSummary(summarySpec(128, tt.page, 4, 4), Targets["sm_90a"]).DefaultOf(Hopper)
		got := [2]int64{c.Geometry.Grid[0].Value(tt.problem), c.Geometry.Grid[1].Value(tt.problem)}
		if got != tt.want {
			t.Errorf("%s (%s): grid %v, want %v", tt.name, tt.whatWith, got, tt.want)
		}
	}
}

// TestStepGrid: launches of a page a request have blocks along z, by which the kernel knows a decode step; all others have one.
func TestStepGrid(t *testing.T) {
	for _, tt := range []struct {
		name                    string
		kvHeads, bits, newPages int
		want                    int64
		why                     string
	}{
		{"a decode step", 8, 4, 1, 4, "two pages a block of four warps"},
		{"two pages a request", 8, 4, 2, 1, "no step: four pages a warp"},
		{"a prompt", 8, 4, 8192, 1, "no step"},
		{"two heads", 2, 4, 1, 2, "a page a block, for one block would look like a prompt's"},
		{"one head", 1, 4, 1, 1, "built as a prompt is"},
		{"64 heads", 64, 4, 1, 16, "built_lens counts 16 blocks"},
		{"16 bits", 8, 16, 1, 1, "the quick basis loses too much where spectra are flat"},
	} {
		s := summarySpec(128, 16, 4, tt.bits)
		s.Attention.KVHeads = tt.kvHeads
		c, _ := planPageSummary(s, Targets["sm_90a"]).DefaultOf(Hopper)
		p := launch.Problem{NewPages: int64(tt.newPages), KVHeads: int64(tt.kvHeads), Batch: 64}
		if got := c.Geometry.Grid[2].Value(p); got != tt.want {
			t.Errorf("%s (%s): %d blocks along z, want %d", tt.name, tt.why, got, tt.want)
		}
	}
}
