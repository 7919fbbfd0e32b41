package cli

import (
	"errors"
	"fmt"
	"os"

	"github.com/kvloom/kvloom/autotune/measure"
	"github.com/kvloom/kvloom/gen/plan"
	"github.com/kvloom/kvloom/internal/bench"
	"github.com/kvloom/kvloom/internal/devices"
	"github.com/kvloom/kvloom/internal/verify"
	"github.com/kvloom/kvloom/runtime/device"
	"github.com/kvloom/kvloom/runtime/nvrtc"
	"github.com/kvloom/kvloom/specs"
)

// bytesWorkload is what the simulator counts at where --workload says nothing: it takes seconds there.
var bytesWorkload = specs.Workload{Context: 4096, Batch: 1}

// bytes counts the bytes that each work moves beside those of the plan's model. The simulator counts sectors that are asked for, as though there
// were no cache. On a GPU each work is launched once, for a profiler to count; --ncu then reads what it wrote.
func (c *BenchCmd) bytes(ctx *Context) error {
	if len(c.Models) != 1 || len(c.Workload) > 1 {
		return errors.New("bench --bytes: name one model and at most one workload")
	}
	s, err := specs.Resolve(c.Models[0])
	if err != nil {
		return err
	}
	w := bytesWorkload
	if len(c.Workload) == 1 {
		list, err := parseWorkloads(c.Workload)
		if err != nil {
			return err
		}
		w = list[0]
	}
	choose, done, err := c.chooser(ctx)
	if err != nil {
		return err
	}
	defer done()
	p := plan.New(s, plan.Targets["sm_90a"])
	var rows []bench.Moved
	var candidates []plan.Candidate
	var entries []string
	for _, work := range c.works(p) {
		candidate, err := choose(s, p, w, work)
		if err != nil {
			return err
		}
		rows = append(rows, bench.Moved{Work: string(work), Candidate: candidate.ID()[len(candidate.Family)+1:], Tokens: w.Context, Batch: w.Batch,
			Model: bench.Bytes(p, string(work), w)})
		candidates, entries = append(candidates, candidate), append(entries, candidate.Entry)
	}
	from := "the simulator, as though there were no cache"
	switch {
	case c.NCU != "":
		from = "the profiler, at device memory with flushed caches"
		err = c.joinNCU(rows, entries)
	case c.Device == "auto" || c.Device == "sim":
		err = countRows(ctx, s, p, w, rows, candidates)
	default:
		return c.launchForProfiler(ctx, s, w, rows, candidates)
	}
	if err != nil {
		return err
	}
	if ctx.JSON {
		return ctx.PrintJSON(rows)
	}
	_, err = fmt.Fprint(ctx.Stdout, bench.BytesTable(from, rows))
	return err
}

// works are those asked for, or all that the spec has use for.
func (c *BenchCmd) works(p *plan.Plan) (list []measure.Work) {
	if len(c.Family) > 0 {
		for _, f := range c.Family {
			list = append(list, measure.Work(f))
		}
		return list
	}
	for _, work := range measure.Works {
		if p.Has(work.Family()) {
			list = append(list, work)
		}
	}
	return list
}

func (c *BenchCmd) joinNCU(rows []bench.Moved, entries []string) error {
	f, err := os.Open(c.NCU)
	if err != nil {
		return fmt.Errorf("--ncu: %w", err)
	}
	defer f.Close()
	counted, err := bench.ParseNCU(f)
	if err != nil {
		return fmt.Errorf("--ncu %s: %w", c.NCU, err)
	}
	if err := bench.Join(rows, entries, counted); err != nil {
		return fmt.Errorf("--ncu %s: %w; count with the same model, workload, families and choices", c.NCU, err)
	}
	return nil
}

// countRows counts each launch on the simulator, at the context and at twice that.
func countRows(ctx *Context, s *specs.Spec, p *plan.Plan, w specs.Workload, rows []bench.Moved, candidates []plan.Candidate) error {
	double := specs.Workload{Context: 2 * w.Context, Batch: w.Batch}
	for i, c := range candidates {
		work := measure.Work(rows[i].Work)
		once, err := countLaunch(ctx, s, w, work, c)
		if err != nil {
			return fmt.Errorf("%s: %w", c.ID(), err)
		}
		rows[i].Read, rows[i].Written = 32*once.GlobalReads.Sectors+once.BulkBytes, 32*once.GlobalWrites.Sectors
		more := bench.Bytes(p, rows[i].Work, double) - rows[i].Model
		if more*4 < rows[i].Model { // it hardly grows with the context
			continue
		}
		twice, err := countLaunch(ctx, s, double, work, c)
		if err != nil {
			return fmt.Errorf("%s: %w", c.ID(), err)
		}
		grown := 32*(twice.GlobalReads.Sectors+twice.GlobalWrites.Sectors) + twice.BulkBytes - rows[i].Read - rows[i].Written
		rows[i].Growth = float64(grown) / float64(more)
	}
	return nil
}

// launchForProfiler launches each work once on a GPU.
func (c *BenchCmd) launchForProfiler(ctx *Context, s *specs.Spec, w specs.Workload, rows []bench.Moved, candidates []plan.Candidate) error {
	dev, err := devices.Open(c.Device)
	if err != nil {
		return err
	}
	defer dev.Close()
	compiler, err := nvrtc.Open()
	if err != nil {
		return err
	}
	loader := verify.NewLoader(ctx, dev, compiler)
	defer loader.Unload() //nolint:errcheck // the launches are done
	for i, candidate := range candidates {
		var fn device.Function
		if fn, err = loader.Compile(candidate); err == nil {
			err = launchOnce(dev, s, w, measure.Work(rows[i].Work), candidate, fn)
		}
		if err != nil {
			return fmt.Errorf("%s: %w", candidate.ID(), err)
		}
		fmt.Fprintf(ctx.Stderr, "launched %s\n", candidate.ID())
	}
	return nil
}
