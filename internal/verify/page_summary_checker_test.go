package verify

import (
	"math"
	"strings"
	"testing"
	"unsafe"

	"github.com/kvloom/kvloom/gen/plan"
	"github.com/kvloom/kvloom/internal/reference"
	"github.com/kvloom/kvloom/runtime/device"
	"github.com/kvloom/kvloom/runtime/kernel"
	"github.com/kvloom/kvloom/specs"
)

// fakeSummary is page_summary done by the reference on the fake device, with a fault to be found.
type fakeSummary struct {
	fakeKernel
	problem *Problem
	change  func(c *reference.Codes)           // of every record
	record  func(packed []byte)                // likewise
	launch  func(args *kernel.PageSummaryArgs) // once done
	again   bool                               // rebuilds pages that were built before
}

func (k *fakeSummary) Launch(s device.Stream, _ *device.Launch, params unsafe.Pointer, _ uintptr) error {
	args := *(*kernel.PageSummaryArgs)(params)
	return s.(*fakeStream).do(func() error { return k.build(&args) })
}

func (k *fakeSummary) build(args *kernel.PageSummaryArgs) error {
	c, shape := k.problem.Cache, k.problem.Shape
	copy(c.SeqLens, Int32s(k.dev.at(args.Cache.SeqLens, 4*c.Batch())))
	built := Int32s(k.dev.at(args.BuiltLens, 4*c.Batch()))
	for b, n := range c.SeqLens {
		first := int(built[b]) / c.PageSize
		if k.again {
			first = 0
		}
		for page := first; page < int(n)/c.PageSize; page++ {
			id := c.Block(b, page)
			if id < 0 {
				continue
			}
			for h := range c.KVHeads {
				codes := reference.Summarise(c.Keys(b, page, h, c.PageSize), shape).Quantise()
				if k.change != nil {
					k.change(&codes)
				}
				packed := codes.Pack()
				if k.record != nil {
					k.record(packed)
				}
				at := int64(id)*args.SummaryBlockStride + int64(h)*args.SummaryHeadStride
				copy(k.dev.at(args.Summaries+devicePtr(at), len(packed)), packed)
			}
		}
		built[b] = n / int32(c.PageSize) * int32(c.PageSize)
	}
	copy(k.dev.at(args.BuiltLens, 4*c.Batch()), BytesOfInt32(built))
	if k.launch != nil {
		k.launch(args)
	}
	return nil
}

// TestPageSummaryChecker plants faults into a build: the checker finds each, and nothing in a right one.
func TestPageSummaryChecker(t *testing.T) {
	grow := "pages filled while decoding"
	var fake *fakeDevice
	tests := []struct {
		name, reason, of string // of: the case
		kernel           fakeSummary
		want             string
	}{
		{"right", "no false alarm", grow, fakeSummary{}, ""},
		{"right, degenerate", "no false alarm", "degenerate pages", fakeSummary{}, ""},
		{"right, not finite", "no false alarm", notFinite, fakeSummary{}, ""},
		{"centroid two codes off", "one dim of many", grow, fakeSummary{change: func(c *reference.Codes) { c.Mu[3] -= int8(math.Copysign(2, float64(c.Mu[3]))) }}, "dim 3"},
		{"tokens exchanged", "a fragment mapping that swaps rows", grow, fakeSummary{change: func(c *reference.Codes) {
			r := c.Rank
			for i := range r {
				c.C[i], c.C[r+i] = c.C[r+i], c.C[i]
			}
			c.TokenScale[0], c.TokenScale[1] = c.TokenScale[1], c.TokenScale[0]
		}}, "token and column"},
		{"dims exchanged", "a lane permutation of V", grow, fakeSummary{change: func(c *reference.Codes) {
			for i := 0; i < c.HeadDim; i += 2 {
				c.V[i], c.V[i+1] = c.V[i+1], c.V[i]
			}
		}}, "block"},
		{"weakest columns first", "the smallest singular values instead of the largest", grow, fakeSummary{change: func(c *reference.Codes) {
			for i := range c.HeadDim {
				c.V[i] = c.V[(c.Rank-1)*c.HeadDim+i]
			}
		}}, "error"},
		{"a column missing", "its direction holds energy", grow, fakeSummary{change: func(c *reference.Codes) {
			for i := range c.HeadDim {
				c.V[c.HeadDim+i] = 0
			}
			c.VScale[1] = 0
		}}, "is zero"},
		{"noise in a rank-deficient page", "zero columns are promised", "degenerate pages", fakeSummary{change: func(c *reference.Codes) {
			c.VScale[c.Rank-1] = reference.ToBF16(0.01)
			c.V[(c.Rank-1)*c.HeadDim] = 7
		}}, "lower rank"},
		{"padding", "bytes between sections", grow, fakeSummary{record: func(b []byte) { b[len(b)-1] = 1 }}, "padding"},
		{"finite centroid scale of a NaN page", "its scores must be NaN", notFinite, fakeSummary{change: func(c *reference.Codes) {
			if math.IsNaN(reference.FromBF16(c.MuScale)) {
				c.MuScale = 0
			}
		}}, "not NaN"},
		{"built_lens not advanced", "the next launch builds all again", grow, fakeSummary{launch: func(a *kernel.PageSummaryArgs) {
			copy(fake.at(a.BuiltLens, 4), BytesOfInt32([]int32{0}))
		}}, "built_lens"},
		{"old pages rewritten", "they may be shared with a reader", grow, fakeSummary{again: true}, "outside the records"},
		{"workspace dirty", "T6", grow, fakeSummary{launch: func(a *kernel.PageSummaryArgs) { fake.at(a.Workspace, 4)[0] = 1 }}, "not zero"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			fake = newFake()
			s := summarySpec("bf16", 64, 16, 3, 4, 2)
			c := plan.ForFamily(plan.PageSummary, s, plan.Targets["sm_90a"]).Candidates[0]
			tt.kernel.dev = fake
			env := NewEnv(fake, func(plan.Candidate) (device.Function, error) { return &tt.kernel, nil })
			tt.kernel.problem = caseProblem(t, s, tt.of)
			results, err := Check(t.Context(), env, s, c, Options{Seed: 1, Only: tt.of})
			if err != nil {
				t.Fatal(err)
			}
			var failures []string
			for _, r := range results {
				if !r.OK() {
					failures = append(failures, r.Failure)
				}
			}
			got := strings.Join(failures, "; ")
			if (got == "") != (tt.want == "") || !strings.Contains(got, tt.want) {
				t.Errorf("%s: the checker said %q, expected something with %q", tt.reason, got, tt.want)
			}
		})
	}
}

// caseProblem makes the data that the checker will make for a case.
func caseProblem(t *testing.T, s *specs.Spec, name string) *Problem {
	t.Helper()
	cases := summaryCases(s, Options{Only: name})
	if len(cases) == 0 {
		t.Fatalf("no case %q", name)
	}
	p, err := NewProblem(s, cases[0], 1)
	if err != nil {
		t.Fatal(err)
	}
	plant(p, 1)
	return p
}
