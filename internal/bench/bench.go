package bench

import (
	"bytes"
	"context"
	_ "embed"
	"encoding/json"
	"errors"
	"fmt"
	"os/exec"
	"strings"
	"time"
	"unsafe"

	"github.com/kvloom/kvloom/autotune/measure"
	"github.com/kvloom/kvloom/gen/plan"
	"github.com/kvloom/kvloom/gen/render"
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
}

// chains are works of one layer that are timed together.
var chains = map[string][]measure.Work{
	ChainFamily:      {measure.Work(plan.PageScore), measure.Work(plan.PageSelect), measure.Work(plan.PageAttend)},
	DropObserveScore: {measure.Work(plan.DropObserve), measure.Work(plan.DropScore)},
	DropChain:        {measure.Work(plan.DropObserve), measure.Work(plan.DropScore), measure.Work(plan.DropPool), measure.Work(plan.DropSelect)},
}

// Bench measures jobs on one device.
type Bench struct {
	Dev      device.Device
	Compile  func(context.Context, render.Source) (*nvrtc.Module, error)
	Choose   func(s *specs.Spec, p *plan.Plan, w specs.Workload, work measure.Work) (plan.Candidate, error)
	Commit   string
	Command  string
	Peers    []string // torch, flashinfer
	Python   string
	Progress func(string)

	roof float64
}

// Run measures every job, and the peers beside it. Notes name the peers that were left out and why.
func (b *Bench) Run(ctx context.Context, jobs []Job) (results []Result, notes []string, err error) {
	if b.roof, err = b.measureRoof(ctx); err != nil {
		return nil, nil, err
	}
	b.Progress(fmt.Sprintf("read bandwidth %.2f TB/s", b.roof))
	for _, j := range jobs {
		if err := ctx.Err(); err != nil {
			return results, notes, err
		}
		rs, err := b.job(ctx, j)
		if err != nil {
			return results, notes, fmt.Errorf("%s at %d x %d: %w", j.Spec.Name, j.Workload.Context, j.Workload.Batch, err)
		}
		results = append(results, rs...)
	}
	if len(b.Peers) > 0 {
		b.Progress("peers: " + strings.Join(b.Peers, ", "))
		notes = b.measurePeers(ctx, results)
	}
	return results, notes, nil
}

func (b *Bench) job(ctx context.Context, j Job) (results []Result, err error) {
	rig, err := measure.NewRig(b.Dev, j.Spec, j.Workload)
	if err != nil {
		return nil, err
	}
	rig.Warm = j.Warm
	if j.Contiguous {
		rig.Contiguous()
	}
	defer func() { err = errors.Join(err, rig.Close()) }()
	p := plan.New(j.Spec, plan.Targets["sm_90a"])
	steps := map[string]*measure.Step{}
	names := map[string]string{}
	prepare := func(work measure.Work) error {
		if steps[string(work)] != nil {
			return nil
		}
		c, err := b.Choose(j.Spec, p, j.Workload, work)
		if err != nil {
			return err
		}
		step, err := b.step(ctx, rig, work, c)
		if err != nil {
			return fmt.Errorf("%s: %w", c.ID(), err)
		}
		steps[string(work)], names[string(work)] = step, strings.TrimPrefix(c.ID(), string(c.Family)+" ")
		return nil
	}
	for _, family := range j.Families {
		works := chains[family]
		if works == nil {
			works = []measure.Work{measure.Work(family)}
		}
		var parts []*measure.Step
		var words []string
		for _, w := range works {
			if err := prepare(w); err != nil {
				return nil, err
			}
			parts = append(parts, steps[string(w)])
			words = append(words, string(w)[strings.IndexByte(string(w), '_')+1:])
		}
		step, name := parts[0], names[family]
		if len(parts) > 1 {
			step, name = measure.Chain(parts...), strings.Join(words, ", ")
		}
		timing := measure.Usual
		timing.Least, timing.Most, timing.Width = 30, 100, 0.003
		samples, _, err := rig.Time(step, timing)
		if err != nil {
			return nil, err
		}
		r := b.result(j, p, family, name, samples)
		results = append(results, r)
		b.Progress(fmt.Sprintf("%-12s %s %dx%d: %.2f us (%.2f to %.2f), %.2f TB/s", family, j.Spec.Name, j.Workload.Context, j.Workload.Batch,
			r.MedianUS, r.LoUS, r.HiUS, r.TBPerS))
	}
	return results, nil
}

func (b *Bench) result(j Job, p *plan.Plan, family, candidate string, samples []float64) Result {
	sum := measure.Summarise(samples)
	info := b.Dev.Info()
	r := Result{Date: time.Now().UTC().Format(time.RFC3339), Card: info.Name, Driver: info.DriverName, Commit: b.Commit, Command: b.Command,
		Family: family, Shape: ShapeOf(family, j), Candidate: candidate,
		MedianUS: sum.Median, LoUS: sum.Lo, HiUS: sum.Hi, Samples: sum.N, Bytes: Bytes(p, family, j.Workload), RoofTBPerS: b.roof,
		Baselines: map[string]float64{}}
	r.TBPerS = float64(r.Bytes) / sum.Median / 1e6
	return r
}

