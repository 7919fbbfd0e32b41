package verify

import (
	"bytes"
	"errors"
	"testing"

	"github.com/kvloom/kvloom/gen/plan"
	"github.com/kvloom/kvloom/internal/gputest"
	"github.com/kvloom/kvloom/runtime/device"
	"github.com/kvloom/kvloom/runtime/nvrtc"
	"github.com/kvloom/kvloom/specs"
)

// TestTwoStreams runs every candidate of page_select on two streams at once, each with a workspace of its own (T6): whatever the two
// interleave to, each must give what it gives alone.
func TestTwoStreams(t *testing.T) {
	dev := gputest.Require(t)
	compiler, err := nvrtc.Open()
	if err != nil {
		t.Fatal(err)
	}
	s, err := specs.Model("llama-3.1-8b")
	if err != nil {
		t.Fatal(err)
	}
	loader := NewLoader(t.Context(), dev, compiler)
	e := NewEnv(dev, loader.Compile)
	defer func() {
		if err := errors.Join(e.Close(), loader.Unload()); err != nil {
			t.Error(err)
		}
	}()
	for _, c := range plan.New(s, plan.Targets["sm_90a"]).Of(plan.PageSelect).Candidates {
		t.Run(c.ID(), func(t *testing.T) {
			k, err := e.Kernel(c)
			if err != nil {
				t.Fatal(err)
			}
			a, b := newSide(t, e, k, s, 1), newSide(t, e, k, s, 2)
			for range 40 {
				a.enqueue(t)
				b.enqueue(t)
			}
			a.compare(t)
			b.compare(t)
		})
	}
}

// side is one stream's problem, buffers and workspace, and what it gives alone.
type side struct {
	run    *selectRun
	stream device.Stream
	alone  []byte
}

func newSide(t *testing.T, e *Env, k *Kernel, s *specs.Spec, seed uint64) *side {
	t.Helper()
	p, err := NewScoreProblem(s, ScoreCases(Options{Only: "mixed rows"})[0], seed)
	if err != nil {
		t.Fatal(err)
	}
	arena := e.NewArena()
	run, err := newSelectRun(e, k, p, arena)
	if err != nil {
		t.Fatal(err)
	}
	workspace, err := arena.Alloc("workspace of its own", max(k.Candidate.Geometry.WorkspaceBytes(run.launch), 16))
	if err != nil {
		t.Fatal(err)
	}
	if err := workspace.Fill(0); err != nil {
		t.Fatal(err)
	}
	run.args.Workspace = workspace.Ptr()
	stream, err := e.Dev.NewStream()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := errors.Join(stream.Destroy(), arena.Free()); err != nil {
			t.Error(err)
		}
	})
	x := &side{run: run, stream: stream}
	x.enqueue(t)
	x.alone = x.read(t)
	return x
}

func (x *side) enqueue(t *testing.T) {
	t.Helper()
	if err := Enqueue(x.run.kernel, x.stream, x.run.launch, &x.run.args); err != nil {
		t.Fatal(err)
	}
}

func (x *side) read(t *testing.T) []byte {
	t.Helper()
	if err := x.stream.Synchronize(); err != nil {
		t.Fatal(err)
	}
	pages, err := x.run.pages.Read()
	if err != nil {
		t.Fatal(err)
	}
	counts, err := x.run.counts.Read()
	if err != nil {
		t.Fatal(err)
	}
	return append(pages, counts...)
}

func (x *side) compare(t *testing.T) {
	t.Helper()
	if !bytes.Equal(x.alone, x.read(t)) {
		t.Error("beside another stream the selection is another than alone")
	}
}
