package verify

import (
	"context"
	"fmt"
	"testing"
	"unsafe"

	"github.com/kvloom/kvloom/gen/plan"
	"github.com/kvloom/kvloom/runtime/device"
	"github.com/kvloom/kvloom/runtime/kernel"
	"github.com/kvloom/kvloom/runtime/nvrtc/nvrtctest"
	"github.com/kvloom/kvloom/runtime/sim"
)

// mutant is a right kernel that is made wrong: spoil enqueues a write behind each of its launches, or nothing runs at all.
type mutant struct {
	device.Function
	skip  bool
	spoil func(params unsafe.Pointer) (at device.Ptr, value byte, bytes int64)
}

func (m *mutant) Launch(s device.Stream, l *device.Launch, params unsafe.Pointer, size uintptr) error {
	if m.skip {
		return nil
	}
	if err := m.Function.Launch(s, l, params, size); err != nil || m.spoil == nil {
		return err
	}
	at, value, bytes := m.spoil(params)
	return s.FillAsync(at, value, bytes)
}

// outputs and inputs of each family's argument struct.
func outputOf(f plan.Family, p unsafe.Pointer) device.Ptr {
	switch f {
	case plan.PageSummary:
		a := (*kernel.PageSummaryArgs)(p)
		return a.Summaries
	case plan.PageScore:
		return (*kernel.PageScoreArgs)(p).Scores
	case plan.PageSelect:
		return (*kernel.PageSelectArgs)(p).Pages
	case plan.PageAttend:
		return (*kernel.PageAttendArgs)(p).Out
	}
	panic("no such family")
}

func inputOf(f plan.Family, p unsafe.Pointer) device.Ptr {
	switch f {
	case plan.PageSummary:
		return (*kernel.PageSummaryArgs)(p).Cache.SeqLens
	case plan.PageScore:
		return (*kernel.PageScoreArgs)(p).Q
	case plan.PageSelect:
		return (*kernel.PageSelectArgs)(p).Scores
	case plan.PageAttend:
		return (*kernel.PageAttendArgs)(p).Q
	}
	panic("no such family")
}

// TestCheckersRefuseWrongKernels runs each family's own kernel on the simulator: as it is, it passes; made wrong in one place, it
// must not.
func TestCheckersRefuseWrongKernels(t *testing.T) {
	if testing.Short() {
		t.Skip("runs every family on the simulator")
	}
	compiler := nvrtctest.Compiler(t)
	dev, err := sim.New(sim.Config{})
	if err != nil {
		t.Fatal(err)
	}
	defer dev.Close()
	s := smallSpec()
	cases := map[plan.Family]string{plan.PageSummary: "one page", plan.PageScore: "one page", plan.PageSelect: "as many as slots", plan.PageAttend: "one page"}
	for f, only := range cases {
		if checkers[f] == nil {
			t.Errorf("%s has no checker", f)
			continue
		}
		c, ok := plan.New(s, plan.Targets["sm_90a"]).Of(f).DefaultOf(plan.Portable)
		if !ok {
			t.Errorf("%s has no portable candidate", f)
			continue
		}
		loader := NewLoader(t.Context(), dev, compiler)
		fn, err := loader.Compile(c)
		if err != nil {
			t.Fatal(err)
		}
		wrong := func(byteAt device.Ptr, value byte, bytes int64) *mutant {
			return &mutant{Function: fn, spoil: func(p unsafe.Pointer) (device.Ptr, byte, int64) { return outputOf(f, p) + byteAt, value, bytes }}
		}
		tests := []struct {
			name string
			fn   *mutant
			pass bool
		}{
			{"as it is", &mutant{Function: fn}, true},
			{"writes nothing", &mutant{Function: fn, skip: true}, false},
			{"one wrong element", wrong(0, 0x41, 4), false},
			{"one byte of the second element", wrong(5, 0x7f, 1), false},
			{"changes an input", &mutant{Function: fn, spoil: func(p unsafe.Pointer) (device.Ptr, byte, int64) { return inputOf(f, p), 0x3b, 1 }}, false},
			{"before the output", wrong(^device.Ptr(0), 0x41, 1), false},
		}
		for _, tt := range tests {
			t.Run(fmt.Sprintf("%s/%s", f, tt.name), func(t *testing.T) {
				e := NewEnv(dev, func(plan.Candidate) (device.Function, error) { return tt.fn, nil })
				e.Guard = 4096 // the spoiling writes are copies, which the simulator would refuse as such
				defer e.Close()
				results, err := Check(context.Background(), e, s, c, Options{Only: only, Seed: 1})
				if err != nil {
					t.Fatal(err)
				}
				failures := 0
				for _, r := range results {
					if !r.OK() {
						failures++
						if tt.pass {
							t.Errorf("%s: %s: %s", r.Case, r.Metric, r.Failure)
						}
					}
				}
				if !tt.pass && failures == 0 {
					t.Errorf("a kernel that is wrong passed: %+v", results)
				}
			})
		}
		if err := loader.Unload(); err != nil {
			t.Error(err)
		}
	}
}

// TestChainRefusesAMissingLink leaves out one kernel of the four, or spoils what it wrote for the next one.
func TestChainRefusesAMissingLink(t *testing.T) {
	if testing.Short() {
		t.Skip("runs every family on the simulator")
	}
	dev, err := sim.New(sim.Config{})
	if err != nil {
		t.Fatal(err)
	}
	defer dev.Close()
	loader := NewLoader(t.Context(), dev, nvrtctest.Compiler(t))
	s := smallSpec()
	links, ok := ChainCandidates(plan.New(s, plan.Targets["sm_90a"]), plan.Portable)
	if !ok {
		t.Fatal("no portable chain")
	}
	for broken := -1; broken < len(links); broken++ {
		for _, skip := range []bool{true, false} {
			e := NewEnv(dev, func(c plan.Candidate) (device.Function, error) {
				fn, err := loader.Compile(c)
				if err != nil || broken < 0 || c.Family != links[broken].Family {
					return fn, err
				}
				return &mutant{Function: fn, skip: skip, spoil: func(p unsafe.Pointer) (device.Ptr, byte, int64) {
					return outputOf(c.Family, p), 0x47, 64
				}}, nil
			})
			failures := 0
			for _, r := range CheckChain(t.Context(), e, s, "chain", links, Options{Only: "33 pages", Seed: 1}) {
				if !r.OK() {
					failures++
					if broken < 0 {
						t.Errorf("the right chain: %s: %s", r.Metric, r.Failure)
					}
				}
			}
			// A spoilt record is a summary of another page: score and select are right about it, and attention is exact over any
			// pages. That it is wrong is for page_summary's own checker to see.
			if harmless := broken == 0 && !skip; broken >= 0 && failures == 0 && !harmless {
				t.Errorf("link %s: skipped %v: passed", links[broken].Family, skip)
			}
			if err := e.Close(); err != nil {
				t.Error(err)
			}
		}
	}
	if err := loader.Unload(); err != nil {
		t.Error(err)
	}
}