// Bytes is what a family must move for a workload, by the plan's model.
func Bytes(p *plan.Plan, family string, w specs.Workload) int64 {
	if works := chains[family]; works != nil {
		var total int64
		for _, work := range works {
			total += Bytes(p, string(work), w)
		}
		return total
	}
	if family == string(measure.Dense) {
		a := p.Spec.Attention
		return int64(w.Batch) * int64(w.Context) * int64(a.KVHeads) * int64(a.HeadDim) * 4
	}
	return p.Of(plan.Family(family)).Cost(w).Bytes
}

func (b *Bench) step(ctx context.Context, rig *measure.Rig, work measure.Work, c plan.Candidate) (*measure.Step, error) {
	src, err := render.Candidate(c)
	if err != nil {
		return nil, err
	}
	fn, err := b.load(ctx, src)
	if err != nil {
		return nil, err
	}
	return rig.Step(work, c, fn)
}

func (b *Bench) load(ctx context.Context, src render.Source) (device.Function, error) {
	m, err := b.Compile(ctx, src)
	if err != nil {
		return nil, err
	}
	image := m.Cubin
	if src.Arch == plan.PortableArch {
		image = m.PTX
	}
	mod, err := b.Dev.Load(image)
	if err != nil {
		return nil, err
	}
	return mod.Function(src.Entry)
}

//go:embed roof.cu
var roofSource string

// measureRoof reads 2 GiB some times and returns the best TB/s.
func (b *Bench) measureRoof(ctx context.Context) (float64, error) {
	fn, err := b.load(ctx, render.Source{Name: "roof.cu", Text: roofSource, Entry: "roof", Arch: plan.Targets["sm_90a"].Arch})
	if err != nil {
		return 0, err
	}
	const bytes = 2 << 30
	data, err := b.Dev.Alloc(bytes)
	if err != nil {
		return 0, err
	}
	defer b.Dev.Free(data) //nolint:errcheck // the measurement stands
	never, err := b.Dev.Alloc(16)
	if err != nil {
		return 0, err
	}
	defer b.Dev.Free(never) //nolint:errcheck // the measurement stands
	if err := b.Dev.Fill(data, 0x5a, bytes); err != nil {
		return 0, err
	}
	stream, err := b.Dev.NewStream()
	if err != nil {
		return 0, err
	}
	defer stream.Destroy() //nolint:errcheck // the measurement stands
	args := &struct {
		data  device.Ptr
		words int64
		never device.Ptr
	}{data, bytes / 16, never}
	l := &device.Launch{Grid: [3]uint32{uint32(b.Dev.Info().SMs * 4), 1, 1}, Block: [3]uint32{512, 1, 1}, Cluster: [3]uint32{1, 1, 1}}
	best := 0.0
	begin, err := b.Dev.NewEvent()
	if err != nil {
		return 0, err
	}
	end, err := b.Dev.NewEvent()
	if err != nil {
		return 0, err
	}
	for range 12 {
		err := errors.Join(stream.Record(begin), fn.Launch(stream, l, unsafe.Pointer(args), unsafe.Sizeof(*args)), stream.Record(end), end.Synchronize())
		if err != nil {
			return 0, err
		}
		ms, err := end.Since(begin)
		if err != nil {
			return 0, err
		}
		best = max(best, bytes/ms/1e9)
	}
	return best, errors.Join(begin.Destroy(), end.Destroy())
}

//go:embed peers.py
var peersSource string

// measurePeers fills in the baselines and returns notes on what was left out.
func (b *Bench) measurePeers(ctx context.Context, results []Result) []string {
	jobs, err := json.Marshal(results)
	if err != nil {
		panic("BUG: bench: results: " + err.Error())
	}
	cmd := exec.CommandContext(ctx, b.Python, "-c", peersSource, strings.Join(b.Peers, ","))
	cmd.Stdin = bytes.NewReader(jobs)
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	var notes []string
	for line := range bytes.Lines(out) {
		var answer struct {
			Index   int                `json:"index"`
			Peers   map[string]float64 `json:"peers"`
			LeftOut map[string]string  `json:"left_out"`
		}
		if json.Unmarshal(line, &answer) != nil || answer.Index >= len(results) {
			continue // a peer's own talk on standard output
		}
		for name, us := range answer.Peers {
			results[answer.Index].Baselines[name] = us
		}
		for name, why := range answer.LeftOut {
			notes = append(notes, fmt.Sprintf("%s left out of %s: %s", name, results[answer.Index].Family, why))
		}
	}
	if err != nil {
		last := strings.TrimSpace(stderr.String())
		notes = append(notes, fmt.Sprintf("peers %s: %v: %s", strings.Join(b.Peers, ","), err, last[max(0, len(last)-400):]))
	}
	return notes
}
