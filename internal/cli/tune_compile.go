package cli

import (
	"slices"

	"github.com/kvloom/kvloom/autotune"
	"github.com/kvloom/kvloom/autotune/measure"
	"github.com/kvloom/kvloom/autotune/search"
	"github.com/kvloom/kvloom/gen/plan"
	"github.com/kvloom/kvloom/gen/render"
	"github.com/kvloom/kvloom/runtime/nvrtc"
	"github.com/kvloom/kvloom/specs"
)

// compileOnly compiles the candidates of models into the cache. Large spaces, of which tune measures a part that nobody knows beforehand, are
// compiled where their family is named. A candidate that NVRTC refuses is no failure here: tune records it as one.
func (c *TuneCmd) compileOnly(ctx *Context, list []*specs.Spec, works []measure.Work) error {
	compiler, err := nvrtc.Open()
	if err != nil {
		return err
	}
	var sources []render.Source
	for _, spec := range list {
		p := plan.New(spec, plan.Targets[spec.Targets[0]])
		for _, fp := range p.Families {
			wanted := func(w measure.Work) bool { return w.Family() == fp.Family }
			if (len(works) > 0 || len(fp.Candidates) > search.Exhaustive) && !slices.ContainsFunc(works, wanted) {
				continue
			}
			for _, candidate := range fp.Candidates {
				src, err := render.Candidate(candidate)
				if err != nil {
					return err
				}
				sources = append(sources, src)
			}
		}
	}
	_, err = compileAll(ctx, nvrtc.NewOnce(autotune.CompileWith(compiler)), sources)
	return err
}
