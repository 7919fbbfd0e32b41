package autotune

import (
	"context"
	"fmt"

	"github.com/kvloom/kvloom/autotune/measure"
	"github.com/kvloom/kvloom/autotune/store"
	"github.com/kvloom/kvloom/gen/plan"
	"github.com/kvloom/kvloom/gen/render"
	"github.com/kvloom/kvloom/runtime/nvrtc"
	"github.com/kvloom/kvloom/specs"
)

// SelfCheck is what measuring kernels against themselves came to: an A/A test of everything between a candidate and the claim that it
// is faster than another.
type SelfCheck struct {
	Device string      `json:"device"`
	Driver string      `json:"driver"`
	Level  float64     `json:"level"`  // the error rate that is claimed
	Pairs  int         `json:"pairs"`  // measured
	Differ int         `json:"differ"` // called different, though they are equal
	Atmost int         `json:"atmost"` // the most that the claim allows for
	List   []CheckPair `json:"list"`
}

// CheckPair is one kernel measured as two candidates.
type CheckPair struct {
	Model   string           `json:"model"`
	Family  string           `json:"family"`
	Context int              `json:"context"`
	Batch   int              `json:"batch"`
	Result  measure.Compared `json:"result"`
	Differ  bool             `json:"differ"`
}

// selfCheckShare is the share of equal pairs that may be called different before the claim of Level does not hold: chance alone exceeds 10
// of 100 at a true rate of 5 % in about one run of a hundred.
const selfCheckShare = 0.10

// Holds tells whether the claimed error rate stands.
func (s SelfCheck) Holds() bool { return s.Differ <= s.Atmost }

// AA measures default candidates against themselves, so many pairs, going round works and workloads, and stops early with ctx. Each side is a
// candidate like any other: loaded, prepared and timed anew for each round, which side comes first in turn.
func AA(ctx context.Context, host *measure.Host, compile Compile, p *plan.Plan, works []measure.Work, pairs int, told func(CheckPair)) (SelfCheck, error) {
	hard := context.WithoutCancel(ctx)
	info, err := host.Info(hard)
	if err != nil {
		return SelfCheck{}, err
	}
	s := SelfCheck{Device: info.Name, Driver: info.DriverName, Level: measure.Level, List: []CheckPair{}}
	if len(works) == 0 {
		works = measure.Works
	}
	type point struct {
		work     measure.Work
		workload specs.Workload
	}
	var points []point
	for _, w := range p.Spec.Workloads {
		for _, work := range works {
			if p.Has(work.Family()) {
				points = append(points, point{work, w})
			}
		}
	}
	for i := 0; i < pairs && ctx.Err() == nil; i++ {
		at := points[i*len(points)/max(pairs, 1)%len(points)] // runs of one workload: each change builds buffers
		fp := p.Of(at.work.Family())
		if len(fp.Candidates) == 0 {
			return s, fmt.Errorf("self-check: the plan has no candidate of %s", at.work)
		}
		result, err := pairOf(hard, host, compile, p.Spec, at.work, at.workload, fp.Candidates[p.DefaultAt(string(at.work), at.work.Family(), at.workload)])
		if err != nil {
			return s, err
		}
		pair := CheckPair{p.Spec.Name, string(at.work), at.workload.Context, at.workload.Batch, result, result.Differ()}
		s.List = append(s.List, pair)
		s.Pairs++
		if pair.Differ {
			s.Differ++
		}
		if told != nil {
			told(pair)
		}
	}
	s.Atmost = int(selfCheckShare * float64(s.Pairs))
	return s, nil
}

func pairOf(ctx context.Context, host *measure.Host, compile Compile, spec *specs.Spec, work measure.Work, w specs.Workload, c plan.Candidate) (measure.Compared, error) {
	src, err := render.Candidate(c)
	if err != nil {
		return measure.Compared{}, err
	}
	m, err := compile(ctx, src)
	if err != nil {
		return measure.Compared{}, err
	}
	var sides [2][]float64
	for round := range DefaultRounds {
		for i := range sides {
			side := (i + round) % 2
			us, err := windowOf(ctx, host, spec, work, w, c, m)
			if err != nil {
				return measure.Compared{}, err
			}
			sides[side] = append(sides[side], us)
		}
	}
	return measure.Pairs(sides[0], sides[1]), nil
}

func windowOf(ctx context.Context, host *measure.Host, spec *specs.Spec, work measure.Work, w specs.Workload, c plan.Candidate, m *nvrtc.Module) (float64, error) {
	resp, err := host.Do(ctx, measure.Request{Spec: *spec, Work: work, Workload: w, Candidate: c, Image: imageOf(c, m), SkipCheck: true, Samples: roundSamples})
	if err != nil {
		return 0, err
	}
	if store.Class(resp.Class) != store.OK {
		return 0, fmt.Errorf("self-check: %s at %dx%d: %s: %s", c.ID(), w.Context, w.Batch, resp.Class, resp.Message)
	}
	return measure.Summarise(resp.Samples).Median, nil
}
