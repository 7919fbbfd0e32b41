// Package plan turns a spec and a target into every kernel candidate worth trying, and every rejected one with its reason.
// One file per family holds its parameters, constraints, launch geometry and byte/flop model.
package plan

import (
	"fmt"
	"slices"
	"strings"

	"github.com/kvloom/kvloom/internal/launch"
	"github.com/kvloom/kvloom/specs"
)

// Family is a kernel family; its name is the stem of the template, the binding, the reference and the tests.
type Family string

// The Locks families, in the order of a decode step after the build.
const (
	PageSummary Family = "page_summary"
	PageScore   Family = "page_score"
	PageSelect  Family = "page_select"
	PageAttend  Family = "page_attend"
	PageRerank  Family = "page_rerank" // between select and attend, where locks.rerank is above 1
)

// Form tells a Hopper kernel (sm_90a) from the portable one (compute_80 PTX).
type Form string

// The forms.
const (
	Hopper   Form = "hopper"
	Portable Form = "portable"
)

// Target is what the plan may assume of a GPU.
type Target struct {
	Arch           string // "sm_90a", as NVRTC spells it
	SharedPerBlock int    // bytes, with opt-in
	RegistersPerSM int
	SMs            int
}

// Targets are the known architectures.
var Targets = map[string]Target{
	"sm_90a": {Arch: "sm_90a", SharedPerBlock: 227 << 10, RegistersPerSM: 65536, SMs: 132},
	"sm_90":  {Arch: "sm_90", SharedPerBlock: 227 << 10, RegistersPerSM: 65536, SMs: 132},
	"sm_80":  {Arch: "sm_80", SharedPerBlock: 163 << 10, RegistersPerSM: 65536, SMs: 108},
}

// PortableArch is what portable candidates are compiled for.
const PortableArch = "compute_80"

// Constant is one compile-time constant of a kernel, and template argument, in the order of the template's parameters.
type Constant struct {
	Name  string `json:"name"`  // as in the template: "HEAD_DIM", "kNumWarps"
	Value string `json:"value"` // C++ spelling: "128", "true", "kvloom::bf16"
}

// Param is one tunable parameter of a candidate.
type Param struct {
	Name  string `json:"name"` // "warps", "stages"
	Value int    `json:"value"`
}

// Candidate is one kernel that could serve a family: what to compile and how to launch it.
type Candidate struct {
	Family Family `json:"family"`
	Form   Form   `json:"form"`
	Arch   string `json:"arch"`
	// Key names what the kernel was specialised for, tuned parameters left out: two candidates with one Key compute the same
	// function. "d128 p16 r4 b4 g4 bf16 record".
	Key       string          `json:"key"`
	Params    []Param         `json:"params"`    // the tuner's choice, fixed order
	Constants []Constant      `json:"constants"` // template arguments, in order
	Header    string          `json:"header"`    // "kernels/page_score.cuh"
	Kernel    string          `json:"kernel"`    // C++ template: "kvloom::page_score_direct"
	Entry     string          `json:"entry"`     // extern "C" name: the family's stem
	Geometry  launch.Geometry `json:"geometry"`
	MinBlocks int             `json:"min_blocks"` // blocks an SM that __launch_bounds__ keeps registers low for, at least 1
	First     *First          `json:"first,omitempty"`
}

// First is what the first of two kernels is made of; its geometry is Geometry.First.
type First struct {
	Kernel    string     `json:"kernel"`
	Constants []Constant `json:"constants"`
}

// ID names the candidate on one line, its parameters in order: "page_score portable warps=8 stages=2".
func (c Candidate) ID() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s %s", c.Family, c.Form)
	for _, p := range c.Params {
		fmt.Fprintf(&b, " %s=%d", p.Name, p.Value)
	}
	return b.String()
}

// Param returns a parameter by name; a missing one is a broken invariant.
func (c Candidate) Param(name string) int {
	for _, p := range c.Params {
		if p.Name == name {
			return p.Value
		}
	}
	panic(fmt.Sprintf("BUG: plan: %s has no parameter %q", c.ID(), name))
}

// Rejected is a candidate that cannot run, with the reason for a person.
type Rejected struct {
	Candidate Candidate `json:"candidate"`
	Reason    string    `json:"reason"`
}

// FamilyPlan is all of one family: Candidates[0] is the default.
type FamilyPlan struct {
	Family     Family      `json:"family"`
	Candidates []Candidate `json:"candidates"`
	Rejected   []Rejected  `json:"rejected"`
	Cost       Cost        `json:"-"`
}

// Plan is what a spec can become on a target.
type Plan struct {
	Spec     *specs.Spec
	Target   Target
	Families []FamilyPlan
}

// Cost is the byte and flop model of one family for a workload: what must be moved and computed, not what a kernel does.
type Cost func(w specs.Workload) Work

// Work counts one launch.
type Work struct {
	Bytes       int64 // each input read once, each output written once
	Flops       int64 // multiply and add count 2
	Exponential int64
}

