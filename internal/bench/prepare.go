package bench

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"strings"

	"github.com/kvloom/kvloom/autotune/measure"
	"github.com/kvloom/kvloom/gen/plan"
	"github.com/kvloom/kvloom/gen/render"
	"github.com/kvloom/kvloom/internal/launch"
	"github.com/kvloom/kvloom/runtime/device"
)

// Prefetch compiles what the jobs will load, and needs no device for it. Run does so itself, and meets the faults again where the code is
// needed.
func (b *Bench) Prefetch(ctx context.Context, jobs []Job) (kernels int, err error) {
	sources, names, faults := b.Sources(jobs)
	for i, fault := range b.Code.All(ctx, sources, runtime.NumCPU(), nil) {
		if fault != nil {
			faults = append(faults, fmt.Errorf("%s: %w", names[i], fault))
		}
	}
	return len(sources), errors.Join(append(faults, ctx.Err())...)
}

// Sources are what the jobs will load, each once, with names to report them by, and what has no source. Compiled beforehand they fill the
// compiler's cache, so that a machine whose time is dear finds everything there.
func (b *Bench) Sources(jobs []Job) (sources []render.Source, names []string, faults []error) {
	seen := map[string]bool{}
	add := func(src render.Source, name string) {
		if !seen[src.Hash] {
			seen[src.Hash] = true
			sources, names = append(sources, src), append(names, name)
		}
	}
	for _, entry := range roofEntries {
		add(roof(entry), entry)
	}
	for _, j := range withWorkloads(jobs) {
		p := plan.New(j.Spec, plan.Targets["sm_90a"])
		for _, work := range worksOf(p, j.Families) {
			list, err := b.candidates(j, p, work)
			if err != nil {
				faults = append(faults, fmt.Errorf("%s: %w", j.Spec.Name, err))
				continue
			}
			for _, c := range list {
				src, err := render.Candidate(c)
				if err != nil {
					faults = append(faults, err)
					continue
				}
				add(src, c.ID()+" of "+j.Spec.Name)
			}
		}
	}
	return sources, names, faults
}

// candidates are what a work is measured with: the choice, then, where the job asks for a pick among several, those that the plan puts first
// for the workload.
func (b *Bench) candidates(j Job, p *plan.Plan, work measure.Work) ([]plan.Candidate, error) {
	if !p.Has(work.Family()) {
		return nil, fmt.Errorf("%s: %s has no use for it", work, j.Spec.Name)
	}
	c, err := b.Choose(j.Spec, p, j.Workload, work)
	if err != nil {
		return nil, err
	}
	list := []plan.Candidate{c}
	if b.Pick <= 1 {
		return list, nil // the workload's order takes a plan of its own
	}
	all := p.Of(work.Family()).Candidates
	for _, i := range p.OrderAt(string(work), work.Family(), j.Workload) {
		if len(list) >= b.Pick {
			break
		}
		if all[i].ID() != c.ID() {
			list = append(list, all[i])
		}
	}
	return list, nil
}

// quick is how long a candidate is tried before the pick.
var quick = measure.Timing{Width: 0.01, Least: 5, Most: 9, Limit: measure.Usual.Limit / 4, GraphUS: 600}

// prepared is a work's step and what it is.
type prepared struct {
	step *measure.Step
	name string
}

// prepare readies a work of a job: its candidate, or the fastest of several where the bench picks.
func (b *Bench) prepare(ctx context.Context, rig *measure.Rig, j Job, p *plan.Plan, work measure.Work) (best prepared, err error) {
	list, err := b.candidates(j, p, work)
	if err != nil {
		return best, err
	}
	least := 0.0
	var faults []error
	for _, c := range list {
		step, err := b.step(ctx, rig, work, c)
		if err != nil {
			faults = append(faults, fmt.Errorf("%s: %w", c.ID(), err))
			continue
		}
		us := 0.0
		if len(list) > 1 {
			samples, _, err := rig.Time(step, quick)
			if err != nil {
				return best, fmt.Errorf("%s: %w", c.ID(), err)
			}
			us = measure.Summarise(samples).Median
			b.Progress(fmt.Sprintf("tried: %s %.2f us", c.ID(), us))
		}
		if best.step == nil || us < least {
			best, least = prepared{step, strings.TrimPrefix(c.ID(), string(c.Family)+" ")}, us
		}
	}
	if best.step == nil {
		return best, errors.Join(faults...)
	}
	return best, nil
}

func (b *Bench) step(ctx context.Context, rig *measure.Rig, work measure.Work, c plan.Candidate) (*measure.Step, error) {
	src, err := render.Candidate(c)
	if err != nil {
		return nil, err
	}
	fn, err := b.load(ctx, src, &c.Geometry)
	if err != nil {
		return nil, err
	}
	return rig.Step(work, c, fn)
}

func (b *Bench) load(ctx context.Context, src render.Source, g *launch.Geometry) (device.Function, error) {
	if fn := b.functions[src.Hash]; fn != nil {
		return fn, nil
	}
	m, err := b.Code.Get(ctx, src)
	if err != nil {
		return nil, err
	}
	image := m.Cubin
	if src.Arch == plan.PortableArch || b.Dev.Info().Backend == "sim" {
		image = m.PTX
	}
	mod, err := b.Dev.Load(image)
	if err != nil {
		return nil, err
	}
	fn, err := launch.Function(mod, src.Entry, g)
	if err == nil {
		if b.functions == nil {
			b.functions = map[string]device.Function{}
		}
		b.functions[src.Hash] = fn
	}
	return fn, err
}
