package cli

import (
	"fmt"
	"text/tabwriter"

	"github.com/kvloom/kvloom/internal/bench"
)

// guard compares what is measured now, or the lines of --import, with the last recorded results, which it leaves as they are.
func (c *BenchCmd) guard(ctx *Context) error {
	if c.Threshold < 0 {
		return fmt.Errorf("bench --threshold %g: want a share of the recorded median, such as 0.03", c.Threshold)
	}
	recorded, err := bench.Read(c.Out)
	if err != nil {
		return err
	}
	if len(recorded) == 0 {
		return fmt.Errorf("bench --guard: %s has no results to compare with; kvloom bench records them", c.Out)
	}
	var now []bench.Result
	if c.Import != "" {
		if now, err = bench.Read(c.Import); err == nil && len(now) == 0 {
			err = fmt.Errorf("bench --guard --import %s: no results in it", c.Import)
		}
		if err != nil {
			return err
		}
		now = bench.Newest(now)
	} else {
		jobs, err := c.jobs()
		if err != nil {
			return err
		}
		if now, err = c.measure(ctx, jobs, nil); err != nil {
			return err
		}
	}
	verdicts := bench.Guard(recorded, now, c.Threshold)
	if err := printVerdicts(ctx, verdicts); err != nil {
		return err
	}
	counts := map[string]int{}
	for _, v := range verdicts {
		counts[v.Class]++
	}
	fmt.Fprintf(ctx.Stderr, "%d slower, %d faster, %d the same, %d without a record\n", counts[bench.Slower], counts[bench.Faster], counts[bench.Same], counts[bench.New])
	if counts[bench.Slower] > 0 {
		return fmt.Errorf("bench --guard: %d of %d works are slower than recorded by more than %g %%", counts[bench.Slower], len(verdicts), 100*c.Threshold)
	}
	return nil
}

func printVerdicts(ctx *Context, verdicts []bench.Verdict) error {
	if ctx.JSON {
		return ctx.PrintJSON(verdicts)
	}
	t := tabwriter.NewWriter(ctx.Stdout, 0, 0, 2, ' ', 0)
	fmt.Fprintf(t, "family\theads\ttokens\tus\tbefore\tratio\t\n")
	for _, v := range verdicts {
		before, ratio := "-", "-"
		if v.Class != bench.New {
			before, ratio = fmt.Sprintf("%.2f", v.Before.MedianUS), fmt.Sprintf("%.3f", v.Ratio)
		}
		fmt.Fprintf(t, "%s\t%s\t%dx%d\t%.2f\t%s\t%s\t%s\n", family(v.Now), heads(v.Now.Shape), v.Now.Shape.Tokens, v.Now.Shape.Batch, v.Now.MedianUS, before, ratio, v.Class)
	}
	return t.Flush()
}
