package verify

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sort"

	"github.com/kvloom/kvloom/gen/plan"
	"github.com/kvloom/kvloom/runtime/device"
	"github.com/kvloom/kvloom/specs"
)

// Report is everything that a run found out about one spec.
type Report struct {
	Spec    string      `json:"spec"`
	Device  device.Info `json:"device"`
	Target  string      `json:"target"` // what was planned for
	Seed    uint64      `json:"seed"`
	Results []Result    `json:"results"`
	// Unchecked are families that have candidates and no checker.
	Unchecked []plan.Family `json:"unchecked,omitempty"`
}

// Failures are the results that failed.
func (r Report) Failures() []Result {
	var out []Result
	for _, x := range r.Results {
		if !x.OK() {
			out = append(out, x)
		}
	}
	return out
}

// Row is a line of the table of maximum errors: one metric of one candidate over all its cases.
type Row struct {
	Family    plan.Family `json:"family"`
	Candidate string      `json:"candidate"`
	Metric    string      `json:"metric"`
	MaxError  float64     `json:"max_error"` // of the case nearest to its bound
	Bound     float64     `json:"bound"`
	Case      string      `json:"case"` // that case
	Cases     int         `json:"cases"`
	Count     int64       `json:"count"`
	Failed    int         `json:"failed"`
	Skipped   int         `json:"skipped"`
}

// Rows condenses the results, in the order in which they came.
func (r Report) Rows() []Row {
	type key struct{ candidate, metric string }
	at := map[key]int{}
	var rows []Row
	for _, x := range r.Results {
		k := key{x.Candidate, x.Metric}
		i, ok := at[k]
		if !ok {
			i = len(rows)
			at[k] = i
			rows = append(rows, Row{Family: x.Family, Candidate: x.Candidate, Metric: x.Metric, MaxError: x.MaxError, Bound: x.Bound, Case: x.Case})
		}
		row := &rows[i]
		row.Cases++
		row.Count += x.Count
		if x.Skipped != "" {
			row.Skipped++
		}
		failed := !x.OK()
		if failed {
			row.Failed++
		}
		// A failure is shown before any passing value, however near its bound that came.
		if failed && row.Failed == 1 || failed == (row.Failed > 0) && x.MaxError*row.Bound > row.MaxError*x.Bound {
			row.MaxError, row.Bound, row.Case = x.MaxError, x.Bound, x.Case
		}
	}
	return rows
}

// TargetOf is the plan target for a device. The simulator stands for a GPU of the default target.
func TargetOf(info device.Info) (plan.Target, error) {
	switch {
	case info.Backend == "sim" || info.Major == 9:
		return plan.Targets["sm_90a"], nil
	case info.Major >= 8:
		return plan.Targets["sm_80"], nil
	}
	return plan.Target{}, fmt.Errorf("%s has compute capability %d.%d; kernels need 8.0 or newer", info.Name, info.Major, info.Minor)
}

// runnable are the candidates of a family that the device can run.
func runnable(fp plan.FamilyPlan, info device.Info) []plan.Candidate {
	var out []plan.Candidate
	for _, c := range fp.Candidates {
		if info.Backend == "sim" || info.Major == 9 || c.Form == plan.Portable {
			out = append(out, c)
		}
	}
	return out
}

// choose picks the candidates of a family that the options ask for.
func choose(fp plan.FamilyPlan, o Options) ([]plan.Candidate, error) {
	usable := fp.Candidates
	switch o.Candidates {
	case "all":
		return usable, nil
	case "default", "":
		return usable[:min(1, len(usable))], nil
	case "forms":
		seen := map[plan.Form]bool{}
		return slices.DeleteFunc(slices.Clone(usable), func(c plan.Candidate) bool {
			first := !seen[c.Form]
			seen[c.Form] = true
			return !first
		}), nil
	}
	return nil, fmt.Errorf("candidates %q; use default, forms or all", o.Candidates)
}

// Planned is what a run over a spec on a device will check.
type Planned struct {
	Target     plan.Target
	Candidates []plan.Candidate
	Chains     []ChainPlan   // all families together
	Refused    []Result      // families with no candidate that the device can run
	Unchecked  []plan.Family // families without a checker
}

// All are the candidates of single checks, then those of chains, which are mostly the same again.
func (p Planned) All() []plan.Candidate {
	all := slices.Clone(p.Candidates)
	for _, chain := range p.Chains {
		all = append(all, chain.Links...)
	}
	return all
}

// ChainPlan names candidates that are checked as one graph.
type ChainPlan struct {
	Name  string // "chain default"
	Links []plan.Candidate
	Drop  bool // eviction; else a decode step
}

