package autotune

import (
	"testing"
	"time"

	"github.com/kvloom/kvloom/autotune/measure"
	"github.com/kvloom/kvloom/autotune/store"
	"github.com/kvloom/kvloom/gen/plan"
	"github.com/kvloom/kvloom/gen/render"
	"github.com/kvloom/kvloom/runtime/nvrtc/nvrtctest"
	"github.com/kvloom/kvloom/specs"
)

// The whole of a trial, a window of a contest and a check of a leader in a real child: class, samples and errors arrive.
func TestChildEndToEnd(t *testing.T) {
	host := realHost(t, "clocked", time.Minute)
	r := request(t, planted{})
	r.Samples = 3
	resp, err := host.Do(t.Context(), r)
	if err != nil || store.Class(resp.Class) != store.OK || len(resp.Samples) != 3 || resp.Bound == 0 {
		t.Fatalf("a trial: %+v, %v", resp, err)
	}
	for _, us := range resp.Samples {
		if us != 3000 { // a replay of one launch, for layers have one buffer of scores
			t.Errorf("%g us a launch, want 3000", us)
		}
	}
	r.SkipCheck, r.Samples, r.Warm = true, 2, true
	if resp, err = host.Do(t.Context(), r); err != nil || store.Class(resp.Class) != store.OK || len(resp.Samples) != 2 || resp.Samples[0] != 3000 {
		t.Errorf("a warm window: %+v, %v; want one set, and so one launch of 3000 us", resp, err)
	}
	r = request(t, planted{})
	r.BestUS = 100 // 3 times this is less than 3000
	if resp, err = host.Do(t.Context(), r); err != nil || store.Class(resp.Class) != store.Cut || len(resp.Samples) != 3 {
		t.Errorf("a slow one: %+v, %v; want it cut after 3 samples", resp, err)
	}
	r = request(t, planted{})
	r.CheckOnly = true
	if resp, err = host.Do(t.Context(), r); err != nil || store.Class(resp.Class) != store.OK || len(resp.Samples) != 0 || resp.Bound == 0 {
		t.Errorf("a check alone: %+v, %v; want what it found, and no time", resp, err)
	}
	if host.Restarts != 0 {
		t.Errorf("%d fresh children", host.Restarts)
	}
}

// Every work of a spec can be set up and launched as the tuner does; the simulator would say where a buffer is too small.
func TestEveryWorkIsMeasurable(t *testing.T) {
	host := realHost(t, "clocked", time.Minute)
	spec, err := specs.Model("smollm2-135m")
	if err != nil {
		t.Fatal(err)
	}
	p := plan.New(spec, plan.Targets["sm_90a"])
	for _, work := range measure.Works {
		if !p.Has(work.Family()) {
			continue
		}
		c, ok := p.Of(work.Family()).DefaultOf(plan.Portable)
		if !ok { // of the other forms, the simulator runs the PTX
			c = p.Of(work.Family()).Candidates[0]
		}
		image, c := plant(t, planted{}, c)
		if !ok {
			src, err := render.Candidate(c)
			if err != nil {
				t.Fatal(err)
			}
			image = nvrtctest.Compile(t, src).PTX
		}
		for _, w := range []specs.Workload{{Context: 520, Batch: 2}, {Context: 16, Batch: 1}} {
			resp, err := host.Do(t.Context(), measure.Request{Spec: *spec, Work: work, Workload: w, Candidate: c, Image: image, SkipCheck: true, Samples: 1})
			if err != nil || store.Class(resp.Class) != store.OK {
				t.Errorf("%s at %dx%d: %s %s, %v", work, w.Context, w.Batch, resp.Class, resp.Message, err)
			}
		}
	}
}
