package golden

import (
	"fmt"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"unsafe"

	"golang.org/x/tools/txtar"

	"github.com/kvloom/kvloom/gen/plan"
	"github.com/kvloom/kvloom/gen/render"
	"github.com/kvloom/kvloom/runtime/kernel"
	"github.com/kvloom/kvloom/runtime/nvrtc/nvrtctest"
	"github.com/kvloom/kvloom/specs"
)

// property is something that the PTX of some candidates has to show, or must not.
type property struct {
	name, reason string
	of           func(plan.Candidate) bool
	has          string // regular expression
	lacks        bool
}

func family(list ...plan.Family) func(plan.Candidate) bool {
	return func(c plan.Candidate) bool {
		for _, f := range list {
			if c.Family == f {
				return true
			}
		}
		return false
	}
}

func form(f plan.Form) func(plan.Candidate) bool {
	return func(c plan.Candidate) bool { return c.Form == f }
}

// onWarpgroups reports whether a candidate computes with wgmma.
func onWarpgroups(c plan.Candidate) bool {
	return strings.HasSuffix(c.Kernel, "_wgmma") || c.Family == plan.DropObserveScore
}

var properties = []property{
	{name: "registers only", reason: "an array with an index known only at run time goes to local memory, ten times slower",
		of: func(plan.Candidate) bool { return true }, has: `(?m)^\s*\.local\b|\b(ld|st)\.local\b`, lacks: true},
	{name: "tensor cores", reason: "CUDA cores reach a fraction of the bandwidth for groups above four",
		of: func(c plan.Candidate) bool {
			return family(plan.PageScore, plan.PageAttend, plan.PageSummary, plan.DropObserve, plan.DropScore)(c) && !onWarpgroups(c)
		}, has: `mma\.sync\.aligned\.m16n8k16\.row\.col\.f32`},
	{name: "warpgroups", reason: "the form is there for products of 64 tokens", of: onWarpgroups, has: `wgmma\.mma_async\.sync\.aligned\.m64n`},
	{name: "a ring of bulk copies", reason: "one thread brings whole runs of rows, whatever page they come from", of: onWarpgroups, has: `cp\.async\.bulk\.shared`},
	{name: "loads ahead", reason: "keys and values are copied to shared memory while the tile before them is worked on",
		of: func(c plan.Candidate) bool {
			return family(plan.PageAttend, plan.PageSummary, plan.DropObserve)(c) && !onWarpgroups(c)
		}, has: `cp\.async\.cg\.shared\.global`},
	{name: "matrix loads", reason: "fragments of keys and values come by ldmatrix, not by scattered loads",
		of: family(plan.PageAttend), has: `ldmatrix\.sync\.aligned\.m8n8\.x4`},
	{name: "bulk copies", reason: "a candidate with bulk=1 is another kernel than that with bulk=0",
		of: func(c plan.Candidate) bool { return c.Family == plan.PageScore && copiesInBulk(c) }, has: `cp\.async\.bulk\.shared`},
	{name: "bulk copies end", reason: "the copies of a stage are awaited on its mbarrier",
		of: func(c plan.Candidate) bool { return c.Family == plan.PageScore && copiesInBulk(c) }, has: `mbarrier\.try_wait`},
	{name: "clusters", reason: "the blocks of a list exchange sums and histograms through distributed shared memory",
		of: func(c plan.Candidate) bool { return c.Geometry.Cluster > 1 }, has: `barrier\.cluster\.arrive`},
	{name: "dependent launch", reason: "a kernel that starts before the one it depends on has ended has to wait for it",
		of: func(c plan.Candidate) bool { return c.Geometry.Dependent }, has: `griddepcontrol\.wait`},
	{name: "plain instructions", reason: "compute capability 8.0 has none of these",
		of: form(plan.Portable), has: `cp\.async\.bulk|barrier\.cluster|griddepcontrol|wgmma|mbarrier\.try_wait|\.shared::cluster`, lacks: true},
	{name: "portable target", reason: "a GPU that comes later compiles the PTX itself",
		of: form(plan.Portable), has: `(?m)^\.target sm_80\b`},
	{name: "Hopper target", reason: "instructions of sm_90a need its target",
		of: form(plan.Hopper), has: `(?m)^\.target sm_90a\b`},
	{name: "no calls", reason: "a call that is not inlined spills what its callers hold",
		of: func(c plan.Candidate) bool { return !callsRarely[c.Kernel] }, has: `(?m)^\s*call[.\s]`, lacks: true},
}

