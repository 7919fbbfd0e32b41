package verify

import (
	"fmt"
	"maps"
	"strings"
	"testing"

	"github.com/kvloom/kvloom/gen/plan"
	"github.com/kvloom/kvloom/gen/render"
	"github.com/kvloom/kvloom/internal/gputest"
	"github.com/kvloom/kvloom/runtime/device"
	"github.com/kvloom/kvloom/runtime/nvrtc"
	"github.com/kvloom/kvloom/runtime/nvrtc/nvrtctest"
	"github.com/kvloom/kvloom/specs"
)

// TestTridiagonalSummaryOnSim runs the direct form of page_summary on the simulator: its layouts differ by head dim, rank and bits.
func TestTridiagonalSummaryOnSim(t *testing.T) {
	t.Parallel()
	careful := []string{notFinite, "degenerate pages", hugeKeys, oddStrides}
	for _, tt := range []struct {
		dtype           string
		dim, rank, bits int
		reason          string
		only            []string // cases; none: all
	}{
		{"bf16", 64, 4, 4, "two pages a tile, every case", nil},
		{"bf16", 128, 8, 16, "one page a tile; energies are judged without a code's error", []string{"one token", decaying, equalSpan, "degenerate pages", tinyKeys}},
		{"fp16", 112, 5, 4, "padding in rows of whole units, rows past the rank", careful},
		{"bf16", 80, 3, 2, "quarters that end in the middle of a tile, two lanes a byte", careful},
		{"fp16", 96, 8, 8, "rows that are not exchanged", careful},
		{"bf16", 192, 1, 8, "eight samples an eigenvalue", careful},
		{"bf16", 256, 2, 16, "most registers", careful},
		{"bf16", 64, 8, 16, "a start vector that holds little of the vector it is to find", []string{"half-full last page", "low rank"}},
		{"bf16", 192, 6, 4, "two eigenvalues in one bracket", []string{"half-full last page", "near-equal spectrum"}},
	} {
		t.Run(fmt.Sprintf("%s d%d r%d b%d", tt.dtype, tt.dim, tt.rank, tt.bits), func(t *testing.T) {
			s := summarySpec(tt.dtype, tt.dim, 16, tt.rank, tt.bits, 2)
			c, ok := plan.ForFamily(plan.PageSummary, s, plan.Targets["sm_90a"]).DefaultOf(plan.Portable)
			if !ok || c.Kernel != "kvloom::page_summary_tridiagonal" {
				t.Fatalf("%s: the default is %s", tt.reason, c.ID())
			}
			checkSummaryOnSim(t, s, c, tt.reason, tt.only)
		})
	}
}

// TestSummaryVariantsOnSim: the tuner may choose any of them.
func TestSummaryVariantsOnSim(t *testing.T) {
	t.Parallel()
	for _, rank := range []int{4, 8} {
		s := summarySpec("bf16", 64, 16, rank, 4, 2)
		seen := map[string]bool{}
		for _, c := range plan.ForFamily(plan.PageSummary, s, plan.Targets["sm_90a"]).Candidates {
			if c.Form != plan.Portable || c.Kernel != "kvloom::page_summary_tridiagonal" {
				continue
			}
			variant := fmt.Sprintf("residual %d, stagger %t", c.Param("residual"), c.Param("stagger") > 0)
			if seen[variant] {
				continue
			}
			seen[variant] = true
			t.Run(fmt.Sprintf("rank %d, %s", rank, variant), func(t *testing.T) {
				checkSummaryOnSim(t, s, c, variant, []string{"half-full last page", "degenerate pages", equalSpan, decaying, farKeys})
			})
		}
		if len(seen) < 4 {
			t.Errorf("rank %d: %d variants", rank, len(seen))
		}
	}
}

// TestJacobiSummaryOnSim: the general form of pages up to 16 tokens stays a candidate where the direct one is the default, and the only
// one for higher ranks.
func TestJacobiSummaryOnSim(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct{ page, rank int }{
		{16, 4}, {16, 9},
		{16, 14}, // short directions whose vectors were not orthogonal to the long ones put those into V a second time
		{8, 7},
	} {
		t.Run(fmt.Sprintf("pages of %d, rank %d", tt.page, tt.rank), func(t *testing.T) {
			s := summarySpec("bf16", 64, tt.page, tt.rank, 4, 2)
			for _, c := range plan.ForFamily(plan.PageSummary, s, plan.Targets["sm_90a"]).Candidates {
				if c.Form == plan.Portable && c.Kernel == "kvloom::page_summary_warp" {
					checkSummaryOnSim(t, s, c, "Jacobi", []string{"half-full last page", notFinite, "degenerate pages", decaying, oddStrides, "pages filled while decoding"})
					return
				}
			}
			t.Fatal("no candidate of the Jacobi form")
		})
	}
}

