// Package autotune finds the fastest right kernel of every family for every workload of a spec. The coordinator has no CUDA context
// and is the only writer of the trial database; a child process of the same binary measures.
package autotune

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	"github.com/kvloom/kvloom/autotune/measure"
	"github.com/kvloom/kvloom/autotune/search"
	"github.com/kvloom/kvloom/autotune/store"
	"github.com/kvloom/kvloom/gen/plan"
	"github.com/kvloom/kvloom/gen/render"
	"github.com/kvloom/kvloom/runtime/device"
	"github.com/kvloom/kvloom/runtime/nvrtc"
	"github.com/kvloom/kvloom/specs"
)

// Options are a run's choices.
type Options struct {
	Budget    time.Duration  `json:"budget"`     // tuning time over all runs of this spec on this GPU; 0: no limit
	MaxTrials int            `json:"max_trials"` // of this run; 0: no limit
	Seed      uint64         `json:"seed"`
	Works     []measure.Work `json:"works"`   // what to tune; empty: all
	Workers   int            `json:"workers"` // parallel compilations
	// Checkers is how many children check kernels side by side while nothing is timed. Below 2 the child that times checks as well.
	Checkers int `json:"checkers"`
	// Strategy searches spaces; nil: search.Default. Evaluations and Target end the search of one work and workload in a large space: after so
	// many trials, or when it is likely that nothing is left that is faster by more than this share. 0: neither.
	Strategy    search.Strategy `json:"-"`
	Evaluations int             `json:"evaluations"`
	Target      float64         `json:"target"`
	Rounds      int             `json:"rounds"`    // in which leaders are measured again; 0: not at all
	Precision   float64         `json:"precision"` // samples of a trial end when the interval is within this share of the median; 0: measure.Usual's
	Warm        bool            `json:"warm"`      // measure with a warm L2: other trials than those with a cold one
	// Incumbents are what an earlier tuning chose: measured right after the default, and among the leaders that are measured again.
	Incumbents []Incumbent `json:"incumbents,omitempty"`
}

// Incumbent is an earlier choice.
type Incumbent struct {
	Work     measure.Work   `json:"work"`
	Workload specs.Workload `json:"workload"`
	Form     plan.Form      `json:"form"`
	Params   []plan.Param   `json:"params"`
}

// Compile makes a module of a source; it is called from several goroutines.
type Compile func(context.Context, render.Source) (*nvrtc.Module, error)

// portableCubin is the architecture of the portable form's own cubin.
const portableCubin = "sm_90"

// CompileWith compiles for measuring: a virtual architecture is compiled for a real one too, so that registers and spills are known
// before a driver has seen the PTX.
func CompileWith(c *nvrtc.Compiler) Compile {
	return func(ctx context.Context, src render.Source) (*nvrtc.Module, error) {
		o := nvrtc.Options{}
		if src.Arch == plan.PortableArch {
			o.CubinArch = portableCubin
		}
		return c.Compile(ctx, src, o)
	}
}

// Tuner tunes one spec on one GPU.
type Tuner struct {
	Spec      *specs.Spec
	Plan      *plan.Plan
	Compile   Compile
	NVRTC     string // the compiler's version
	Generator string // version and commit of kvloom
	Host      *measure.Host
	DB        *store.DB
	Options   Options
	// Observe hears of every step; it is called from one goroutine and must not block long.
	Observe func(Event)
}

// Event is one step of a run.
type Event struct {
	Kind    string      `json:"kind"` // note, start, trial, contest
	Done    int         `json:"done"`
	Total   int         `json:"total"`
	Trial   store.Trial `json:"trial,omitzero"`
	BestUS  float64     `json:"best_us"` // of this work and workload so far; 0: none
	Spent   float64     `json:"spent_seconds"`
	Message string      `json:"message"`
	Points  []Progress  `json:"points,omitempty"` // of start
}

// Progress is how far the search of one work and workload is.
type Progress struct {
	Family     string  `json:"family"`
	Context    int     `json:"context"`
	Batch      int     `json:"batch"`
	Candidates int     `json:"candidates"`
	Known      int     `json:"known"`
	BestUS     float64 `json:"best_us"` // 0: none
}

// Outcome is how a run ended.
type Outcome struct {
	Environment store.Environment
	Device      device.Info
	Measured    int    // trials of this run
	Known       int    // trials that an earlier run had stored
	Left        int    // not measured
	Contests    int    // of leaders, all rounds of them measured
	Why         string // why it stopped: "all candidates measured", "budget spent", "stopped", "trial limit"
}

// Run measures until everything is measured, the budget is spent or ctx ends; the trial in flight is finished and stored first. What
// an earlier run stored for the same source, candidate, workload and environment is not measured again.
func (t *Tuner) Run(ctx context.Context) (Outcome, error) {
	hard := context.WithoutCancel(ctx) // a trial in flight outlives a soft stop
	info, err := t.Host.Info(hard)
	if err != nil {
		return Outcome{}, err
	}
	env, err := t.environment(info)
	if err != nil {
		return Outcome{}, err
	}
	run, err := t.DB.BeginRun(hard, t.Spec.Name, SpecHash(t.Spec), env, struct {
		Options
		Strategy string `json:"strategy"`
	}{t.Options, t.Options.strategy().Name()})
	if err != nil {
		return Outcome{}, err
	}
	s := &session{Tuner: t, env: env, run: run, vet: map[string]measure.Response{}, right: map[string]measure.Checked{}, found: map[string]found{},
		checkers: newCheckers(t.Host, t.Options.Checkers), compiled: newCompiled(t.Compile, max(t.Options.Workers, 1))}
	defer s.checkers.close()
	s.out = Outcome{Environment: env, Device: info}
	if err := s.loadKnown(hard); err != nil {
		return s.out, err
	}
	runErr := s.measureAll(ctx, hard)
	if err := t.DB.EndRun(hard, run); err != nil && runErr == nil {
		runErr = err
	}
	return s.out, runErr
}

// SpecHash identifies what a spec says, whatever file it came from.
func SpecHash(s *specs.Spec) string {
	b, err := json.Marshal(s)
	if err != nil {
		panic("BUG: autotune: spec: " + err.Error())
	}
	return hashOf(b)
}

// EnvironmentID is the environment that trials on a device with a compiler are stored under.
func EnvironmentID(info device.Info, nvrtc string) (string, error) {
	env, err := (&Tuner{NVRTC: nvrtc}).environment(info)
	return env.ID(), err
}

func (t *Tuner) environment(info device.Info) (store.Environment, error) {
	b, err := json.Marshal(info)
	if err != nil {
		return store.Environment{}, fmt.Errorf("BUG: autotune: device record: %w", err)
	}
	return store.Environment{Device: b, DeviceUUID: info.UUID, Driver: info.DriverName, NVRTC: t.NVRTC, Generator: t.Generator}, nil
}

func (o Options) strategy() search.Strategy {
	if o.Strategy == nil {
		return search.Default{}
	}
	return o.Strategy
}

// L2 is the state of the L2 that trials are measured with.
func (o Options) L2() string {
	if o.Warm {
		return "warm"
	}
	return "cold"
}

func pointName(work measure.Work, w specs.Workload) string {
	return fmt.Sprintf("%s %d %d", work, w.Context, w.Batch)
}
