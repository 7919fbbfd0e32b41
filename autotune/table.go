package autotune

import (
	"github.com/kvloom/kvloom/gen/plan"
	"github.com/kvloom/kvloom/runtime/device"
	"github.com/kvloom/kvloom/specs"
)

// Table is the tuned table that follows from the choices made on a device.
func Table(s *specs.Spec, dev device.Info, nvrtc string, choices []Choice) specs.Table {
	t := TableOf(s, choices)
	t.Device, t.Driver, t.NVRTC = dev.Name, dev.DriverName, nvrtc
	return t
}

// TableOf is a table without the record of where it was measured.
func TableOf(s *specs.Spec, choices []Choice) specs.Table {
	t := specs.Table{Model: s.Name, Choices: []specs.Tuned{}}
	for _, c := range choices {
		e := specs.Tuned{Work: c.Family, Context: c.Context, Batch: c.Batch, Form: string(c.Best.Candidate.Form),
			MedianUS: c.Best.MedianUS, DefaultUS: c.Default.MedianUS}
		for _, p := range c.Best.Candidate.Params {
			e.Params = append(e.Params, specs.TunedParam(p))
		}
		t.Choices = append(t.Choices, e)
	}
	return t
}

// FromTable finds the candidate that a table names for a workload, the nearest context and batch first. ok is false where the table has
// none, or names a candidate that the plan no longer has.
func FromTable(t specs.Table, p *plan.Plan, work string, w specs.Workload) (c plan.Candidate, ok bool) {
	best := -1
	for i, e := range t.Choices {
		if e.Work == work && (best < 0 || distance(e, w) < distance(t.Choices[best], w)) {
			best = i
		}
	}
	if best < 0 {
		return c, false
	}
	e := t.Choices[best]
	family := plan.Family(work)
	if work == "dense" {
		family = plan.PageAttend
	}
	var params []plan.Param
	for _, q := range e.Params {
		params = append(params, plan.Param(q))
	}
	return p.Of(family).Select(plan.Form(e.Form), params)
}

// distance is how far apart two workloads are: the product of the ratios of their contexts and batches.
func distance(e specs.Tuned, w specs.Workload) float64 {
	ratio := func(a, b int) float64 {
		x, y := float64(max(a, 1)), float64(max(b, 1))
		return max(x, y) / min(x, y)
	}
	return ratio(e.Context, w.Context) * ratio(e.Batch, w.Batch)
}
