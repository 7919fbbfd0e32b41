package bench

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/kvloom/kvloom/autotune/measure"
	"github.com/kvloom/kvloom/gen/plan"
	"github.com/kvloom/kvloom/runtime/device"
	"github.com/kvloom/kvloom/runtime/nvrtc"
	"github.com/kvloom/kvloom/specs"
)

// Job is one spec and workload to measure.
type Job struct {
	Spec     *specs.Spec
	Workload specs.Workload
	Families []string // stems, dense, chain, drop_observe_score, drop_chain
	Warm     bool
	// Contiguous: the DropKV works read a cache without a block table.
	Contiguous bool
	// Lens are the requests' lengths where they differ; Workload is then the longest of them and their number.
	Lens  []int
	Build measure.Build // what page_summary finds to do; empty: a prompt
	// Brisk lines have fewer samples: points of a table, where a wider interval does no harm.
	Brisk bool
}

// Bench measures jobs on one device.
type Bench struct {
	Dev      device.Device
	Code     *nvrtc.Once
	Choose   func(s *specs.Spec, p *plan.Plan, w specs.Workload, work measure.Work) (plan.Candidate, error)
	Commit   string
	Command  string
	Peers    []string // torch, flashinfer
	Python   string
	Progress func(string)
	// Pick is how many candidates of each work are tried, the choice first; the line is measured with the fastest. 0 and 1: the choice.
	Pick int
	// Keep, where set, is called after each line with all lines so far, so that a run that is killed loses none.
	Keep func([]Result) error

	// Limits are measured when nil.
	Limits *Limits

	functions map[string]device.Function // loaded, by source hash
}

// Run measures every job, and the peers beside it. A job that fails costs that job: the others are measured all the same, and the error
// names each. Notes name the peers that were left out and why.
func (b *Bench) Run(ctx context.Context, jobs []Job) (results []Result, notes []string, err error) {
	jobs = withWorkloads(jobs)
	kernels, _ := b.Prefetch(ctx, jobs) // faults are met again, and reported, where the code is needed
	b.Progress(fmt.Sprintf("%d kernels compiled", kernels))
	if b.Limits == nil {
		measured, err := b.measureLimits(ctx)
		if err != nil {
			return nil, nil, err
		}
		b.Limits = &measured
	}
	b.Progress(b.Limits.String())
	keep := func(r Result) error {
		results = append(results, r)
		if b.Keep == nil {
			return nil
		}
		return b.Keep(results)
	}
	var faults []error
	for _, j := range jobs {
		if err := ctx.Err(); err != nil {
			return results, notes, errors.Join(append(faults, err)...)
		}
		if err := b.job(ctx, j, keep); err != nil {
			err = fmt.Errorf("%s at %d x %d: %w", j.Spec.Name, j.Workload.Context, j.Workload.Batch, err)
			b.Progress("failed: " + err.Error())
			faults = append(faults, err)
		}
	}
	if len(b.Peers) > 0 && len(results) > 0 {
		b.Progress("peers: " + strings.Join(b.Peers, ", "))
		notes = b.measurePeers(ctx, results)
	}
	return results, notes, errors.Join(faults...)
}

// job measures the families of one job on one rig. A family that fails does not stop the next.
func (b *Bench) job(ctx context.Context, j Job, keep func(Result) error) (err error) {
	rig, err := measure.NewRig(b.Dev, j.Spec, j.Workload)
	if err != nil {
		return err
	}
	rig.Warm, rig.Build = j.Warm, j.Build
	if j.Contiguous {
		rig.Contiguous()
	}
	if len(j.Lens) > 0 {
		if err := rig.Lengths(j.Lens); err != nil {
			return errors.Join(err, rig.Close())
		}
	}
	defer func() { err = errors.Join(err, rig.Close()) }()
	p := plan.New(j.Spec, plan.Targets["sm_90a"])
	ready := map[measure.Work]prepared{}
	for _, family := range lastly(j.Families, summary) {
		r, failure := b.family(ctx, rig, j, p, family, ready)
		if failure != nil {
			err = errors.Join(err, fmt.Errorf("%s: %w", family, failure))
			continue
		}
		if err := keep(r); err != nil {
			return err
		}
	}
	return err
}

// withWorkloads adds each job's workload to its spec, as its owner would: defaults follow the longest context that a spec names.
func withWorkloads(jobs []Job) []Job {
	list := slices.Clone(jobs)
	for i := range list {
		s := *list[i].Spec
		if !slices.Contains(s.Workloads, list[i].Workload) {
			s.Workloads = append(slices.Clone(s.Workloads), list[i].Workload)
			list[i].Spec = &s
		}
	}
	return list
}

// lastly puts one family behind the others. A build writes summaries of random keys, whose pages score nearly alike, and the time of selection
// depends on scores: what is measured with the rig's own summaries must not depend on what was measured before.
func lastly(families []string, last string) []string {
	list := slices.DeleteFunc(slices.Clone(families), func(f string) bool { return f == last })
	if len(list) < len(families) {
		list = append(list, last)
	}
	return list
}

