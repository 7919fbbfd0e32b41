package autotune

import (
	"context"
	"encoding/binary"
	"fmt"
	"math"
	"runtime"
	"slices"

	"golang.org/x/sync/errgroup"

	"github.com/kvloom/kvloom/autotune/measure"
	"github.com/kvloom/kvloom/autotune/store"
	"github.com/kvloom/kvloom/gen/plan"
	"github.com/kvloom/kvloom/gen/render"
	"github.com/kvloom/kvloom/runtime/device"
	"github.com/kvloom/kvloom/runtime/kernel"
	"github.com/kvloom/kvloom/specs"
)

// Packer collects compiled candidates into a bundle, each once.
type Packer struct {
	Spec      *specs.Spec
	Plan      *plan.Plan
	Compile   Compile
	NVRTC     string
	Generator string
	Device    device.Info // what the choices were measured on
}

// Pack makes the bundle of a spec: for every work the tuned choices where there are any, the plan's default, and a portable form for
// other architectures. Without choices it is an untuned bundle, and its lookups say so.
func (p *Packer) Pack(ctx context.Context, choices []Choice, warnings []string) (*kernel.Bundle, error) {
	b := &kernel.Bundle{Spec: p.Spec.Name, SpecHash: SpecHash(p.Spec), Generator: p.Generator, Compiler: p.NVRTC, Device: p.Device,
		Model: ModelOf(p.Spec), Warnings: warnings}
	var err error
	if b.Crossovers, err = p.crossovers(); err != nil {
		return nil, err
	}
	if b.Calibrations, err = calibrations(p.Spec); err != nil {
		return nil, fmt.Errorf("bundle of %s: %w", p.Spec.Name, err)
	}
	var candidates []plan.Candidate // as the kernels will be
	index := map[string]int{}
	add := func(c plan.Candidate) int {
		id := kernelOf(c)
		if i, ok := index[id]; ok {
			return i
		}
		candidates = append(candidates, c)
		index[id] = len(candidates) - 1
		return index[id]
	}
	for _, work := range measure.Works {
		if !p.Plan.Has(work.Family()) {
			continue
		}
		w, err := p.work(work, choices, add)
		if err != nil {
			return nil, fmt.Errorf("bundle of %s: %s: %w", p.Spec.Name, work, err)
		}
		b.Works = append(b.Works, w)
	}
	b.Kernels = make([]kernel.Kernel, len(candidates))
	compiling, ctx := errgroup.WithContext(ctx)
	compiling.SetLimit(runtime.NumCPU())
	for i, c := range candidates {
		compiling.Go(func() (err error) {
			if b.Kernels[i], err = p.kernel(ctx, c); err != nil {
				return fmt.Errorf("bundle of %s: %s: %w", p.Spec.Name, c.Family, err)
			}
			return nil
		})
	}
	return b, compiling.Wait()
}

// crossovers are those of the committed table, where they were measured on the bundle's device.
func (p *Packer) crossovers() (list []kernel.Crossover, err error) {
	t, ok, err := specs.TunedTable(p.Spec.Name)
	if err != nil || !ok || t.Device != p.Device.Name {
		return nil, err
	}
	for _, c := range t.Crossovers {
		list = append(list, kernel.Crossover(c))
	}
	return list, nil
}

// calibrations are those of the layers that a spec names, as kernels take them.
func calibrations(s *specs.Spec) (list []kernel.Calibration, err error) {
	layers, err := s.Calibrations()
	for _, l := range layers {
		var c kernel.Calibration
		if s.Locks.Basis == plan.QueryWeighted {
			moments := make([]float32, len(l.Moments))
			for i, x := range l.Moments {
				moments[i] = float32(x)
			}
			if c.Weights, err = kernel.PackWeights(moments, l.KVHeads, l.HeadDim); err != nil {
				return nil, err
			}
		}
		if s.Locks.CentroidBits == 4 {
			for _, x := range l.MeanKeys {
				c.MeanKey = binary.LittleEndian.AppendUint32(c.MeanKey, math.Float32bits(float32(x)))
			}
		}
		list = append(list, c)
	}
	return list, err
}