// Plan lists the candidates that Run will check, so that they can be compiled ahead.
func Plan(info device.Info, s *specs.Spec, o Options) (Planned, error) {
	var p Planned
	var err error
	if p.Target, err = TargetOf(info); err != nil {
		return p, err
	}
	all := plan.New(s, p.Target)
	usable := &plan.Plan{Spec: s, Target: p.Target}
	for _, fp := range all.Families {
		fp.Candidates = slices.DeleteFunc(runnable(fp, info), func(c plan.Candidate) bool { return o.MaxCluster > 0 && c.Geometry.Cluster > o.MaxCluster })
		usable.Families = append(usable.Families, fp)
		if len(o.Families) > 0 && !slices.Contains(o.Families, fp.Family) {
			continue
		}
		candidates, err := choose(fp, o)
		if err != nil {
			return p, err
		}
		switch {
		case checkers[fp.Family] == nil:
			p.Unchecked = append(p.Unchecked, fp.Family)
		case len(candidates) == 0:
			p.Refused = append(p.Refused, noCandidate(fp))
		default:
			p.Candidates = append(p.Candidates, candidates...)
		}
	}
	wants := func(f plan.Family) bool { return len(o.Families) == 0 || slices.Contains(o.Families, f) }
	both := o.Candidates != "default" && o.Candidates != ""
	if wants(Chain) {
		if links, ok := ChainCandidates(usable, ""); ok {
			p.Chains = append(p.Chains, ChainPlan{Name: "chain default", Links: links})
		}
		if links, ok := ChainCandidates(usable, plan.Portable); ok && both {
			p.Chains = append(p.Chains, ChainPlan{Name: "chain portable", Links: links})
		}
	}
	if wants(DropChain) {
		if links, ok := DropChainCandidates(usable, ""); ok {
			p.Chains = append(p.Chains, ChainPlan{Name: "drop chain default", Links: links, Drop: true})
		}
		if links, ok := DropChainCandidates(usable, plan.Portable); ok && both {
			p.Chains = append(p.Chains, ChainPlan{Name: "drop chain portable", Links: links, Drop: true})
		}
	}
	return p, nil
}

// Run checks the candidates of every family of a spec. A kernel that is wrong is a Result, not an error; an error means that the run
// itself could not go on, and comes with what was found until then.
func Run(ctx context.Context, e *Env, s *specs.Spec, o Options) (Report, error) {
	r := Report{Spec: s.Name, Device: e.Dev.Info(), Seed: o.Seed}
	p, err := Plan(r.Device, s, o)
	if err != nil {
		return r, err
	}
	r.Target, r.Results, r.Unchecked = p.Target.Arch, p.Refused, p.Unchecked
	total := len(p.Candidates) + len(p.Chains)
	for i, c := range p.Candidates {
		if o.Progress != nil {
			o.Progress(i, total, c.ID())
		}
		results, err := Check(ctx, e, s, c, o)
		r.Results = append(r.Results, results...)
		if err != nil {
			return r, err
		}
		if err := poisoned(e, results); err != nil {
			return r, err
		}
	}
	for i, chain := range p.Chains {
		if o.Progress != nil {
			o.Progress(len(p.Candidates)+i, total, chain.Name)
		}
		check := CheckChain
		if chain.Drop {
			check = CheckDropChain
		}
		r.Results = append(r.Results, check(ctx, e, s, chain.Name, chain.Links, o)...)
		if err := errors.Join(ctx.Err(), poisoned(e, r.Results)); err != nil {
			return r, err
		}
	}
	if o.Progress != nil {
		o.Progress(total, total, "")
	}
	if len(r.Results) == 0 {
		return r, fmt.Errorf("verify %s: no family was checked", s.Name)
	}
	return r, nil
}

// noCandidate is the result of a family that the plan refuses altogether.
func noCandidate(fp plan.FamilyPlan) Result {
	reasons := map[string]bool{}
	for _, rejected := range fp.Rejected {
		reasons[rejected.Reason] = true
	}
	var list []string
	for reason := range reasons {
		list = append(list, reason)
	}
	sort.Strings(list)
	return Result{Family: fp.Family, Metric: "candidates", Failure: fmt.Sprintf("no candidate can run here: %q", list)}
}

// poisoned reports a device that a kernel's fault left unusable: every later result would be that fault again.
func poisoned(e *Env, results []Result) error {
	if !slices.ContainsFunc(results, func(r Result) bool { return !r.OK() }) {
		return nil
	}
	p, err := e.Dev.Alloc(256)
	if err == nil {
		err = errors.Join(e.Dev.Fill(p, 0, 256), e.Dev.Free(p))
	}
	if err != nil {
		return fmt.Errorf("the device does not work any more after a kernel's fault: %w", err)
	}
	return nil
}
