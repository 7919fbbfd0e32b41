package kernel

import (
	"bytes"
	"strings"
	"testing"
	"unsafe"

	"github.com/google/go-cmp/cmp"

	"github.com/kvloom/kvloom/internal/launch"
	"github.com/kvloom/kvloom/runtime/device"
)

func cacheArgs() KVCache {
	return KVCache{K: 0x1000, V: 0x2000, BlockTable: 0x3000, SeqLens: 0x4000, KBlockStride: 16384, KTokenStride: 1024, KHeadStride: 128,
		VBlockStride: 16384, VTokenStride: 1024, VHeadStride: 128, TableStride: 100, Batch: 2, KVHeads: 8, MaxPages: 100}
}

func summaryArgs() PageSummaryArgs {
	return PageSummaryArgs{Cache: cacheArgs(), Summaries: 0x5000, BuiltLens: 0x6000, Workspace: 0x7000, SummaryBlockStride: 8 * 496, SummaryHeadStride: 496}
}

func scoreArgs() PageScoreArgs {
	return PageScoreArgs{Cache: cacheArgs(), Q: 0x5000, Summaries: 0x6000, Scores: 0x7000, Workspace: 0x8000, QBatchStride: 4096, QHeadStride: 128,
		SummaryBlockStride: 8 * 496, SummaryHeadStride: 496, ScoreBatchStride: 3200, ScoreHeadStride: 100, SoftmaxScale: 0.0884}
}

func selectArgs() PageSelectArgs {
	return PageSelectArgs{Scores: 0x1000, SeqLens: 0x2000, Pages: 0x3000, Counts: 0x4000, Workspace: 0x5000, ScoreBatchStride: 3200, ScoreHeadStride: 100,
		PagesBatchStride: 1024, PagesListStride: 128, Batch: 2, KVHeads: 8, MaxPages: 100, Slots: 128, SinkPages: 1, RecentPages: 1}
}

func attendArgs() PageAttendArgs {
	return PageAttendArgs{Cache: cacheArgs(), Q: 0x5000, Pages: 0x6000, Counts: 0x7000, Out: 0x8000, Workspace: 0x9000, QBatchStride: 4096, QHeadStride: 128,
		OutBatchStride: 4096, OutHeadStride: 128, PagesBatchStride: 1024, PagesListStride: 128, SoftmaxScale: 0.0884, Slots: 128}
}

func TestLookup(t *testing.T) {
	b := testBundle()
	for _, tc := range []struct {
		name, reason string
		w            Workload
		grade        Grade
		warps        int
		says         string
	}{
		{"tuned", "the very workload", Workload{131072, 1}, Exact, 12, "tuned for context 131072, batch 1"},
		{"same bucket", "65537 to 131072 share a power of two", Workload{100000, 1}, Bucket, 12, "one bucket"},
		{"batch bucket", "9 to 16 requests", Workload{5000, 9}, Bucket, 2, "one bucket"},
		{"nearest", "one octave of context and one of batch from the second, more from the first", Workload{16384, 8}, Nearest, 2, "nearest to context 16384, batch 8 is 8192, 16"},
		{"nearest across", "5 octaves of batch rule the second out", Workload{32768, 1}, Nearest, 12, "is 131072, 1"},
		{"far", "17 octaves away is no neighbour", Workload{1, 1}, DefaultUsed, 8, "within a factor of 16"},
		{"nonsense", "zero counts as one and must not divide", Workload{0, 0}, DefaultUsed, 8, "default"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			a, err := b.Lookup(PageScore, tc.w)
			if err != nil {
				t.Fatal(err)
			}
			if a.Grade != tc.grade || a.Kernel.Params[0].Value != tc.warps || !strings.Contains(a.Reason, tc.says) {
				t.Errorf("%s: got %v %s (%s), want %v warps=%d (%s)", tc.reason, a.Grade, a.Kernel.ID(), a.Reason, tc.grade, tc.warps, tc.says)
			}
		})
	}
	a, err := b.Lookup(PageSelect, Workload{1000, 1})
	if err != nil || a.Grade != DefaultUsed || !strings.Contains(a.Reason, "was not tuned") {
		t.Errorf("untuned family: %+v, %v", a, err)
	}
	_, err = b.Lookup("page_scare", Workload{})
	contains(t, "unknown work", err, "page_scare")
}

