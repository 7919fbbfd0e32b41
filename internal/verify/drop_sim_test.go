package verify

import (
	"slices"
	"testing"

	"github.com/kvloom/kvloom/gen/plan"
	"github.com/kvloom/kvloom/gen/render"
	"github.com/kvloom/kvloom/internal/launch"
	"github.com/kvloom/kvloom/runtime/nvrtc/nvrtctest"
	"github.com/kvloom/kvloom/runtime/sim"
	"github.com/kvloom/kvloom/specs"
)

// dropShape is one shape of the DropKV families.
type dropShape struct {
	name, reason             string
	dim, page, group, window int
	dtype, rule              string
	change                   func(*specs.Spec)
	cases                    []string // nil: all
}

func (d dropShape) spec() *specs.Spec {
	kvHeads := 2
	if d.group > 16 {
		kvHeads = 1 // time
	}
	s := selectSpec(d.group, kvHeads, d.page, "share_average")
	s.Attention.HeadDim, s.Attention.SoftmaxScale, s.Cache.DType = d.dim, 0.1, d.dtype
	s.DropKV = specs.DropKV{Rule: d.rule, Window: d.window, Pool: specs.Pool{Kind: "max", Width: 11}, Budget: specs.Budget{Ratio: 0.3},
		HeadBudgets: specs.HeadBudgets{Kind: "uniform"}, Precision: "exact", Eps: 1e-6}
	if d.change != nil {
		d.change(s)
	}
	return s
}

var (
	fast    = func(s *specs.Spec) { s.DropKV.Precision = "fast" }
	softcap = func(s *specs.Spec) { s.Attention.LogitSoftcap = 30 }
	few     = []string{"ragged tail", "around the window", "dominant token", "replayed at other lengths"}
)

// dropShapes differ in every compile-time constant of the kernels over K and V.
var dropShapes = []dropShape{
	{"llama", "the first speed bar's shape", 128, 16, 4, 8, "bf16", "dropkv", nil, nil},
	{"d64 g7 w8", "the second bar's group, 14 over 2 heads (D2)", 64, 16, 7, 8, "bf16", "dropkv", nil, few},
	{"d80 fp16", "a tail of 16 dims, two parts of a", 80, 4, 3, 5, "fp16", "dropkv", nil, few},
	{"d96 capped", "a softcap", 96, 8, 5, 8, "bf16", "dropkv", softcap, few},
	{"d112 fast", "a in the cache's type", 112, 32, 1, 1, "bf16", "dropkv", fast, few},
	{"d192 g16", "rows that take turns in a portable block", 192, 16, 16, 8, "bf16", "dropkv", nil, []string{"ragged tail", "dominant token"}},
	{"d256 w64", "the widest head and window", 256, 128, 2, 64, "fp16", "dropkv", fast, []string{"ragged tail", "around the window"}},
	{"d64 g64", "the largest group: 512 rows", 64, 64, 64, 8, "bf16", "dropkv", nil, []string{"ragged tail"}},
	{"snapkv", "weights alone", 128, 16, 4, 8, "bf16", "snapkv", nil, few},
	{"value_norm", "weights and norms of values", 80, 16, 4, 8, "bf16", "value_norm", nil, few},
	{"keydiff", "no queries", 112, 16, 4, 8, "fp16", "keydiff", nil, nil},
	{"fp8", "elements of 8 bits", 128, 16, 4, 8, specs.FP8, "dropkv", nil, append([]string{"values not finite", "contiguous"}, few...)},
	{"fp8 d80 fast, capped", "a tail of 16 dims, a in bf16", 80, 4, 3, 5, specs.FP8, "dropkv", func(s *specs.Spec) { fast(s); softcap(s) }, few[:3]},
	{"fp8 value_norm", "norms in units of the scale", 64, 16, 7, 8, specs.FP8, "value_norm", nil, few[:2]},
	{"fp8 keydiff", "directions need no scale", 96, 16, 4, 8, specs.FP8, "keydiff", nil, few[:2]},
}