// argsBytes is what the caller hands over; the kernel's one parameter has that size.
var argsBytes = map[plan.Family]uintptr{
	plan.PageSummary:      unsafe.Sizeof(kernel.PageSummaryArgs{}),
	plan.PageScore:        unsafe.Sizeof(kernel.PageScoreArgs{}),
	plan.PageSelect:       unsafe.Sizeof(kernel.PageSelectArgs{}),
	plan.PageAttend:       unsafe.Sizeof(kernel.PageAttendArgs{}),
	plan.PageSelectAttend: unsafe.Sizeof(kernel.PageSelectAttendArgs{}),
	plan.DropObserve:      unsafe.Sizeof(kernel.DropObserveArgs{}),
	plan.DropScore:        unsafe.Sizeof(kernel.DropScoreArgs{}),
	plan.DropObserveScore: unsafe.Sizeof(kernel.DropObserveScoreArgs{}),
	plan.DropPool:         unsafe.Sizeof(kernel.DropPoolArgs{}),
	plan.DropAllot:        unsafe.Sizeof(kernel.DropAllotArgs{}),
	plan.DropSelect:       unsafe.Sizeof(kernel.DropSelectArgs{}),
	plan.DropPoolSelect:   unsafe.Sizeof(kernel.DropSelectArgs{}),
	plan.DropCompact:      unsafe.Sizeof(kernel.DropCompactArgs{}),
}

// TestPTX compiles what common shapes run by default, and the first bulk candidate of page_score, and looks at the code.
func TestPTX(t *testing.T) {
	for _, name := range []string{
		"llama-3.1-8b",    // group 4: the first speed bars
		"smollm2-135m",    // group 3, head dim 64: the demo
		"qwen2.5-7b-1m",   // group 7
		"glm-4-9b-chat",   // group 16: two n tiles a warp
		"phi-3-mini-128k", // group 1, head dim 96
		"group7-two-bits", // pages of 32: the block form of page_summary; a list a query head, fp16, softcap
	} {
		s, err := specs.Model(name)
		if err != nil {
			if s, err = caseSpec(name); err != nil {
				t.Fatal(err)
			}
		}
		for _, fp := range plan.New(s, plan.Targets["sm_90a"]).Families {
			for _, c := range compiled(fp) {
				t.Run(name+"/"+c.ID(), func(t *testing.T) { checkPTX(t, c) })
			}
		}
	}
}

// caseSpec is the spec of a golden case.
func caseSpec(name string) (*specs.Spec, error) {
	a, err := txtar.ParseFile(filepath.Join("testdata", name+".txtar"))
	if err != nil {
		return nil, err
	}
	for _, f := range a.Files {
		if f.Name == name+".yaml" {
			return specs.Parse(f.Name, f.Data)
		}
	}
	return nil, fmt.Errorf("%s.txtar holds no spec", name)
}

// callsRarely are the kernels that keep the code of rare inputs out of the way of the usual ones, behind a call.
var callsRarely = map[string]bool{"kvloom::page_select_cluster": true, "kvloom::page_select_attend": true, "kvloom::page_select_attend_direct": true, "kvloom::page_score_imma": true}

// copiesInBulk tells the ring form of page_score with bulk copies; its integer form has no such choice.
func copiesInBulk(c plan.Candidate) bool {
	return slices.Contains(c.Params, plan.Param{Name: "bulk", Value: 1})
}

// compiled are the candidates of a family that TestPTX looks at.
func compiled(fp plan.FamilyPlan) []plan.Candidate {
	var list []plan.Candidate
	for _, f := range []plan.Form{plan.Hopper, plan.Portable} {
		if c, ok := fp.DefaultOf(f); ok {
			list = append(list, c)
		}
	}
	for _, c := range fp.Candidates {
		if c.Family == plan.PageScore && copiesInBulk(c) {
			return append(list, c)
		}
	}
	return list
}

