package kernel

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/kvloom/kvloom/runtime/device"
)

func layerArgs() LayerArgs {
	a := LayerArgs{Score: scoreArgs(), Select: selectArgs(), Attend: attendArgs()}
	a.Select.Scores, a.Select.SeqLens = a.Score.Scores, a.Score.Cache.SeqLens
	a.Attend.Pages, a.Attend.Counts = a.Select.Pages, a.Select.Counts
	return a
}

// TestDecodeLayerEdges: inside a layer kernels that wait may start early; the score kernel and kernels launched alone never do, and no
// kernel does that does not wait.
func TestDecodeLayerEdges(t *testing.T) {
	for _, tc := range []struct {
		name, reason string
		waits        bool
		launch       func(*Set) error
		want         []bool
	}{
		{"layer", "score meets the layer before at an ordinary edge", true, func(s *Set) error {
			a := layerArgs()
			return s.DecodeLayer(nil, &a, Workload{131072, 1})
		}, []bool{false, true, true}},
		{"layer of kernels that do not wait", "portable forms know no such launches", false, func(s *Set) error {
			a := layerArgs()
			return s.DecodeLayer(nil, &a, Workload{131072, 1})
		}, []bool{false, false, false}},
		{"alone", "a caller's own kernel may lie before it", true, func(s *Set) error {
			a, b := selectArgs(), attendArgs()
			if err := s.PageSelect(nil, &a, Workload{131072, 1}); err != nil {
				return err
			}
			return s.PageAttend(nil, &b, Workload{131072, 1})
		}, []bool{false, false}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			d := &fakeDevice{info: h200, all: make([]device.Launch, 0, 4)}
			b := testBundle()
			for i := range b.Kernels {
				b.Kernels[i].Geometry.Dependent = tc.waits && b.Kernels[i].Family != PageScore
			}
			s, err := b.Load(d)
			if err != nil {
				t.Fatal(err)
			}
			if err := tc.launch(s); err != nil {
				t.Fatal(err)
			}
			var got []bool
			for _, l := range d.all {
				got = append(got, l.Dependent)
			}
			if diff := cmp.Diff(tc.want, got); diff != "" {
				t.Errorf("%s (-want +got):\n%s", tc.reason, diff)
			}
		})
	}
}

func TestCheckLayer(t *testing.T) {
	s := load(t, &fakeDevice{info: h200})
	for _, tc := range []struct {
		name  string
		spoil func(*LayerArgs)
		words []string
	}{
		{"the fault of a kernel", func(a *LayerArgs) { a.Score.Q = 0 }, []string{"page_score", "q is null"}},
		{"other scores", func(a *LayerArgs) { a.Select.Scores += 16 }, []string{"layer", "select.scores"}},
		{"another stride", func(a *LayerArgs) { a.Select.ScoreHeadStride += 4 }, []string{"layer", "select.scores"}},
		{"other lists", func(a *LayerArgs) { a.Attend.Pages += 16 }, []string{"layer", "attend.pages"}},
		{"fewer slots", func(a *LayerArgs) { a.Attend.Slots-- }, []string{"layer", "attend.pages"}},
		{"dense", func(a *LayerArgs) { a.Attend.Pages, a.Attend.Counts = 0, 0 }, []string{"layer", "attend.pages is null"}},
		{"other lengths", func(a *LayerArgs) { a.Select.SeqLens += 16 }, []string{"layer", "seq_lens"}},
		{"another batch", func(a *LayerArgs) { a.Select.Batch-- }, []string{"layer", "batch"}},
	} {
		a := layerArgs()
		tc.spoil(&a)
		contains(t, tc.name, s.DecodeLayer(nil, &a, Workload{131072, 1}), tc.words...)
	}
	contains(t, "nothing", s.CheckLayer(nil), "layer", "nil")
	a := layerArgs()
	if err := s.CheckLayer(&a); err != nil {
		t.Errorf("a whole layer: %v", err)
	}
}