// onePerForm are the first candidates of both forms.
func onePerForm(t *testing.T, f plan.Family, s *specs.Spec) (list []plan.Candidate) {
	t.Helper()
	fp := plan.ForFamily(f, s, plan.Targets["sm_90a"])
	for _, form := range []plan.Form{plan.Hopper, plan.Portable} {
		c, ok := fp.DefaultOf(form)
		if !ok {
			t.Fatalf("%s: no %s candidate: %v", f, form, fp.Rejected)
		}
		list = append(list, c)
	}
	return list
}

// onDropShapes runs the PTX of both forms of a family on the simulator, every case of the first shape and some of the others.
func onDropShapes(t *testing.T, f plan.Family, shapes []dropShape) {
	for _, d := range shapes {
		t.Run(d.name, func(t *testing.T) {
			s := d.spec()
			onSimulator(t, s, d.reason, onePerForm(t, f, s), d.cases)
		})
	}
}

// noSpills compiles the default of each form for every shape: they keep everything in registers.
func noSpills(t *testing.T, f plan.Family, shapes []dropShape) {
	for _, d := range shapes {
		for _, c := range onePerForm(t, f, d.spec()) {
			src, err := render.Candidate(c)
			if err != nil {
				t.Fatal(err)
			}
			if r := nvrtctest.Compile(t, src).Resources; r.SpillStores+r.SpillLoads+r.StackBytes > 0 {
				t.Errorf("%s (%s, %s): %s", c.ID(), d.name, d.reason, r)
			}
		}
	}
}

func TestDropScoreOnSimulator(t *testing.T) {
	t.Parallel()
	onDropShapes(t, plan.DropScore, dropShapes)
}

// TestDropScoreHeldOnSimulator gives a head one block and few scores to hold, so that short prompts fill the buffer as long ones do.
func TestDropScoreHeldOnSimulator(t *testing.T) {
	d := dropShape{"fast", "scores written whenever the buffer is full", 128, 16, 4, 8, "bf16", "dropkv", fast, few}
	s := d.spec()
	candidates := chosenBy(plan.DropScore, s, func(c plan.Candidate) bool { return c.Kernel == "kvloom::drop_score_wgmma" && c.Param("groups") != 2 })
	held := func(k plan.Constant) bool { return k.Name == "kHeld" }
	for i := range candidates {
		c := &candidates[i]
		c.Constants = slices.Clone(c.Constants)
		at := slices.IndexFunc(c.Constants, held)
		if at < 0 {
			t.Fatalf("%s holds no scores: %v", c.ID(), c.Constants)
		}
		c.Constants[at].Value = "1"
		c.Geometry.Grid[0] = launch.Const(1)
	}
	candidates = slices.CompactFunc(candidates, func(a, b plan.Candidate) bool { return a.Param("groups") == b.Param("groups") })
	onSimulator(t, s, d.reason, candidates, d.cases)
}

func TestDropScoreResources(t *testing.T) { noSpills(t, plan.DropScore, dropShapes) }

// manyHeads leave each head so little of the scratch that clusters of blocks take turns at it.
var manyHeads = dropShape{"16 heads", "one part of the workspace for four clusters", 128, 16, 8, 8, "bf16", "dropkv", func(s *specs.Spec) {
	s.Attention.KVHeads, s.Attention.QueryHeads = 16, 128
}, []string{"33 pages"}}

func TestDropObserveOnSimulator(t *testing.T) {
	t.Parallel()
	onDropShapes(t, plan.DropObserve, append(slices.Clone(dropShapes), manyHeads))
}

func TestDropObserveResources(t *testing.T) { noSpills(t, plan.DropObserve, dropShapes) }