// TestUntunedWorkloads: without a tuned choice near, a workload gets the default of the nearest that has its own, and its workspace.
func TestUntunedWorkloads(t *testing.T) {
	b := testBundle()
	k := b.Kernels[b.Works[2].Default] // of page_select
	k.Params, k.SourceHash = []Param{{"warps", 16}}, "own"
	k.Geometry.Workspace = []launch.Extent{launch.Const(1 << 20)}
	b.Kernels = append(b.Kernels, k)
	b.Works[2].Defaults = []Default{{Workload{131072, 1}, len(b.Kernels) - 1}}
	file, err := b.Encode()
	if err != nil {
		t.Fatal(err)
	}
	if b, err = decode(file); err != nil {
		t.Fatal(err)
	}
	dev := &fakeDevice{info: h200}
	s, err := b.Load(dev)
	if err != nil {
		t.Fatal(err)
	}
	for _, tc := range []struct {
		reason string
		w      Workload
		warps  int
	}{
		{"its own", Workload{131072, 1}, 16},
		{"near", Workload{100000, 2}, 16},
		{"5 octaves of batch away", Workload{131072, 32}, 8},
	} {
		a, err := s.Lookup(PageSelect, tc.w)
		if err != nil || a.Grade != DefaultUsed || a.Kernel.Params[0].Value != tc.warps {
			t.Errorf("%s: got %v %+v, %v, want the default with %d warps", tc.reason, a.Grade, a.Kernel, err, tc.warps)
		}
		if got := b.Kernels[s.pick(s.works[selectWork], tc.w)].Params[0].Value; got != tc.warps {
			t.Errorf("%s: a launch takes %d warps, want %d", tc.reason, got, tc.warps)
		}
	}
	if n, err := s.WorkspaceBytes(PageSelect, s.ProblemOf(1, 8, 100, 1)); err != nil || n < 1<<20 {
		t.Errorf("the workspace has %d bytes (%v), the largest default needs %d", n, err, 1<<20)
	}
	b.Works[2].Defaults = append(b.Works[2].Defaults, b.Works[2].Defaults[0])
	_, err = b.Encode()
	contains(t, "a workload twice", err, "stands there twice")
	b.Works[2].Defaults = []Default{{Workload{1, 1}, 0}}
	_, err = b.Encode()
	contains(t, "another family's kernel", err, "the default for {1 1}", "is a kernel of page_summary")
}

func TestLoadPicksCode(t *testing.T) {
	a100, gh200, mig := h200, h200, h200
	a100.Name, a100.Major, a100.SMs = "NVIDIA A100", 8, 108
	gh200.Name = "NVIDIA GH200 480GB"
	mig.Name, mig.SMs = "NVIDIA H200 MIG 1g.18gb", 16
	simulator := h200
	simulator.Backend, simulator.Name = "sim", "kvloom simulator"
	for _, tc := range []struct {
		name, reason string
		info         device.Info
		refuse       string
		image        string
		grade        Grade
		inherited    bool
		warning      string
	}{
		{"same GPU", "the cubin, without a word", h200, "", "\x7fELF page_score 12", Exact, false, ""},
		{"other GPU, same architecture (C8)", "choices carry over, and say so", gh200, "", "\x7fELF page_score 12", Exact, true, "inherited"},
		{"a slice (C8)", "16 of 132 SMs are another GPU", mig, "", "\x7fELF page_score 12", Exact, true, "inherited"},
		{"other architecture", "the portable PTX", a100, "", "ptx page_score portable 4", Fallback, false, "portable kernels run"},
		{"simulator", "PTX, for it runs no cubin", simulator, "", "ptx page_score hopper 12", Exact, true, ""},
		{"simulator without Hopper", "what it cannot run it replaces", simulator, "hopper", "ptx page_score portable 4", Fallback, false, "the simulator cannot run the tuned form"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			d := &fakeDevice{info: tc.info, refuse: tc.refuse}
			s := load(t, d)
			args := scoreArgs()
			if err := s.PageScore(nil, &args, Workload{131072, 1}); err != nil {
				t.Fatal(err)
			}
			if d.entry != tc.image {
				t.Errorf("%s: %q runs, want %q", tc.reason, d.entry, tc.image)
			}
			a, err := s.Lookup(PageScore, Workload{131072, 1})
			if err != nil || a.Grade != tc.grade || a.Inherited != tc.inherited || a.Reason == "" {
				t.Errorf("%s: %+v, %v", tc.reason, a, err)
			}
			if got := strings.Join(s.Warnings(), "\n"); (tc.warning == "") != (got == "") || !strings.Contains(got, tc.warning) {
				t.Errorf("%s: warnings %q, want %q", tc.reason, got, tc.warning)
			}
		})
	}
}