func (p *Packer) work(work measure.Work, choices []Choice, add func(plan.Candidate) int) (kernel.Work, error) {
	fp := p.Plan.Of(work.Family())
	w := kernel.Work{Name: string(work)}
	if len(fp.Candidates) == 0 {
		return w, fmt.Errorf("the plan has no candidate for target %s", p.Plan.Target.Arch)
	}
	portable, ok := fp.DefaultOf(plan.Portable)
	if !ok && !kernel.Optional(string(work)) {
		return w, fmt.Errorf("the plan has no portable candidate")
	}
	w.Default = add(fp.Candidates[fp.DefaultFor(string(work))])
	for _, c := range choices {
		if c.Family != string(work) {
			continue
		}
		if ok && c.Portable.Class == store.OK {
			portable = c.Portable.Candidate
		}
		w.Points = append(w.Points, kernel.Point{Workload: kernel.Workload{Context: c.Context, Batch: c.Batch}, Kernel: add(c.Best.Candidate), Evidence: c.evidence()})
	}
	for _, at := range p.Spec.Workloads {
		here := kernel.Workload(at)
		if !slices.ContainsFunc(w.Points, func(q kernel.Point) bool { return q.Workload == here }) {
			w.Defaults = append(w.Defaults, kernel.Default{Workload: here, Kernel: add(fp.Candidates[p.Plan.DefaultAt(string(work), work.Family(), at)])})
		}
	}
	if !slices.ContainsFunc(w.Defaults, func(d kernel.Default) bool { return d.Kernel != w.Default }) {
		w.Defaults = nil
	}
	w.Portable = -1
	if ok {
		w.Portable = add(portable)
	}
	return w, nil
}

func (c Choice) evidence() kernel.Evidence {
	trials := 0
	for _, n := range c.Counts {
		trials += n
	}
	e := kernel.Evidence{MedianUS: c.Best.MedianUS, LoUS: c.Best.LoUS, HiUS: c.Best.HiUS, Samples: len(c.Best.Samples), Tied: c.Tied,
		Trials: trials, MaxError: c.Best.MaxError, Bound: c.Best.Bound, DefaultUS: c.Default.MedianUS}
	if c.RunnerUp.Class == store.OK {
		e.RunnerUp, e.RunnerUpUS = c.RunnerUp.Candidate.ID(), c.RunnerUp.MedianUS
	}
	return e
}

func (p *Packer) kernel(ctx context.Context, c plan.Candidate) (kernel.Kernel, error) {
	src, err := render.Candidate(c)
	if err != nil {
		return kernel.Kernel{}, err
	}
	m, err := p.Compile(ctx, src)
	if err != nil {
		return kernel.Kernel{}, err
	}
	k := kernel.Kernel{Family: string(c.Family), Form: string(c.Form), Arch: c.Arch, Key: c.Key, Geometry: c.Geometry, Entry: c.Entry,
		SourceHash: src.Hash, Registers: m.Resources.Registers, SpillBytes: m.Resources.SpillStores + m.Resources.SpillLoads, PTX: m.PTX, Cubin: m.Cubin}
	if len(m.Cubin) > 0 {
		k.CubinArch = c.Arch
		if c.Arch == plan.PortableArch {
			k.CubinArch = portableCubin
		}
	}
	for _, q := range c.Params {
		k.Params = append(k.Params, kernel.Param{Name: q.Name, Value: q.Value})
	}
	return k, nil
}

// rerankCandidates is 0 without a rerank.
func rerankCandidates(s *specs.Spec) int {
	if s.Locks.Rerank <= 1 {
		return 0
	}
	return s.Proposals()
}

// summaryPages is 0 where each page has a summary of its own.
func summaryPages(s *specs.Spec) int {
	if s.SummaryPages() == 1 {
		return 0
	}
	return s.SummaryPages()
}

// basisOf is empty for the plain SVD.
func basisOf(s *specs.Spec) string {
	if s.Locks.Basis == plan.QueryWeighted {
		return s.Locks.Basis
	}
	return ""
}