// fusedShapes differ in every compile-time constant of drop_observe_score.
var fusedShapes = []dropShape{
	{"llama", "the shape of the fused bar", 128, 16, 4, 8, "bf16", "dropkv", fast, nil},
	{"d64 g7 fp16", "56 rows, a softcap, pages of a fragment of a run", 64, 4, 7, 8, "fp16", "dropkv", func(s *specs.Spec) { fast(s); softcap(s) }, append([]string{"rising logits"}, few...)},
	{"g1 w5", "5 rows of 8, pages longer than a tile", 128, 128, 1, 5, "bf16", "dropkv", fast, append([]string{"rising logits", "values not finite"}, few...)},
}

// fusedCandidates are the first one and one that keeps no logits.
func fusedCandidates(s *specs.Spec) []plan.Candidate {
	list := plan.ForFamily(plan.DropObserveScore, s, plan.Targets["sm_90a"]).Candidates
	return []plan.Candidate{list[0], list[slices.IndexFunc(list, func(c plan.Candidate) bool { return c.Param("keep") == 0 })]}
}

func TestDropObserveScoreOnSimulator(t *testing.T) {
	t.Parallel()
	for _, d := range fusedShapes {
		t.Run(d.name, func(t *testing.T) { onSimulator(t, d.spec(), d.reason, fusedCandidates(d.spec()), d.cases) })
	}
}

func TestDropObserveScoreResources(t *testing.T) {
	for _, d := range fusedShapes {
		for _, c := range fusedCandidates(d.spec()) {
			src, err := render.Candidate(c)
			if err != nil {
				t.Fatal(err)
			}
			if r := nvrtctest.Compile(t, src).Resources; r.SpillStores+r.SpillLoads+r.StackBytes > 0 {
				t.Errorf("%s (%s): %s", c.ID(), d.name, r)
			}
		}
	}
}

// valueShapes differ in what the families over token values depend on.
var valueShapes = []dropShape{
	{"max 11", "the defaults", 64, 16, 4, 8, "bf16", "dropkv", nil, nil},
	{"avg 7", "an average, sinks", 64, 16, 4, 3, "bf16", "snapkv", func(s *specs.Spec) { s.DropKV.Pool, s.DropKV.SinkTokens = specs.Pool{Kind: "avg", Width: 7}, 4 }, nil},
	{"none", "no pool, one query", 64, 4, 4, 1, "bf16", "dropkv", func(s *specs.Spec) { s.DropKV.Pool = specs.Pool{Kind: "none", Width: 1} }, nil},
	{"max 63", "the widest pool and window", 64, 128, 4, 64, "bf16", "dropkv", func(s *specs.Spec) { s.DropKV.Pool.Width = 63 }, nil},
}

func TestDropPoolOnSimulator(t *testing.T) { onDropShapes(t, plan.DropPool, valueShapes) }

func TestDropSelectOnSimulator(t *testing.T) {
	t.Parallel()
	onDropShapes(t, plan.DropSelect, append(valueShapes[:2:2], dropShape{"streaming", "no values", 64, 16, 4, 8, "bf16", "streaming", nil, nil}))
}

func TestDropPoolSelectOnSimulator(t *testing.T) {
	t.Parallel()
	average, widest := valueShapes[1], valueShapes[3]
	average.cases, widest.cases = []string{"random", "not finite", "negative"}, []string{"random", "steps", "replayed at other lengths"}
	onDropShapes(t, plan.DropPoolSelect, []dropShape{valueShapes[0], average, widest})
}

func TestDropAllotOnSimulator(t *testing.T) {
	t.Parallel()
	onDropShapes(t, plan.DropAllot, valueShapes[:2])
}

func TestDropCompactOnSimulator(t *testing.T) {
	onDropShapes(t, plan.DropCompact, []dropShape{dropShapes[0],
		{"d80 p4", "ten pieces a row", 80, 4, 1, 8, "fp16", "dropkv", nil, nil},
		{"fp8", "five pieces a row, strides of 16 elements", 80, 16, 1, 8, specs.FP8, "dropkv", nil, []string{"mixed lengths", "contiguous", "shared prefix"}},
		{"d256 p128", "the widest head, the longest page", 256, 128, 1, 8, "bf16", "dropkv", nil, []string{"mixed lengths", "contiguous", "shared prefix"}}})
}

