package autotune

import (
	"context"
	"encoding/binary"
	"math"
	"path/filepath"
	"slices"
	"testing"

	"github.com/kvloom/kvloom/autotune/store"
	"github.com/kvloom/kvloom/gen/plan"
	"github.com/kvloom/kvloom/gen/render"
	"github.com/kvloom/kvloom/internal/tensorfile"
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

// TestPackCalibrations: what kvloom calibrate measured of each layer goes from the files that the spec names into the bundle, as kernels take it.
func TestPackCalibrations(t *testing.T) {
	dir := t.TempDir()
	const heads, dim = 3, 64
	moments, means := make([]float64, heads*dim*dim), make([]float64, heads*dim)
	for h := range heads {
		for i := range dim {
			moments[h*dim*dim+i*dim+i], means[h*dim+i] = float64(h+1), float64(i)
		}
	}
	f := tensorfile.File{Metadata: map[string]string{"kvloom": "calibration"}, Tensors: []tensorfile.Tensor{
		tensorfile.Float32("moments", []int{heads, dim, dim}, moments), tensorfile.Float32("mean_key", []int{heads, dim}, means)}}
	if err := f.Write(filepath.Join(dir, "layer.safetensors")); err != nil {
		t.Fatal(err)
	}
	s, err := specs.Model("smollm2-135m")
	if err != nil {
		t.Fatal(err)
	}
	s.Folder, s.Locks.Basis, s.Locks.Calibration = dir, plan.QueryWeighted, []string{"layer.safetensors", "layer.safetensors"}
	list, err := calibrations(s)
	if err != nil || len(list) != 2 {
		t.Fatalf("%d layers, %v", len(list), err)
	}
	if len(list[0].Weights) != int(kernel.WeightBytes(heads, dim)) || list[0].MeanKey != nil {
		t.Errorf("weights of %d bytes, mean keys of %d: centroids are not centred", len(list[0].Weights), len(list[0].MeanKey))
	}
	s.Locks.Basis, s.Locks.CentroidBits = "svd", 4
	if list, err = calibrations(s); err != nil || list[0].Weights != nil || len(list[0].MeanKey) != 4*heads*dim {
		t.Errorf("weights of %d bytes, mean keys of %d (%v): the basis is plain", len(list[0].Weights), len(list[0].MeanKey), err)
	}
	if got := math.Float32frombits(binary.LittleEndian.Uint32(list[0].MeanKey[4*(dim+5):])); got != 5 {
		t.Errorf("head 1, dim 5 has mean %g", got)
	}
	s.Locks.Calibration[1] = "none.safetensors"
	if _, err := calibrations(s); err == nil {
		t.Error("a missing file passed")
	}
}
