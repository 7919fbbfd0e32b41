// Package verify checks compiled kernels against internal/reference on any device.Device: a GPU or the simulator.
//
// The harness makes inputs (Case, Problem), device buffers between guard bands with poisoned contents (Arena), launches and graph
// replays (Kernel, Replay), and collects Results. What a family must compute is in the family's own file, which registers a Checker.
//
// Nothing is trusted: outputs are poisoned before every launch, guard bands and inputs are read back after it, workspaces are
// shared by all launches of a run, block tables are shuffled and their unused entries are traps.
package verify

import (
	"context"
	"errors"
	"fmt"
	"hash/maphash"

	"github.com/kvloom/kvloom/gen/plan"
	"github.com/kvloom/kvloom/internal/launch"
	"github.com/kvloom/kvloom/runtime/device"
	"github.com/kvloom/kvloom/specs"
)

// Env is where kernels are checked.
type Env struct {
	Dev device.Device
	// Compile makes a loaded function of a candidate. The harness calls it once a candidate.
	Compile func(plan.Candidate) (device.Function, error)
	// Guard is the bytes of guard band before and behind each buffer: a multiple of 256, or 0 for none. The simulator checks
	// bounds itself, reads included, which guard bands would hide from it.
	Guard int64
	// Huge lends the buffers of cases far apart. Environments that work side by side share one; each has its own otherwise.
	Huge *Huge

	seed       maphash.Seed
	workspaces map[string]*Buffer
	arena      *Arena                 // of the workspaces
	own        *Huge                  // of this environment alone
	free       map[int64][]device.Ptr // freed allocations by size, kept for the next case
	keeps      int64                  // bytes of them from one kernel to the next
}

// NewEnv prepares a device. Close frees the workspaces, not the device. Several environments may work on one device side by side; one
// serves a single goroutine.
func NewEnv(dev device.Device, compile func(plan.Candidate) (device.Function, error)) *Env {
	e := &Env{Dev: dev, Compile: compile, Guard: 4096, seed: maphash.MakeSeed(), workspaces: map[string]*Buffer{}, free: map[int64][]device.Ptr{}, keeps: keptBytes}
	e.own = NewHuge(dev)
	e.Huge = e.own
	if dev.Info().Backend == "sim" {
		e.Guard = 0
	}
	e.arena = e.NewArena()
	return e
}

// keptBytes is how much an environment keeps of what cases gave back, from one kernel to the next.
const keptBytes = 1 << 30

// Renew makes the environment as good as new for other kernels: no workspace that a wrong one left dirty, no block of tens of gigabytes. What
// cases gave back is kept, for the driver's allocations wait for every process on the GPU.
func (e *Env) Renew(compile func(plan.Candidate) (device.Function, error)) error {
	err := errors.Join(e.arena.Free(), e.own.Close())
	clear(e.workspaces)
	e.arena, e.Compile, e.seed = e.NewArena(), compile, maphash.MakeSeed()
	kept := int64(0)
	for bytes, list := range e.free {
		kept += bytes * int64(len(list))
	}
	if kept > e.keeps {
		err = errors.Join(err, e.freeKept())
	}
	return err
}

func (e *Env) freeKept() (err error) {
	for _, list := range e.free {
		for _, p := range list {
			err = errors.Join(err, e.Dev.Free(p))
		}
	}
	clear(e.free)
	return err
}

// Close frees what the environment itself allocated.
func (e *Env) Close() error {
	return errors.Join(e.arena.Free(), e.freeKept(), e.own.Close())
}

// Options choose what is checked.
type Options struct {
	Seed uint64
	// Workloads is "small" for the cases that every machine can run (the simulator too), "full" for long contexts as well, "quick"
	// for the few that a tuner runs before it times a candidate.
	Workloads string
	// Candidates is "default" (the first one), "forms" (the first of each form) or "all".
	Candidates string
	// MaxCluster leaves out candidates of larger clusters; 0 means none.
	MaxCluster int
	// Families restricts the run; empty means all that have a checker.
	Families []plan.Family
	// Only restricts the run to the case of this name; empty means all.
	Only string
	// Progress, where set, is told before each candidate what is checked, and how many of how many are done.
	Progress func(done, total int, what string)
}