func TestLoadErrors(t *testing.T) {
	_, err := testBundle().Load(&fakeDevice{info: h200, refuse: "ELF"})
	contains(t, "driver too old (C11)", err, "page_summary hopper warps=8", "PTX 9.0 needs a driver of CUDA 13.0 or newer, this one has CUDA 12.4")
	v100 := h200
	v100.Name, v100.Major = "Tesla V100", 7
	_, err = testBundle().Load(&fakeDevice{info: v100})
	contains(t, "too old a GPU", err, "compute_80", "sm_70 does not run")
}

func TestArchitectures(t *testing.T) {
	for _, tc := range []struct {
		arch         string
		major, minor int
		cubin, ptx   bool
	}{
		{"sm_90a", 9, 0, true, true}, {"sm_90a", 10, 0, false, false}, {"sm_90", 9, 0, true, true}, {"sm_90", 10, 0, false, true},
		{"sm_80", 8, 6, true, true}, {"sm_86", 8, 0, false, false}, {"compute_80", 12, 0, false, true}, {"sm_120a", 12, 0, true, true},
		{"sm_103", 10, 3, true, true}, {"", 9, 0, false, false}, {"sm_", 9, 0, false, false}, {"sm_9x", 9, 0, false, false},
	} {
		if got := cubinRuns(tc.arch, tc.major, tc.minor); got != tc.cubin {
			t.Errorf("cubin of %q on %d.%d: %v", tc.arch, tc.major, tc.minor, got)
		}
		if got := ptxRuns(tc.arch, tc.major, tc.minor); got != tc.ptx {
			t.Errorf("PTX of %q on %d.%d: %v", tc.arch, tc.major, tc.minor, got)
		}
	}
}

func TestLaunchGeometryAndArguments(t *testing.T) {
	d := &fakeDevice{info: h200}
	s := load(t, d)
	args := scoreArgs()
	if err := s.PageScore(nil, &args, Workload{131072, 1}); err != nil {
		t.Fatal(err)
	}
	want := device.Launch{Grid: [3]uint32{132 * 12, 2, 1}, Block: [3]uint32{384, 1, 1}, Cluster: [3]uint32{1, 1, 1}, DynamicShared: 12000}
	if diff := cmp.Diff(want, d.last); diff != "" {
		t.Errorf("launch (-want +got):\n%s", diff)
	}
	if !bytes.Equal(d.args, unsafe.Slice((*byte)(unsafe.Pointer(&args)), unsafe.Sizeof(args))) {
		t.Error("the arguments are not the caller's struct")
	}
	dense := attendArgs()
	dense.Pages, dense.Counts = 0, 0
	if err := s.PageAttend(nil, &dense, Workload{1600, 2}); err != nil {
		t.Fatal(err)
	}
	if got := s.Stats(); got[4].Work != Dense || got[4].Counts[DefaultUsed] != 1 || got[4].LastMiss != (Workload{1600, 2}) {
		t.Errorf("dense attention is counted apart: %+v", got)
	}
	if got := s.Stats()[1]; got.Counts[Exact] != 1 || got.LastMiss != (Workload{}) {
		t.Errorf("an exact answer is no miss: %+v", got)
	}
	args.Workspace = 0
	contains(t, "no workspace", s.PageScore(nil, &args, Workload{131072, 1}), "workspace is null")
	args = scoreArgs()
	args.Cache.Batch, args.Cache.TableStride = 70000, 100
	contains(t, "batch beyond the grid", s.PageScore(nil, &args, Workload{131072, 1}), "70000 blocks along axis 1")
}

