package cli

import (
	"context"
	"errors"

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
	var sources []render.Source
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
			sources = append(sources, src)
		}
	}
	faults, err := compileAll(c, nvrtc.NewOnce(func(ctx context.Context, src render.Source) (*nvrtc.Module, error) {
		return compiler.Compile(ctx, src, nvrtc.Options{})
	}), sources)
	return errors.Join(append(faults, err)...)
}
