package autotune

import (
	"context"
	"slices"
	"testing"

	"github.com/kvloom/kvloom/autotune/store"
	"github.com/kvloom/kvloom/gen/plan"
	"github.com/kvloom/kvloom/gen/render"
	"github.com/kvloom/kvloom/runtime/kernel"
	"github.com/kvloom/kvloom/runtime/nvrtc"
	"github.com/kvloom/kvloom/specs"
)

// TestUntunedBundle: a bundle has what each workload of a spec begins with, where nothing was chosen for it.
func TestUntunedBundle(t *testing.T) {
	s, err := specs.Model("llama-3.1-8b")
	if err != nil {
		t.Fatal(err)
	}
	p := plan.New(s, plan.Targets["sm_90a"])
	packer := Packer{Spec: s, Plan: p, Compile: func(context.Context, render.Source) (*nvrtc.Module, error) {
		return &nvrtc.Module{PTX: []byte("ptx"), Cubin: []byte("cubin")}, nil
	}}
	one, eight := kernel.Workload{Context: 131072, Batch: 1}, kernel.Workload{Context: 131072, Batch: 8}
	cluster := func(b *kernel.Bundle, w kernel.Workload) int {
		t.Helper()
		a, err := b.Lookup(kernel.PageSelect, w)
		if err != nil {
			t.Fatal(err)
		}
		return a.Kernel.Geometry.Cluster
	}
	b, err := packer.Pack(t.Context(), nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	if c1, c8 := cluster(b, one), cluster(b, eight); c1 != 8 || c8 != 2 {
		t.Errorf("one request gets clusters of %d, eight of %d; plans for each alone begin with 8 and 2", c1, c8)
	}

	fp := p.Of(plan.PageSelect)
	chosen := fp.Candidates[slices.IndexFunc(fp.Candidates, func(c plan.Candidate) bool { return c.Geometry.Cluster == 4 })]
	tuned, err := packer.Pack(t.Context(), []Choice{{Family: kernel.PageSelect, Context: one.Context, Batch: one.Batch, Best: store.Trial{Candidate: chosen}}}, nil)
	if err != nil {
		t.Fatal(err)
	}
	if c := cluster(tuned, one); c != 4 {
		t.Errorf("the choice has clusters of 4, a lookup gives %d", c)
	}
	work := tuned.Works[slices.IndexFunc(tuned.Works, func(w kernel.Work) bool { return w.Name == kernel.PageSelect })]
	if slices.ContainsFunc(work.Defaults, func(d kernel.Default) bool { return d.Workload == one }) {
		t.Errorf("a tuned workload has a default of its own: %v", work.Defaults)
	}
}
