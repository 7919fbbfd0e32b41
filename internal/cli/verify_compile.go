package cli

import (
	"fmt"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/kvloom/kvloom/gen/plan"
	"github.com/kvloom/kvloom/gen/render"
	"github.com/kvloom/kvloom/internal/verify"
	"github.com/kvloom/kvloom/runtime/nvrtc"
	"github.com/kvloom/kvloom/runtime/sim"
	"github.com/kvloom/kvloom/specs"
)

// compile fills the compiler's cache with what the checks on an H200 load, each source once. What does not compile is an error with
// the compiler's words, after everything else was compiled.
func (v *VerifyCmd) compile(c *Context, compiler *nvrtc.Compiler, list []*specs.Spec, families []plan.Family) error {
	dev, err := sim.New(sim.Config{}) // an H200 without one
	if err != nil {
		return err
	}
	defer dev.Close()
	info := dev.Info()
	info.Backend = "cuda"
	sources := map[string]render.Source{}
	for _, s := range list {
		p, err := verify.Plan(info, s, verify.Options{Candidates: v.Candidates, Families: families, MaxCluster: v.MaxCluster})
		if err != nil {
			return err
		}
		for _, candidate := range p.All() {
			src, err := render.Candidate(candidate)
			if err != nil {
				return err
			}
			sources[src.Hash] = src
		}
	}
	start := time.Now()
	var done atomic.Int64
	g := new(errgroup.Group)
	g.SetLimit(v.jobsOf("cuda"))
	for _, src := range sources {
		g.Go(func() error {
			if c.Err() != nil {
				return c.Err()
			}
			_, err := compiler.Compile(c, src, nvrtc.Options{})
			if n := done.Add(1); n%10 == 0 || int(n) == len(sources) {
				fmt.Fprintf(c.Stderr, "[%d/%d] %v\n", n, len(sources), time.Since(start).Round(time.Second))
			}
			return err
		})
	}
	if err := g.Wait(); err != nil {
		return err
	}
	fmt.Fprintf(c.Stdout, "%d kernels compiled\n", len(sources))
	return nil
}
