package cli

import (
	"errors"
	"fmt"
	"runtime"
	"slices"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/kvloom/kvloom/autotune"
	"github.com/kvloom/kvloom/autotune/measure"
	"github.com/kvloom/kvloom/autotune/search"
	"github.com/kvloom/kvloom/gen/plan"
	"github.com/kvloom/kvloom/gen/render"
	"github.com/kvloom/kvloom/runtime/nvrtc"
	"github.com/kvloom/kvloom/specs"
)

// compileOnly compiles the candidates of models into the cache. It needs no GPU. Large spaces, of which tune measures a part that nobody knows
// beforehand, are compiled where their family is named. A candidate that NVRTC refuses is no failure here: tune records it as one.
func (c *TuneCmd) compileOnly(ctx *Context, list []*specs.Spec, works []measure.Work) error {
	compiler, err := nvrtc.Open()
	if err != nil {
		return err
	}
	var candidates []plan.Candidate
	for _, spec := range list {
		p := plan.New(spec, plan.Targets[spec.Targets[0]])
		for _, fp := range p.Families {
			wanted := func(w measure.Work) bool { return w.Family() == fp.Family }
			if len(works) == 0 && len(fp.Candidates) <= search.Exhaustive || slices.ContainsFunc(works, wanted) {
				candidates = append(candidates, fp.Candidates...)
			}
		}
	}
	compile, start := autotune.CompileWith(compiler), time.Now()
	var done, refused atomic.Int64
	workers, inner := errgroup.WithContext(ctx)
	workers.SetLimit(runtime.NumCPU())
	for _, candidate := range candidates {
		workers.Go(func() error {
			src, err := render.Candidate(candidate)
			if err != nil {
				return err
			}
			var no *nvrtc.CompileError
			if _, err := compile(inner, src); errors.As(err, &no) {
				refused.Add(1)
			} else if err != nil {
				return err
			}
			if n := done.Add(1); n%50 == 0 {
				fmt.Fprintf(ctx.Stderr, "%d of %d compiled\n", n, len(candidates))
			}
			return nil
		})
	}
	if err := workers.Wait(); err != nil {
		return err
	}
	if ctx.JSON {
		return ctx.PrintJSON(map[string]any{"candidates": len(candidates), "refused": refused.Load(), "seconds": time.Since(start).Seconds()})
	}
	fmt.Fprintf(ctx.Stdout, "%d candidates compiled, %d refused, %.0f s\n", len(candidates), refused.Load(), time.Since(start).Seconds())
	return nil
}
