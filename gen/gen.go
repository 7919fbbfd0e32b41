// Package gen turns a model's spec into its generated Go package: one ordered list of steps without I/O.
package gen

import (
	"fmt"
	"path"
	"slices"
	"strings"

	"github.com/kvloom/kvloom/gen/bind"
	"github.com/kvloom/kvloom/gen/plan"
	"github.com/kvloom/kvloom/gen/render"
	"github.com/kvloom/kvloom/specs"
)

// Build is what the steps hand on. A step fills one field from those before it and leaves them alone.
type Build struct {
	Spec     *specs.Spec
	Table    *specs.Table      // tuned choices; nil: defaults alone
	Plans    []*plan.Plan      // one for each target of the spec
	Works    []bind.Work       // what serves each work, in the order of a decode step
	Sources  []render.Source   // of every kernel that a work names, by its file name
	Files    map[string][]byte // the package: path below its folder -> content
	Warnings []string          // for a person: a tuned choice that the plan no longer has
}

// Step is one arrow of the pipeline.
type Step struct {
	Name string
	Run  func(Build) (Build, error)
}

// Steps is the compiler from a spec to its package.
var Steps = []Step{
	{"plan", planTargets},
	{"choose", chooseKernels},
	{"render", renderKernels},
	{"bind", bindPackage},
}

// Package generates the package of a spec. table may be nil.
func Package(s *specs.Spec, table *specs.Table) (Build, error) {
	b := Build{Spec: s, Table: table}
	for _, step := range Steps {
		var err error
		if b, err = step.Run(b); err != nil {
			return b, fmt.Errorf("gen %s: %s: %w", s.Name, step.Name, err)
		}
	}
	return b, nil
}

// Name is the package's name and folder: "llama318b" of "llama-3.1-8b".
func Name(model string) string { return bind.PackageName(model) }

func planTargets(b Build) (Build, error) {
	for _, name := range b.Spec.Targets {
		t, ok := plan.Targets[name]
		if !ok {
			return b, fmt.Errorf("no target %q", name)
		}
		b.Plans = append(b.Plans, plan.New(b.Spec, t))
	}
	return b, nil
}

// works in the order of a decode step, with the families that do them. Dense attention is page_attend over all pages, tuned apart.
var works = []struct {
	name   string
	family plan.Family
}{
	{string(plan.PageSummary), plan.PageSummary},
	{string(plan.PageScore), plan.PageScore},
	{string(plan.PageSelect), plan.PageSelect},
	{string(plan.PageAttend), plan.PageAttend},
	{"dense", plan.PageAttend},
	{string(plan.PageSelectAttend), plan.PageSelectAttend},
	{string(plan.PageRerank), plan.PageRerank},
	{string(plan.PageRerankAttend), plan.PageRerankAttend},
	{string(plan.PageSelectRerankAttend), plan.PageSelectRerankAttend},
	{string(plan.KVQuantize), plan.KVQuantize},
	{string(plan.QueryMoment), plan.QueryMoment},
	{string(plan.QueryFactor), plan.QueryFactor},
	{string(plan.DropObserve), plan.DropObserve},
	{string(plan.DropScore), plan.DropScore},
	{string(plan.DropObserveScore), plan.DropObserveScore},
	{string(plan.DropPool), plan.DropPool},
	{string(plan.DropAllot), plan.DropAllot},
	{string(plan.DropSelect), plan.DropSelect},
	{string(plan.DropPoolSelect), plan.DropPoolSelect},
	{string(plan.DropCompact), plan.DropCompact},
}

