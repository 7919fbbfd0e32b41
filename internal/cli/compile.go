package cli

import (
	"errors"
	"fmt"
	"runtime"
	"slices"
	"time"

	"github.com/kvloom/kvloom/gen/render"
	"github.com/kvloom/kvloom/runtime/nvrtc"
)

// compileReport is what --compile prints with --json.
type compileReport struct {
	Kernels int     `json:"kernels"` // different sources, those refused among them
	Refused int     `json:"refused"`
	Seconds float64 `json:"seconds"`
}

// compileAll fills the compiler's cache with sources, for the --compile of verbs that would load them, and says how that went. It needs no GPU.
// The faults are those of sources that do not compile; what else keeps a compiler from working is the error.
func compileAll(ctx *Context, code *nvrtc.Once, sources []render.Source) (faults []error, err error) {
	seen := map[string]bool{}
	sources = slices.DeleteFunc(slices.Clone(sources), func(s render.Source) bool {
		again := seen[s.Hash]
		seen[s.Hash] = true
		return again
	})
	start := time.Now()
	last := start
	all := code.All(ctx, sources, runtime.NumCPU(), func(done int) {
		if now := time.Now(); done == len(sources) || now.Sub(last) > time.Second {
			last = now
			fmt.Fprintf(ctx.Stderr, "[%d/%d] %v\n", done, len(sources), now.Sub(start).Round(100*time.Millisecond))
		}
	})
	for _, fault := range all {
		var refused *nvrtc.CompileError
		switch {
		case fault == nil:
		case errors.As(fault, &refused):
			faults = append(faults, fault)
		default:
			return faults, fault
		}
	}
	report := compileReport{Kernels: len(sources), Refused: len(faults), Seconds: time.Since(start).Seconds()}
	if ctx.JSON {
		return faults, ctx.PrintJSON(report)
	}
	_, err = fmt.Fprintf(ctx.Stdout, "%d kernels compiled, %d refused, %.1f s\n", report.Kernels-report.Refused, report.Refused, report.Seconds)
	return faults, err
}