// checkSummaryOnSim runs the cases named, or all.
func checkSummaryOnSim(t *testing.T, s *specs.Spec, c plan.Candidate, reason string, only []string) {
	t.Helper()
	dev := gputest.Sim(t)
	env := NewEnv(dev, NewLoader(t.Context(), dev, nvrtctest.Compiler(t)).Compile)
	if only == nil {
		only = []string{""}
	}
	for _, name := range only {
		results, err := Check(t.Context(), env, s, c, Options{Seed: 1, Only: name})
		if err != nil {
			t.Fatal(err)
		}
		for _, r := range results {
			if !r.OK() {
				t.Errorf("%s: %s, %s: %s", reason, r.Case, r.Metric, r.Failure)
			}
			t.Logf("%s: %s: error %.3g, bound %.3g, %d values", r.Case, r.Metric, r.MaxError, r.Bound, r.Count)
		}
	}
	if err := env.Close(); err != nil {
		t.Error(err)
	}
}

// TestWeightedSummaryOnSim runs the form with query-weighted bases: every case once, then layouts that differ.
func TestWeightedSummaryOnSim(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		dtype           string
		dim, rank, bits int
		reason          string
		only            []string // cases; none: all
	}{
		{"bf16", 64, 4, 4, "two pages a tile, every case", nil},
		{"bf16", 128, 8, 16, "one page a tile; energies are judged without a code's error", []string{decaying, "degenerate pages", oneQuery}},
		{"fp16", 112, 5, 4, "rows of no whole lines, seven blocks", []string{"mixed lengths", notFinite, tinyKeys, farKeys}},
		{"bf16", 256, 2, 8, "most registers", []string{"half-full last page", noQueries}},
	} {
		t.Run(fmt.Sprintf("%s d%d r%d b%d", tt.dtype, tt.dim, tt.rank, tt.bits), func(t *testing.T) {
			s := summarySpec(tt.dtype, tt.dim, 16, tt.rank, tt.bits, 2)
			s.Locks.Basis = plan.QueryWeighted
			c, ok := plan.ForFamily(plan.PageSummary, s, plan.Targets["sm_90a"]).DefaultOf(plan.Portable)
			if !ok || c.Kernel != "kvloom::page_summary_weighted" {
				t.Fatalf("%s: the default is %s", tt.reason, c.ID())
			}
			checkSummaryOnSim(t, s, c, tt.reason, tt.only)
		})
	}
}

// TestInverseIterationHasRoom moves the length of the start vectors by eight decades up and six down: no direction may be lost, for a GPU's own
// rounding decides how near a shift comes to an eigenvalue. With a start of 1e-2, page 1 of this spec loses its second direction; with 1e-10
// it lost it on an H200 alone.
func TestInverseIterationHasRoom(t *testing.T) {
	const now = "kStart = 1e-20f"
	s := RandomSpecs(17, 1)[16]
	c, ok := plan.ForFamily(plan.PageSummary, s, plan.Targets["sm_90a"]).DefaultOf(plan.Portable)
	if !ok || c.Kernel != "kvloom::page_summary_tridiagonal" {
		t.Fatalf("the default is %s", c.ID())
	}
	for _, start := range []string{"1e-12f", "1e-26f", "1e-2f"} {
		dev := gputest.Sim(t)
		compiler := nvrtctest.Compiler(t)
		env := NewEnv(dev, func(c plan.Candidate) (device.Function, error) {
			src, err := render.Candidate(c)
			if err != nil {
				return nil, err
			}
			header := src.Headers["kvloom/linalg/leading16.cuh"]
			if !strings.Contains(header, now) {
				return nil, fmt.Errorf("the header has no %q", now)
			}
			src.Headers = maps.Clone(src.Headers)
			src.Headers["kvloom/linalg/leading16.cuh"] = strings.Replace(header, now, "kStart = "+start, 1)
			src.Hash += start
			m, err := compiler.Compile(t.Context(), src, nvrtc.Options{})
			if err != nil {
				return nil, err
			}
			module, err := dev.Load(m.PTX)
			if err != nil {
				return nil, err
			}
			return module.Function(src.Entry)
		})
		lost := 0
		for _, name := range []string{"no pages", "half-full last page"} {
			results, err := Check(t.Context(), env, s, c, Options{Seed: 1, Only: name})
			if err != nil {
				t.Fatal(err)
			}
			for _, r := range results {
				if !r.OK() {
					lost++
					t.Logf("start %s: %s: %s", start, r.Case, r.Failure)
				}
			}
		}
		if err := env.Close(); err != nil {
			t.Error(err)
		}
		if overflows := start == "1e-2f"; (lost > 0) != overflows {
			t.Errorf("start %s: %d results are over their bounds", start, lost)
		}
	}
}