// chooseKernels gives each work its default, the default of the portable form, those of single workloads, and what the tuned table names. With several targets
// the first one's default serves, and every target adds its own.
func chooseKernels(b Build) (Build, error) {
	for _, w := range works {
		if !b.Plans[0].Has(w.family) {
			continue
		}
		work := bind.Work{Name: w.name, Family: w.family}
		for _, p := range b.Plans {
			if !p.Has(w.family) {
				continue // an alternative of one target alone
			}
			fp := p.Of(w.family)
			if len(fp.Candidates) == 0 {
				return b, fmt.Errorf("%s: no candidate for %s: %s", w.name, p.Target.Arch, firstReason(fp))
			}
			work.Defaults = appendNew(work.Defaults, fp.Candidates[fp.DefaultFor(w.name)])
			if c, ok := fp.DefaultOf(plan.Portable); ok {
				work.Defaults = appendNew(work.Defaults, c)
			}
		}
		if b.Table != nil {
			for _, t := range b.Table.Choices {
				if t.Work != w.name {
					continue
				}
				c, ok := b.find(w.family, t)
				if !ok {
					b.Warnings = append(b.Warnings, fmt.Sprintf("the tuned table names a candidate of %s that the plan no longer has (%s %v): the default stands in; tune again",
						t.Work, t.Form, t.Params))
					continue
				}
				work.Tuned = append(work.Tuned, bind.At{Workload: specs.Workload{Context: t.Context, Batch: t.Batch}, Candidate: c})
			}
		}
		work.Own = b.own(work)
		b.Works = append(b.Works, work)
	}
	return b, nil
}

// own are the defaults of single workloads on the first target, as a bundle holds them.
func (b Build) own(work bind.Work) (list []bind.At) {
	p := b.Plans[0]
	for _, w := range b.Spec.Workloads {
		c := p.Of(work.Family).Candidates[p.DefaultAt(work.Name, work.Family, w)]
		tuned := slices.ContainsFunc(work.Tuned, func(t bind.At) bool { return t.Workload == w })
		if !tuned && c.ID() != work.Defaults[0].ID() {
			list = append(list, bind.At{Workload: w, Candidate: c})
		}
	}
	return list
}

// find is the candidate of a tuned choice in the plan of any target.
func (b Build) find(f plan.Family, t specs.Tuned) (plan.Candidate, bool) {
	params := make([]plan.Param, len(t.Params))
	for i, p := range t.Params {
		params[i] = plan.Param(p)
	}
	for _, p := range b.Plans {
		if !p.Has(f) {
			continue
		}
		if c, ok := p.Of(f).Select(plan.Form(t.Form), params); ok {
			return c, true
		}
	}
	return plan.Candidate{}, false
}

func firstReason(fp plan.FamilyPlan) string {
	if len(fp.Rejected) == 0 {
		return "none was planned"
	}
	return fmt.Sprintf("%d were rejected, the first because %s", len(fp.Rejected), fp.Rejected[0].Reason)
}

// appendNew appends a candidate unless one of its kind is there.
func appendNew(list []plan.Candidate, c plan.Candidate) []plan.Candidate {
	if slices.ContainsFunc(list, func(o plan.Candidate) bool { return bind.FileName(o) == bind.FileName(c) }) {
		return list
	}
	return append(list, c)
}

func renderKernels(b Build) (Build, error) {
	byName := map[string]string{}
	for _, w := range b.Works {
		for _, c := range w.Candidates() {
			name := bind.FileName(c)
			s, err := render.Candidate(c)
			if err != nil {
				return b, err
			}
			if old, ok := byName[name]; ok {
				if old != s.Hash {
					return b, fmt.Errorf("BUG: two kernels would be called %s", name)
				}
				continue
			}
			byName[name] = s.Hash
			s.Name = name
			b.Sources = append(b.Sources, s)
		}
	}
	slices.SortFunc(b.Sources, func(x, y render.Source) int { return strings.Compare(x.Name, y.Name) })
	return b, nil
}

func bindPackage(b Build) (Build, error) {
	text, err := bind.Go(b.Spec, b.Works)
	if err != nil {
		return b, err
	}
	b.Files = map[string][]byte{bind.PackageName(b.Spec.Name) + ".go": text}
	for _, s := range b.Sources {
		b.Files[path.Join("kernels", s.Name)] = []byte(s.Text)
	}
	return b, nil
}