// ModelOf is what a bundle tells callers of a spec.
func ModelOf(s *specs.Spec) kernel.Model {
	return kernel.Model{QueryHeads: s.Attention.QueryHeads, KVHeads: s.Attention.KVHeads, HeadDim: s.Attention.HeadDim,
		PageSize: s.Cache.PageSize, DType: s.Cache.DType, Combine: s.Locks.Combine, Slots: s.Slots(), Candidates: rerankCandidates(s), SummaryPages: summaryPages(s),
		Rank: s.Locks.Rank, BasisBits: s.Locks.BasisBits, Basis: basisOf(s),
		Form: s.Record().Form.String(), RecordBytes: s.Record().Bytes, StoreBytes: s.StoreBytes(),
		SinkPages: s.Locks.AlwaysKeep.SinkPages, RecentPages: s.Locks.AlwaysKeep.RecentPages,
		SoftmaxScale: s.Attention.SoftmaxScale, LogitSoftcap: s.Attention.LogitSoftcap,
		Drop: kernel.DropModel{Rule: s.DropKV.Rule, Window: s.DropKV.Window, Pool: s.DropKV.Pool.Kind, PoolWidth: s.DropKV.Pool.Width,
			Precision: s.DropKV.Precision, Eps: s.DropKV.Eps}}
}

// Current keeps the trials whose source is what the plan renders today: a changed kernel is measured again, its old trials stay in the
// database and choose nothing.
func Current(trials []store.Trial, p *plan.Plan) ([]store.Trial, error) {
	hashes := map[string]string{}
	for _, fp := range p.Families {
		for _, c := range fp.Candidates {
			src, err := render.Candidate(c)
			if err != nil {
				return nil, err
			}
			hashes[c.ID()+" "+c.Key] = src.Hash
		}
	}
	var current []store.Trial
	for _, t := range trials {
		if hashes[t.Candidate.ID()+" "+t.Candidate.Key] == t.SourceHash {
			current = append(current, t)
		}
	}
	return current, nil
}

// Newest keeps the last trial of each candidate at each point, whatever its source: what was chosen before kernels changed.
func Newest(trials []store.Trial) []store.Trial {
	at := map[string]int{}
	var kept []store.Trial
	for _, t := range trials {
		id := pointOf(t) + " " + t.Candidate.ID()
		if i, ok := at[id]; ok {
			if t.Started.After(kept[i].Started) {
				kept[i] = t
			}
			continue
		}
		at[id] = len(kept)
		kept = append(kept, t)
	}
	return kept
}

// Warnings says what a person should know of the choices: points without a right candidate, and spaces in which nothing differs.
func Warnings(choices []Choice) []string {
	var w []string
	for _, c := range choices {
		at := fmt.Sprintf("%s at context %d, batch %d", c.Family, c.Context, c.Batch)
		right := c.Counts[string(store.OK)]
		if right > 3 && c.Tied == right && c.Counts[string(store.Cut)] == 0 {
			w = append(w, at+": all right candidates tie; the parameters may not reach the kernel")
		}
		if n := c.Counts[string(store.Wrong)]; n > 0 {
			w = append(w, fmt.Sprintf("%s: %d candidates gave wrong results", at, n))
		}
		if n := c.Counts[string(store.Fault)] + c.Counts[string(store.Hang)] + c.Counts[string(store.Crash)]; n > 0 {
			w = append(w, fmt.Sprintf("%s: %d candidates faulted, hung or crashed", at, n))
		}
		throttled, others := disturbed(c.Best)
		if throttled {
			w = append(w, at+": the GPU was throttled while the choice was measured, after all retries; cool it, or raise its power cap, and tune again")
		}
		if others > 0 {
			w = append(w, fmt.Sprintf("%s: %d other processes were on the GPU while the choice was measured", at, others))
		}
	}
	return w
}

// disturbed tells what was not as it should be while a trial was measured.
func disturbed(t store.Trial) (throttled bool, others int) {
	all := []store.Conditions{t.Conditions}
	if len(t.Windows) > 0 { // then these are its samples
		all = nil
		for _, w := range t.Windows {
			all = append(all, w.Conditions)
		}
	}
	for _, c := range all {
		throttled = throttled || c.Throttled
		others = max(others, c.Others)
	}
	return throttled, others
}
