package cli

import (
	"errors"
	"fmt"
	"io"
	"text/tabwriter"

	"github.com/kvloom/kvloom/autotune/measure"
	"github.com/kvloom/kvloom/gen/plan"
	"github.com/kvloom/kvloom/internal/bench"
	"github.com/kvloom/kvloom/internal/verify"
	"github.com/kvloom/kvloom/runtime/device"
	"github.com/kvloom/kvloom/runtime/nvrtc"
	"github.com/kvloom/kvloom/runtime/sim"
	"github.com/kvloom/kvloom/specs"
)

// ProfileCmd counts what a kernel does, on the simulator.
type ProfileCmd struct {
	Model   string `arg:"" help:"Model name or spec file."`
	Kernel  string `arg:"" help:"page_summary, page_score, page_select, page_attend, dense (page_attend over all pages), drop_score, ..."`
	Form    string `default:"hopper" enum:"hopper,portable" help:"hopper or portable: the default candidate of that form."`
	Context int    `default:"16384" help:"Tokens of each request."`
	Batch   int    `default:"1" help:"Requests."`
}

// profileReport is what --json prints.
type profileReport struct {
	Candidate string       `json:"candidate"`
	Key       string       `json:"key"`
	Context   int          `json:"context"`
	Batch     int          `json:"batch"`
	Model     plan.Work    `json:"model"` // of the plan: what must be moved and computed
	Counters  sim.Counters `json:"counters"`
}

// Run runs the verb.
func (p *ProfileCmd) Run(c *Context) error {
	s, err := specs.Resolve(p.Model)
	if err != nil {
		return err
	}
	work, err := workNamed(p.Kernel)
	if err != nil {
		return err
	}
	fp := plan.ForFamily(work.Family(), s, plan.Targets["sm_90a"])
	candidate, ok := fp.DefaultOf(plan.Form(p.Form))
	if !ok {
		return fmt.Errorf("%s has no %s candidate of %s", s.Name, p.Form, work.Family())
	}
	w := specs.Workload{Context: p.Context, Batch: p.Batch}
	counters, err := countLaunch(c, s, w, work, candidate)
	if err != nil {
		return err
	}
	model := bench.Work(&plan.Plan{Spec: s, Families: []plan.FamilyPlan{fp}}, p.Kernel, w)
	r := profileReport{candidate.ID(), candidate.Key, p.Context, p.Batch, model, counters}
	if c.JSON {
		return c.PrintJSON(r)
	}
	return r.print(c.Stdout)
}

// countLaunch runs one launch of the candidate on a counting simulator, with the buffers that tuning would use.
func countLaunch(c *Context, s *specs.Spec, w specs.Workload, work measure.Work, candidate plan.Candidate) (counters sim.Counters, err error) {
	compiler, err := nvrtc.Open()
	if err != nil {
		return counters, err
	}
	dev, err := sim.New(sim.Config{Count: true})
	if err != nil {
		return counters, err
	}
	defer func() { err = errors.Join(err, dev.Close()) }()
	loader := verify.NewLoader(c, dev, compiler)
	fn, err := loader.Compile(candidate)
	if err != nil {
		return counters, err
	}
	err = launchOnce(dev, s, w, work, candidate, fn)
	return dev.(*sim.Device).Counters()[fn.Name()], errors.Join(err, loader.Unload())
}

func launchOnce(dev device.Device, s *specs.Spec, w specs.Workload, work measure.Work, candidate plan.Candidate, fn device.Function) (err error) {
	rig, err := measure.NewRig(dev, s, w)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, rig.Close()) }()
	step, err := rig.Step(work, candidate, fn)
	if err != nil {
		return err
	}
	return errors.Join(step.Launch(0), rig.Stream.Synchronize())
}

func (r profileReport) print(w io.Writer) error {
	n := r.Counters
	fmt.Fprintf(w, "%s\n%s, context %d, batch %d, one launch; counts of PTX instructions, no times\n\n", r.Candidate, r.Key, r.Context, r.Batch)
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	row := func(name string, format string, args ...any) {
		fmt.Fprintf(t, "%s\t%s\n", name, fmt.Sprintf(format, args...))
	}
	row("blocks", "%d", n.Blocks)
	row("warp instructions", "%d", n.WarpInstructions)
	row("thread instructions", "%d (%.1f lanes a warp instruction)", n.ThreadInstructions, float64(n.ThreadInstructions)/float64(max(n.WarpInstructions, 1)))
	for _, g := range sim.Groups() {
		row("  "+g.String(), "%d", n.ByGroup[g])
	}
	row("divergent branches", "%d of %d", n.DivergentBranches, n.Branches)
	row("global reads", "%v", n.GlobalReads)
	row("global writes", "%v", n.GlobalWrites)
	row("bulk copies", "%d bytes", n.BulkBytes)
	row("shared memory", "%d requests, %d wavefronts, %d of them bank conflicts", n.SharedRequests, n.SharedWavefronts, n.SharedConflicts)
	row("matrix multiply-adds", "%d", n.TensorMultiplyAdds)
	row("atomics", "%d", n.AtomicOperations)
	moved := 32*(n.GlobalReads.Sectors+n.GlobalWrites.Sectors) + n.BulkBytes
	row("bytes moved", "%d; the plan's model has %d (%.2f times)", moved, r.Model.Bytes, float64(moved)/float64(max(r.Model.Bytes, 1)))
	row("operations", "the plan's model has %d, and %d exponentials", r.Model.Flops, r.Model.Exponential)
	return t.Flush()
}