func TestLaunchAllocatesNothing(t *testing.T) {
	d := &fakeDevice{info: h200}
	s := load(t, d)
	score, sel, att, sum, layer := scoreArgs(), selectArgs(), attendArgs(), summaryArgs(), layerArgs()
	w := Workload{100001, 1} // not exact: the longer way
	for _, tc := range []struct {
		name   string
		launch func() error
	}{
		{PageSummary, func() error { return s.PageSummary(nil, &sum, w, 1) }},
		{PageScore, func() error { return s.PageScore(nil, &score, w) }},
		{PageSelect, func() error { return s.PageSelect(nil, &sel, w) }},
		{PageAttend, func() error { return s.PageAttend(nil, &att, w) }},
		{Layer, func() error { return s.DecodeLayer(nil, &layer, w) }},
	} {
		n := testing.AllocsPerRun(1000, func() {
			if err := tc.launch(); err != nil {
				t.Fatal(err)
			}
		})
		if n != 0 && !raceEnabled {
			t.Errorf("%s allocates %v times a launch", tc.name, n)
		}
	}
}

func TestSizes(t *testing.T) {
	s := load(t, &fakeDevice{info: h200})
	// 12 warps is the largest of page_score's kernels: 4 * 12 bytes for each of 2 requests and 8 lists, rounded up to 256.
	n, err := s.WorkspaceBytes(PageScore, s.ProblemOf(2, 8, 100, 1))
	if n != 768 || err != nil {
		t.Errorf("workspace %d, %v", n, err)
	}
	if _, err := s.WorkspaceBytes("page_scare", s.ProblemOf(2, 8, 100, 1)); err == nil {
		t.Error("a workspace for nothing")
	}
	if got := s.Model().SummaryBytes(1<<20, 8); got != 496*8<<20 {
		t.Errorf("summaries of 2^20 blocks take %d bytes; more than 2^31 must not wrap", got)
	}
	m := s.Model()
	if m.Lists(8) != 8 || m.Group() != 4 {
		t.Errorf("lists %d, group %d", m.Lists(8), m.Group())
	}
	m.Combine = "per_head"
	if m.Lists(2) != 8 {
		t.Errorf("per_head has a list a query head: %d of 2 KV heads", m.Lists(2))
	}
}

func BenchmarkPageScore(b *testing.B) {
	s, err := testBundle().Load(&fakeDevice{info: h200})
	if err != nil {
		b.Fatal(err)
	}
	args := scoreArgs()
	b.ReportAllocs()
	for b.Loop() {
		if err := s.PageScore(nil, &args, Workload{131072, 1}); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkOpen(b *testing.B) {
	bundle := testBundle()
	for i := range bundle.Kernels {
		bundle.Kernels[i].PTX = append(bundle.Kernels[i].PTX, make([]byte, 200<<10)...)
		bundle.Kernels[i].PTX[100] = byte(i)
	}
	file := b.TempDir() + "/x.kvloom"
	if err := bundle.Write(file); err != nil {
		b.Fatal(err)
	}
	for b.Loop() {
		if _, err := Open(file); err != nil {
			b.Fatal(err)
		}
	}
}

func TestExpect(t *testing.T) {
	b := testBundle()
	keys := map[string]string{PageSummary: "d128", PageScore: "d128", PageSelect: "d128", PageAttend: "d128"}
	if err := b.Expect("test", b.Model, keys); err != nil {
		t.Errorf("the bundle's own figures: %v", err)
	}
	other := b.Model
	other.PageSize = 32
	contains(t, "page size (M4)", b.Expect("test", other, keys), "PageSize:16", "not", "PageSize:32")
	contains(t, "spec", b.Expect("toast", b.Model, keys), `spec "test", not "toast"`, "kvloom gen")
	keys[PageScore] = "d64"
	err := b.Expect("test", b.Model, keys)
	contains(t, "key", err, `page_score for "d128", not "d64"`)
	if strings.Count(err.Error(), "page_score") != 1 {
		t.Errorf("each difference once: %v", err)
	}
}
