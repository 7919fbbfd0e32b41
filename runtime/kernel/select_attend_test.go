package kernel

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/kvloom/kvloom/internal/launch"
	"github.com/kvloom/kvloom/runtime/device"
)

// fusedBundle is testBundle with a kernel that selects and attends by clusters, a cluster a list.
func fusedBundle(cluster int) *Bundle {
	b := testBundle()
	k := b.Kernels[b.Works[2].Default]
	k.Family, k.Entry, k.SourceHash, k.Cubin = PageSelectAttend, PageSelectAttend, "both", []byte("\x7fELF both")
	k.Geometry = launch.Geometry{Grid: [3]launch.Extent{{Of: []launch.Quantity{launch.Lists}, Times: int64(cluster), Per: 1}, launch.Each(launch.Batch), launch.Const(1)},
		Block: 512, Cluster: cluster, Dependent: true, Workspace: []launch.Extent{{Of: []launch.Quantity{launch.Lists}, Times: 1000, Per: 1}}}
	b.Kernels = append(b.Kernels, k)
	b.Works = append(b.Works, Work{Name: PageSelectAttend, Points: []Point{}, Default: len(b.Kernels) - 1, Portable: -1})
	return b
}

// TestDecodeLayerTogether: a layer selects and attends in one launch where all clusters of it run at once.
func TestDecodeLayerTogether(t *testing.T) {
	for _, tc := range []struct {
		name, reason   string
		cluster, batch int32
		masses         device.Ptr
		want           []uint32 // blocks of each launch, the first extent
	}{
		{"one request", "8 clusters of 8", 8, 1, 0x9000, []uint32{12 * 132, 64}},
		{"two requests", "masses are of one", 8, 2, 0x9000, []uint32{12 * 132, 8 * 132, 8 * 132}},
		{"no masses", "pages are known when all are ranked", 8, 1, 0, []uint32{12 * 132, 8 * 132, 8 * 132}},
		{"wide clusters", "of 16 blocks, seven run at once", 16, 1, 0x9000, []uint32{12 * 132, 8 * 132, 8 * 132}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			d := &fakeDevice{info: h200, all: make([]device.Launch, 0, 4)}
			s, err := fusedBundle(int(tc.cluster)).Load(d)
			if err != nil {
				t.Fatal(err)
			}
			a := layerArgs()
			a.Score.Masses, a.Select.Masses = tc.masses, tc.masses
			for _, batch := range []*int32{&a.Score.Cache.Batch, &a.Select.Batch, &a.Attend.Cache.Batch} {
				*batch = tc.batch
			}
			if err := s.DecodeLayer(nil, &a, Workload{131072, int(tc.batch)}); err != nil {
				t.Fatal(err)
			}
			var got []uint32
			for i, l := range d.all {
				got = append(got, l.Grid[0])
				if len(d.all) == 2 && l.Dependent != (i == 1) {
					t.Errorf("launch %d: may start early: %t", i, l.Dependent)
				}
			}
			if diff := cmp.Diff(tc.want, got); diff != "" {
				t.Errorf("%s (-want +got):\n%s", tc.reason, diff)
			}
		})
	}
	s, err := fusedBundle(8).Load(&fakeDevice{info: h200})
	if err != nil {
		t.Fatal(err)
	}
	if bytes, err := s.LayerWorkspaceBytes(s.ProblemOf(1, 8, 100, 1)); err != nil || bytes[1] != 8192 {
		t.Errorf("%v bytes, %v: select's workspace also serves both in one launch", bytes, err)
	}
}

func TestCheckPageSelectAttend(t *testing.T) {
	s, err := fusedBundle(8).Load(&fakeDevice{info: h200})
	if err != nil {
		t.Fatal(err)
	}
	both := func() *PageSelectAttendArgs {
		a := layerArgs()
		return &PageSelectAttendArgs{Select: a.Select, Attend: a.Attend}
	}
	if err := s.CheckPageSelectAttend(both()); err != nil {
		t.Error(err)
	}
	contains(t, "nothing", s.PageSelectAttend(nil, nil, Workload{131072, 1}), PageSelectAttend, "nil")
	for _, tc := range []struct {
		name  string
		spoil func(*PageSelectAttendArgs)
		words []string
	}{
		{"a fault of select", func(a *PageSelectAttendArgs) { a.Select.Scores = 0 }, []string{"page_select", "scores is null"}},
		{"a fault of attend", func(a *PageSelectAttendArgs) { a.Attend.Q = 0 }, []string{"page_attend", "q is null"}},
		{"other lists", func(a *PageSelectAttendArgs) { a.Attend.Counts += 16 }, []string{PageSelectAttend, "attend.pages"}},
		{"other lengths", func(a *PageSelectAttendArgs) { a.Select.SeqLens += 16 }, []string{PageSelectAttend, "attend.cache"}},
	} {
		a := both()
		tc.spoil(a)
		contains(t, tc.name, s.PageSelectAttend(nil, a, Workload{131072, 1}), tc.words...)
	}
}