// Full reports whether long cases are wanted.
func (o Options) Full() bool { return o.Workloads == "full" }

// Wants reports whether a case is to be run.
func (o Options) Wants(name string) bool {
	if o.Only != "" {
		return o.Only == name
	}
	return o.Workloads != "quick" || quick[name]
}

// quick are the cases of the quick workloads: all heads and an odd number of pages, ragged batches with a half-full page, wide
// values, a replay at other lengths.
var quick = map[string]bool{
	"33 pages": true, "mixed lengths": true, "wide logits": true, "replayed at other lengths": true, // Cases
	"random": true, "spec slots": true, "underflow": true, "all equal": true, // ScoreCases
}

// Result is one line of the table: one quantity of one candidate in one case. The zero Failure and Skipped mean it passed.
type Result struct {
	Family    plan.Family `json:"family"`
	Candidate string      `json:"candidate"` // plan.Candidate.ID
	Key       string      `json:"key"`       // what the kernel was specialised for
	Case      string      `json:"case"`
	Metric    string      `json:"metric"`    // "score, nats"
	MaxError  float64     `json:"max_error"` // in the metric's unit
	Bound     float64     `json:"bound"`     // in the same unit: MaxError above it is a failure
	Count     int64       `json:"count"`     // values compared
	Failure   string      `json:"failure,omitempty"`
	Skipped   string      `json:"skipped,omitempty"` // the reason
}

// OK reports whether the result is not a failure.
func (r Result) OK() bool { return r.Failure == "" }

// Checker verifies one candidate of a family over the family's cases. It returns at least one result a case, also when something
// broke: errors of the device are Failures. It stops early when ctx is done.
type Checker func(ctx context.Context, e *Env, s *specs.Spec, c plan.Candidate, o Options) []Result

var checkers = map[plan.Family]Checker{}

// register adds a family's checker; each family's file calls it from init.
func register(f plan.Family, c Checker) {
	if checkers[f] != nil {
		panic(fmt.Sprintf("BUG: verify: two checkers for %s", f))
	}
	checkers[f] = c
}

// eachCase loads a candidate's kernel and checks it on every case, until ctx ends.
func eachCase[C any](ctx context.Context, e *Env, c plan.Candidate, metric string, cases []C, check func(*Kernel, C) []Result) []Result {
	k, err := e.Kernel(c)
	if err != nil {
		return []Result{Failed("load", metric, err)}
	}
	var results []Result
	for _, cs := range cases {
		if ctx.Err() != nil {
			break
		}
		results = append(results, check(k, cs)...)
	}
	return results
}

// Check verifies one candidate: what the tuner runs before it times anything.
func Check(ctx context.Context, e *Env, s *specs.Spec, c plan.Candidate, o Options) ([]Result, error) {
	check, ok := checkers[c.Family]
	if !ok {
		return nil, fmt.Errorf("verify %s: no checker is registered for family %q", c.ID(), c.Family)
	}
	results := check(ctx, e, s, c, o)
	for i := range results {
		results[i].Family, results[i].Candidate, results[i].Key = c.Family, c.ID(), c.Key
	}
	if err := ctx.Err(); err != nil {
		return results, fmt.Errorf("verify %s: %w", c.ID(), err)
	}
	if len(results) == 0 {
		r := Result{Family: c.Family, Candidate: c.ID(), Key: c.Key, Case: o.Only, Failure: "the checker compared nothing"}
		if o.Only != "" {
			r.Failure, r.Skipped = "", "this family has no case of that name"
		}
		results = append(results, r)
	}
	return results, nil
}

// LaunchProblem is the problem that a launch of a case has on this device.
func (e *Env) LaunchProblem(p *Problem) launch.Problem {
	lp := launch.Problem{Batch: int64(p.Cache.Batch()), KVHeads: int64(p.Cache.KVHeads), QHeads: int64(p.Q.Heads),
		Lists: int64(p.Lists()), MaxPages: int64(p.Cache.MaxPages), NewPages: 1, Slots: int64(p.Slots), SMs: int64(e.Dev.Info().SMs)}
	for _, n := range p.Cache.SeqLens {
		lp.NewPages = max(lp.NewPages, int64(n)/int64(p.Cache.PageSize))
	}
	return lp
}