// family times one family of a job, by the fastest of the ways to do it. ready holds the works that are prepared already.
func (b *Bench) family(ctx context.Context, rig *measure.Rig, j Job, p *plan.Plan, family string, ready map[measure.Work]prepared) (Result, error) {
	var best way
	var faults []error
	least := 0.0
	list := ways(p, family)
	for _, works := range list {
		one, err := b.way(ctx, rig, j, p, works, ready)
		if err != nil {
			faults = append(faults, err)
			continue
		}
		us := 0.0
		if len(list) > 1 {
			samples, _, err := rig.Time(one.step, quick)
			if err != nil {
				return Result{}, err
			}
			us = measure.Summarise(samples).Median
		}
		if best.step == nil || us < least {
			best, least = one, us
		}
	}
	if best.step == nil {
		return Result{}, errors.Join(faults...)
	}
	samples, err := steady(func(t measure.Timing) ([]float64, error) {
		samples, _, err := rig.Time(best.step, t)
		return samples, err
	}, j)
	if err != nil {
		return Result{}, err
	}
	r := b.result(j, family, best.name, j.work(p, best.works), samples)
	b.Progress(fmt.Sprintf("%-12s %s %dx%d: %.2f us (%.2f to %.2f), %.2f TB/s, %s", family, j.Spec.Name, j.Workload.Context, j.Workload.Batch,
		r.MedianUS, r.LoUS, r.HiUS, r.TBPerS, best.name))
	return r, nil
}

// way is one way to do a family's work, ready to be timed.
type way struct {
	step  *measure.Step
	works []measure.Work
	name  string
}

func (b *Bench) way(ctx context.Context, rig *measure.Rig, j Job, p *plan.Plan, works []measure.Work, ready map[measure.Work]prepared) (way, error) {
	var parts []*measure.Step
	var words []string
	for _, w := range works {
		if ready[w].step == nil {
			one, err := b.prepare(ctx, rig, j, p, w)
			if err != nil {
				return way{}, err
			}
			ready[w] = one
		}
		parts = append(parts, ready[w].step)
		words = append(words, string(w)[strings.IndexByte(string(w), '_')+1:])
	}
	if len(parts) > 1 {
		return way{measure.Chain(parts...), works, strings.Join(words, ", ")}, nil
	}
	return way{parts[0], works, ready[works[0]].name}, nil
}

// timing is how long a line is measured.
func (j Job) timing() measure.Timing {
	t := measure.Usual
	t.Least, t.Most, t.Width = 30, 100, 0.003
	if j.Brisk {
		t.Least, t.Most, t.Width, t.Limit, t.GraphUS = 12, 40, 0.005, t.Limit/4, 1000
	}
	return t
}

// steady are the samples of a line. A brisk one takes some tens of milliseconds, all of which something else on the GPU may last: so it is
// asked again, briefly, and where the medians are apart, measured again. The middle one of the three counts.
func steady(timed func(measure.Timing) ([]float64, error), j Job) ([]float64, error) {
	median := func(s []float64) float64 { return measure.Summarise(s).Median }
	first, err := timed(j.timing())
	if err != nil || !j.Brisk {
		return first, err
	}
	probe, err := timed(quick)
	if err != nil || math.Abs(median(probe)/median(first)-1) <= steadyWithin {
		return first, err
	}
	again, err := timed(j.timing())
	if err != nil {
		return nil, err
	}
	list := [][]float64{first, probe, again}
	slices.SortStableFunc(list, func(a, b []float64) int { return cmp.Compare(median(a), median(b)) })
	return list[1], nil
}

// steadyWithin is how far apart two medians of one line may be, as a share.
const steadyWithin = 0.02

func (b *Bench) result(j Job, family, candidate string, work plan.Work, samples []float64) Result {
	sum := measure.Summarise(samples)
	info := b.Dev.Info()
	r := Result{Date: time.Now().UTC().Format(time.RFC3339), Card: info.Name, Driver: info.DriverName, Commit: b.Commit, Command: b.Command,
		Family: family, Shape: ShapeOf(family, j), Candidate: candidate,
		MedianUS: sum.Median, LoUS: sum.Lo, HiUS: sum.Hi, Samples: sum.N, Bytes: work.Bytes, RoofTBPerS: b.Limits.ReadTBPerS,
		Limits: b.Limits.of(work), Baselines: map[string]float64{}}
	r.TBPerS = float64(r.Bytes) / sum.Median / 1e6
	return r
}

// work is what works must move and compute for a job, by the plan's model.
func (j Job) work(p *plan.Plan, works []measure.Work) (sum plan.Work) {
	if len(j.Lens) == 0 {
		return total(p, works, j.modelled())
	}
	for _, n := range j.Lens {
		one := total(p, works, specs.Workload{Context: n, Batch: 1})
		sum.Bytes, sum.Flops, sum.Exponential = sum.Bytes+one.Bytes, sum.Flops+one.Flops, sum.Exponential+one.Exponential
	}
	return sum
}

// modelled is the workload that the model of bytes counts: of a decode step's build, the pages that it completed.
func (j Job) modelled() specs.Workload {
	w := j.Workload
	switch j.Build {
	case measure.BuildFilled:
		w.Context = j.Spec.Cache.PageSize
	case measure.BuildIdle:
		w.Context = 0
	}
	return w
}