// TestDropSanitized runs every family under the simulator's sanitizer, warps in random order: no races, nothing read before it is
// written.
func TestDropSanitized(t *testing.T) {
	t.Parallel()
	dev, err := sim.New(sim.Config{Sanitize: true, Schedule: "random:7"})
	if err != nil {
		t.Fatal(err)
	}
	l := NewLoader(t.Context(), dev, nvrtctest.Compiler(t))
	e := NewEnv(dev, l.Compile)
	s := dropShapes[0].spec()
	for f, name := range map[plan.Family]string{plan.DropObserve: "ragged tail", plan.DropScore: "ragged tail", plan.DropCompact: "contiguous",
		plan.DropPool: "random", plan.DropSelect: "steps", plan.DropPoolSelect: "steps", plan.DropAllot: "steps"} {
		for _, c := range onePerForm(t, f, s) {
			results, err := Check(t.Context(), e, s, c, Options{Only: name, Seed: 1, Workloads: "small"})
			if err != nil {
				t.Fatal(err)
			}
			for _, r := range results {
				if !r.OK() {
					t.Errorf("%s, %s: %s", c.ID(), r.Case, r.Failure)
				}
			}
		}
	}
	if err := e.Close(); err != nil {
		t.Error(err)
	}
	if err := l.Unload(); err != nil {
		t.Error(err)
	}
}

// TestDropChainOnSimulator runs eviction as one graph: every rule, adaptive budgets, fast outputs.
func TestDropChainOnSimulator(t *testing.T) {
	adaptive := func(s *specs.Spec) { s.DropKV.HeadBudgets = specs.HeadBudgets{Kind: "adaptive", Floor: 0.2} }
	cases := []string{"ragged tail", "real keys", "replayed at other lengths", "around the window", "wide logits"}
	for _, d := range []dropShape{
		{"dropkv", "the paper's rule", 64, 16, 3, 8, "bf16", "dropkv", nil, cases},
		{"adaptive", "AdaDropKV", 64, 16, 3, 8, "bf16", "dropkv", adaptive, cases[:2]},
		{"fast", "outputs in bf16", 128, 16, 4, 8, "bf16", "dropkv", fast, cases[:2]},
		{"snapkv", "weights", 64, 8, 2, 5, "fp16", "snapkv", nil, cases[:2]},
		{"value_norm", "norms", 64, 16, 3, 8, "bf16", "value_norm", nil, cases[:2]},
		{"keydiff", "no queries", 64, 16, 3, 8, "bf16", "keydiff", nil, cases[:2]},
		{"streaming", "no scores", 64, 16, 3, 8, "bf16", "streaming", nil, cases[:2]},
		{"fp8", "elements of 8 bits", 64, 16, 3, 8, specs.FP8, "dropkv", nil, cases[:2]},
	} {
		t.Run(d.name, func(t *testing.T) {
			s := specs.New("test", 2*d.group, 2, d.dim) // a plan of every family needs all of a spec
			s.Cache, s.DropKV, s.Locks.SummaryTokens = d.spec().Cache, d.spec().DropKV, d.page
			links, ok := DropChainCandidates(plan.New(s, plan.Targets["sm_90a"]), "")
			if !ok {
				t.Fatal("no candidates")
			}
			dev, err := sim.New(sim.Config{})
			if err != nil {
				t.Fatal(err)
			}
			l := NewLoader(t.Context(), dev, nvrtctest.Compiler(t))
			e := NewEnv(dev, l.Compile)
			for _, name := range d.cases {
				results := CheckDropChain(t.Context(), e, s, "chain", links, Options{Only: name, Seed: 1, Workloads: "small"})
				if len(results) == 0 {
					t.Errorf("%s: nothing was checked", name)
				}
				for _, r := range results {
					if !r.OK() {
						t.Errorf("%s, %s: %s", r.Case, r.Metric, r.Failure)
					}
				}
			}
			if err := e.Close(); err != nil {
				t.Error(err)
			}
		})
	}
}
