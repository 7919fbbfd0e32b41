package cli

import (
	"errors"
	"fmt"
	"os"
	"runtime"

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

// countedWork is a work whose bytes are counted, with the kernel that does it.
type countedWork struct {
	spec      *specs.Spec
	plan      *plan.Plan
	work      measure.Work
	candidate plan.Candidate
}

// bytes counts the bytes that each work moves beside those of the plan's model, of several models what no earlier one does with the
// same candidate. The simulator counts sectors that are asked for, as though there were no cache. On a GPU each work is launched once, for a
// profiler to count; --ncu then reads what it wrote.
func (c *BenchCmd) bytes(ctx *Context) error {
	if len(c.Models) == 0 || len(c.Workload) > 1 {
		return errors.New("bench --bytes: name a model, or several, and at most one workload")
	}
	w := bytesWorkload
	if len(c.Workload) == 1 {
		list, err := parseWorkloads(c.Workload)
		if err != nil {
			return err
		}
		w = list[0]
	}
	list, err := c.counted(ctx, w)
	if err != nil {
		return err
	}
	rows := make([]bench.Moved, len(list))
	for i, l := range list {
		rows[i] = bench.Moved{Spec: l.spec.Name, Work: string(l.work), Candidate: l.candidate.ID()[len(l.candidate.Family)+1:], Tokens: w.Context, Batch: w.Batch,
			Model: bench.Bytes(l.plan, string(l.work), w)}
	}
	from := "the simulator, as though there were no cache"
	switch {
	case c.NCU != "":
		from = "the profiler, at device memory with flushed caches"
		err = c.joinNCU(rows, list)
	case c.Device == "auto" || c.Device == "sim":
		err = countRows(ctx, w, rows, list)
	default:
		return c.launchForProfiler(ctx, w, list)
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

// counted are the works of all models, in order, without those that an earlier model does by the same candidate with the same bytes.
func (c *BenchCmd) counted(ctx *Context, w specs.Workload) (list []countedWork, err error) {
	choose, done, err := c.chooser(ctx)
	if err != nil {
		return nil, err
	}
	defer done()
	type key struct {
		work      measure.Work
		candidate string
		bytes     int64
	}
	seen := map[key]bool{}
	for _, model := range c.Models {
		s, err := specs.Resolve(model)
		if err != nil {
			return nil, err
		}
		p := plan.New(s, plan.Targets["sm_90a"])
		for _, work := range c.works(p) {
			candidate, err := choose(s, p, w, work)
			if err != nil {
				return nil, err
			}
			if k := (key{work, candidate.ID(), bench.Bytes(p, string(work), w)}); !seen[k] {
				seen[k] = true
				list = append(list, countedWork{s, p, work, candidate})
			}
		}
	}
	return list, nil
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

func (c *BenchCmd) joinNCU(rows []bench.Moved, list []countedWork) error {
	f, err := os.Open(c.NCU)
	if err != nil {
		return fmt.Errorf("--ncu: %w", err)
	}
	defer f.Close()
	counted, err := bench.ParseNCU(f)
	if err != nil {
		return fmt.Errorf("--ncu %s: %w", c.NCU, err)
	}
	var entries []string
	for _, l := range list {
		entries = append(entries, l.candidate.Entry)
	}
	if err := bench.Join(rows, entries, counted); err != nil {
		return fmt.Errorf("--ncu %s: %w; count with the same models, workload, families and choices", c.NCU, err)
	}
	return nil
}

// countRows counts each launch on the simulator, at the context and at twice that.
func countRows(ctx *Context, w specs.Workload, rows []bench.Moved, list []countedWork) error {
	double := specs.Workload{Context: 2 * w.Context, Batch: w.Batch}
	for i, l := range list {
		once, err := countLaunch(ctx, l.spec, w, l.work, l.candidate)
		if err != nil {
			return fmt.Errorf("%s: %w", l.candidate.ID(), err)
		}
		rows[i].Read, rows[i].Written = 32*once.GlobalReads.Sectors+once.BulkBytes, 32*once.GlobalWrites.Sectors
		more := bench.Bytes(l.plan, rows[i].Work, double) - rows[i].Model
		if more*4 < rows[i].Model { // it hardly grows with the context
			continue
		}
		twice, err := countLaunch(ctx, l.spec, double, l.work, l.candidate)
		if err != nil {
			return fmt.Errorf("%s: %w", l.candidate.ID(), err)
		}
		grown := 32*(twice.GlobalReads.Sectors+twice.GlobalWrites.Sectors) + twice.BulkBytes - rows[i].Read - rows[i].Written
		rows[i].Growth = float64(grown) / float64(more)
	}
	return nil
}

// launchForProfiler launches each work once on a GPU.
func (c *BenchCmd) launchForProfiler(ctx *Context, w specs.Workload, list []countedWork) error {
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
	var candidates []plan.Candidate
	for _, l := range list {
		candidates = append(candidates, l.candidate)
	}
	defer loader.Prefetch(candidates, runtime.NumCPU())()
	for _, l := range list {
		var fn device.Function
		if fn, err = loader.Compile(l.candidate); err == nil {
			err = launchOnce(dev, l.spec, w, l.work, l.candidate, fn)
		}
		if err != nil {
			return fmt.Errorf("%s: %w", l.candidate.ID(), err)
		}
		fmt.Fprintf(ctx.Stderr, "launched %s\n", l.candidate.ID())
	}
	return nil
}