func checkPTX(t *testing.T, c plan.Candidate) {
	src, err := render.Candidate(c)
	if err != nil {
		t.Fatal(err)
	}
	m := nvrtctest.Compile(t, src)
	r := m.Resources
	if !r.Known {
		t.Errorf("resources are unknown: %s", m.Log)
	}
	if r.StackBytes+r.SpillStores+r.SpillLoads > 0 {
		t.Errorf("uses local memory: %s", r)
	}
	if most := 65536 / (c.Geometry.Block * c.MinBlocks); r.Registers > most {
		t.Errorf("%d registers a thread; %d blocks of %d threads leave %d", r.Registers, c.MinBlocks, c.Geometry.Block, most)
	}
	for _, broken := range brokenProperties(c, string(m.PTX)) {
		t.Error(broken)
	}
}

// brokenProperties names what the PTX of a candidate should show and does not.
func brokenProperties(c plan.Candidate, ptx string) []string {
	var broken []string
	code := regexp.MustCompile(`(?m)//.*$`).ReplaceAllString(ptx, "")
	for _, p := range properties {
		if !p.of(c) {
			continue
		}
		found := regexp.MustCompile(p.has).FindString(code)
		if p.lacks && found != "" {
			broken = append(broken, fmt.Sprintf("%s: %q in the PTX: %s", p.name, strings.TrimSpace(found), p.reason))
		} else if !p.lacks && found == "" {
			broken = append(broken, fmt.Sprintf("%s: nothing in the PTX matches %s: %s", p.name, p.has, p.reason))
		}
	}
	want := fmt.Sprintf(".param .align 8 .b8 %s_param_0[%d]", c.Entry, argsBytes[c.Family])
	if !strings.Contains(code, want) || strings.Contains(code, c.Entry+"_param_1") {
		broken = append(broken, fmt.Sprintf("parameters: want one alone, %s", want))
	}
	return broken
}

// TestBrokenProperties checks that the properties can fail, on PTX that has the faults.
func TestBrokenProperties(t *testing.T) {
	s, err := specs.Model("llama-3.1-8b")
	if err != nil {
		t.Fatal(err)
	}
	attend := plan.ForFamily(plan.PageAttend, s, plan.Targets["sm_90a"])
	hopper, _ := attend.DefaultOf(plan.Hopper)
	portable, _ := attend.DefaultOf(plan.Portable)
	good := ".target sm_90a\n.param .align 8 .b8 page_attend_param_0[" + fmt.Sprint(argsBytes[plan.PageAttend]) + "]\n" +
		"mma.sync.aligned.m16n8k16.row.col.f32.bf16\ncp.async.cg.shared.global\nldmatrix.sync.aligned.m8n8.x4\ngriddepcontrol.wait;\nbarrier.cluster.arrive.relaxed.aligned;\n"
	for _, tt := range []struct {
		name, ptx string
		c         plan.Candidate
		want      string // of the first broken property; empty: none
	}{
		{"sound", good, hopper, ""},
		{"spilled", good + "\t.local .align 16 .b8 __local_depot0[64];\n", hopper, "registers only"},
		{"stores to local memory", good + "\tst.local.f32 [%rd1], %f1;\n", hopper, "registers only"},
		{"no tensor cores", strings.ReplaceAll(good, "mma.sync", "fma.rn"), hopper, "tensor cores"},
		{"instruction in a comment alone", strings.ReplaceAll(good, "griddepcontrol", "// griddepcontrol"), hopper, "dependent launch"},
		{"Hopper code in a portable kernel", strings.ReplaceAll(good, "sm_90a", "sm_80"), portable, "plain instructions"},
		{"a call", good + "\tcall.uni (retval0), helper, (param0);\n", hopper, "no calls"},
		{"another struct", strings.ReplaceAll(good, "param_0[", "param_0[1"), hopper, "parameters"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			got := append(brokenProperties(tt.c, tt.ptx), "")[0]
			if name, _, _ := strings.Cut(got, ":"); name != tt.want {
				t.Errorf("got %q, want %q broken", got, tt.want)
			}
		})
	}
}
