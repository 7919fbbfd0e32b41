package cli

import (
	"context"
	"fmt"

	"github.com/kvloom/kvloom/autotune"
	"github.com/kvloom/kvloom/gen/plan"
	"github.com/kvloom/kvloom/specs"
)

// selfCheck measures kernels against themselves and fails when more of the equal pairs are called different than the claimed error rate
// allows for.
func (c *TuneCmd) selfCheck(soft context.Context, ctx *Context, list []*specs.Spec, t *tuneTools) error {
	for _, spec := range list {
		n := 0
		s, err := autotune.AA(soft, t.host, autotune.CompileWith(t.compiler), plan.New(spec, plan.Targets[spec.Targets[0]]), t.works, c.Pairs, func(p autotune.CheckPair) {
			n++
			fmt.Fprintf(ctx.Stderr, "%d/%d %s %dx%d: ratio %.4f, p %.3f\n", n, c.Pairs, p.Family, p.Context, p.Batch, p.Result.Ratio, p.Result.P)
		})
		if err != nil {
			return err
		}
		if ctx.JSON {
			if err := ctx.PrintJSON(s); err != nil {
				return err
			}
		} else {
			fmt.Fprintf(ctx.Stdout, "%s on %s, driver %s: %d of %d equal pairs were called different; at a stated error rate of %g %% at most %d may be\n",
				spec.Name, s.Device, s.Driver, s.Differ, s.Pairs, 100*s.Level, s.Atmost)
		}
		if !s.Holds() {
			return fmt.Errorf("the self-check of %s fails: %d of %d equal pairs were called different; the GPU is not quiet enough to tune on", spec.Name, s.Differ, s.Pairs)
		}
		if soft.Err() != nil {
			return nil
		}
	}
	return nil
}
