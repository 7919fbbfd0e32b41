package golden

import (
	"fmt"
	"strings"
	"testing"

	"golang.org/x/tools/txtar"

	"github.com/kvloom/kvloom/gen/plan"
	"github.com/kvloom/kvloom/gen/render"
	"github.com/kvloom/kvloom/internal/launch"
	"github.com/kvloom/kvloom/specs"
)

// stages is what the compiler makes of a spec: for its first target the plan and the source of each form's default, then the face of
// the Go package.
func stages(t *testing.T, s *specs.Spec) []txtar.File {
	t.Helper()
	p := plan.New(s, plan.Targets[s.Targets[0]])
	out := []txtar.File{{Name: "plan.txt", Data: []byte(planText(p))}}
	for _, fp := range p.Families {
		for _, form := range []plan.Form{plan.Hopper, plan.Portable} {
			c, ok := fp.DefaultOf(form)
			if !ok {
				continue
			}
			src, err := render.Candidate(c)
			if err != nil {
				t.Fatal(err)
			}
			out = append(out, txtar.File{Name: fmt.Sprintf("%s.%s.cu", c.Family, c.Form), Data: []byte(sourceText(src))})
		}
	}
	return append(out, bindings(t, s))
}

// planText holds what a person asks of a plan: what was specialised for, how many ways there are to run it, which is the default
// of each form and how it is launched, and why the others cannot run.
func planText(p *plan.Plan) string {
	var b strings.Builder
	fmt.Fprintf(&b, "target %s\n", p.Target.Arch)
	for _, fp := range p.Families {
		fmt.Fprintf(&b, "\n%s: %d candidates, %d rejected\n", fp.Family, len(fp.Candidates), len(fp.Rejected))
		for _, form := range []plan.Form{plan.Hopper, plan.Portable} {
			c, ok := fp.DefaultOf(form)
			if !ok {
				continue
			}
			g := c.Geometry
			fmt.Fprintf(&b, "  %s\n    key        %s\n    arch       %s\n    kernel     %s\n", c.ID(), c.Key, c.Arch, c.Kernel)
			fmt.Fprintf(&b, "    grid       %s, %s, %s\n", extent(g.Grid[0]), extent(g.Grid[1]), extent(g.Grid[2]))
			fmt.Fprintf(&b, "    block      %d threads, %d blocks an SM, cluster %d, dependent %t\n", g.Block, c.MinBlocks, g.Cluster, g.Dependent)
			fmt.Fprintf(&b, "    shared     %d B dynamic\n", g.DynamicShared)
			for _, w := range g.Workspace {
				fmt.Fprintf(&b, "    workspace  %s B\n", extent(w))
			}
		}
		b.WriteString(reasons(fp.Rejected))
	}
	return b.String()
}

// reasons lists the rejected, one a line.
func reasons(list []plan.Rejected) string {
	var b strings.Builder
	for _, r := range list {
		fmt.Fprintf(&b, "  not %s: %s\n", r.Candidate.ID(), r.Reason)
	}
	return b.String()
}

// extent writes an extent as a formula: "ceil(2 batch kv_heads / 16), at most 264".
func extent(e launch.Extent) string {
	factors := []string{}
	if e.Times != 1 || len(e.Of) == 0 {
		factors = append(factors, fmt.Sprint(e.Times))
	}
	for _, q := range e.Of {
		factors = append(factors, string(q))
	}
	text := strings.Join(factors, " ")
	if e.Per != 1 {
		text = fmt.Sprintf("ceil(%s / %d)", text, e.Per)
	}
	if e.AtMost > 0 {
		text += fmt.Sprintf(", at most %d", e.AtMost)
	}
	return text
}

// sourceText is the rendered text, and the names of the headers that travel with it.
func sourceText(s render.Source) string {
	var b strings.Builder
	b.WriteString(s.Text)
	b.WriteString("\n// headers:\n")
	for _, name := range s.HeaderNames() {
		fmt.Fprintf(&b, "//   %s\n", name)
	}
	return b.String()
}