// and is the cost of two works, one after the other.
func (c Cost) and(next Cost) Cost {
	return func(w specs.Workload) Work {
		a, b := c(w), next(w)
		return Work{Bytes: a.Bytes + b.Bytes, Flops: a.Flops + b.Flops, Exponential: a.Exponential + b.Exponential}
	}
}

// planner makes one family's plan.
type planner func(s *specs.Spec, t Target) FamilyPlan

// planners in the order of a decode step.
var planners = []planner{planPageSummary, planPageScore, planPageSelect, planPageAttend}

// New plans every family of the spec for a target.
func New(s *specs.Spec, t Target) *Plan {
	p := &Plan{Spec: s, Target: t}
	for _, plan := range planners {
		p.Families = append(p.Families, plan(s, t))
	}
	if s.Locks.Rerank > 1 {
		p.Families = append(p.Families, planPageRerank(s, t))
		for _, fp := range []FamilyPlan{planPageRerankAttend(s, t), planPageSelectRerankAttend(s, t)} {
			if len(fp.Candidates) > 0 {
				p.Families = append(p.Families, fp)
			}
		}
	}
	if fp := planPageSelectAttend(s, t); len(fp.Candidates) > 0 {
		p.Families = append(p.Families, fp)
	}
	for _, f := range slices.Concat(kiviFamilies(s), queryFamilies(s)) {
		p.Families = append(p.Families, ForFamily(f, s, t))
	}
	for _, f := range dropFamilies(s, t) {
		if !s.Cache.Evicts() {
			break // no kernel evicts from such a cache; specs that ask for it are refused
		}
		p.Families = append(p.Families, ForFamily(f, s, t))
	}
	return p
}

// Has reports whether the spec has any use for a family: an eviction rule without scores needs no kernel that makes them.
func (p *Plan) Has(f Family) bool {
	for _, fp := range p.Families {
		if fp.Family == f {
			return true
		}
	}
	return false
}

// Of returns the plan of one family.
func (p *Plan) Of(f Family) FamilyPlan {
	for _, fp := range p.Families {
		if fp.Family == f {
			return fp
		}
	}
	panic(fmt.Sprintf("BUG: plan: no family %q", f))
}

// Select keeps the candidate of a family whose parameters and form equal those given, or reports false: how tuned tables and
// stored trials find their kernel again.
func (fp FamilyPlan) Select(form Form, params []Param) (Candidate, bool) {
	for _, c := range fp.Candidates {
		if c.Form == form && equalParams(c.Params, params) {
			return c, true
		}
	}
	return Candidate{}, false
}

// DefaultFor returns the index of a work's default: 0, but for dense attention, whose kernel streams over every SM, by bulk copies where
// there is such a form.
func (fp FamilyPlan) DefaultFor(work string) int {
	if work != "dense" {
		return 0
	}
	for _, kernel := range []string{attendBulk, attendStream, kiviAttend} {
		for i, c := range fp.Candidates {
			if c.Form == Hopper && c.Kernel == kernel && c.Geometry.Cluster == 1 {
				return i
			}
		}
	}
	return 0
}

// OrderAt returns the candidates of a work as a plan for one workload alone orders them, its default first; those that it has not come last.
// What is best for the spec as a whole may not be for each of its workloads: many lists want other clusters than few.
func (p *Plan) OrderAt(work string, f Family, w specs.Workload) []int {
	fp, own := p.Of(f), p.alone(f, w)
	order := make([]int, 0, len(fp.Candidates))
	at := map[string]int{}
	for i, c := range fp.Candidates {
		at[c.ID()] = i
	}
	add := func(i int) {
		if !slices.Contains(order, i) {
			order = append(order, i)
		}
	}
	if len(own.Candidates) > 0 {
		first := own.DefaultFor(work)
		for _, c := range slices.Concat(own.Candidates[first:first+1], own.Candidates) {
			if i, ok := at[c.ID()]; ok {
				add(i)
			}
		}
	}
	for i := range fp.Candidates {
		add(i)
	}
	return order
}

// DefaultAt returns the index of a work's default for one workload, with which OrderAt begins.
func (p *Plan) DefaultAt(work string, f Family, w specs.Workload) int {
	fp := p.Of(f)
	if own := p.alone(f, w); len(own.Candidates) > 0 {
		first := own.Candidates[own.DefaultFor(work)].ID()
		if i := slices.IndexFunc(fp.Candidates, func(c Candidate) bool { return c.ID() == first }); i >= 0 {
			return i
		}
	}
	return fp.DefaultFor(work)
}

// alone is the plan of a family for one workload alone.
func (p *Plan) alone(f Family, w specs.Workload) FamilyPlan {
	s := *p.Spec
	s.Workloads = []specs.Workload{w}
	return ForFamily(f, &s, p.Target)
}

// DefaultOf returns the first candidate of a form.
func (fp FamilyPlan) DefaultOf(form Form) (Candidate, bool) {
	for _, c := range fp.Candidates {
		if c.Form == form {
			return c, true
		}
	}
	return Candidate{}, false
}

func equalParams(a, b []Param) bool {
	if len(a) != len(b) {
		return false
	}
	for i := range a {
		if a[i] != b[i] {
			return false
		}
	}
	return true
}
