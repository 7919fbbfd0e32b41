// Package lab replays search strategies against recorded sweeps, with no GPU: what a strategy would have found after so many
// measurements, against the best of a whole space.
package lab

import (
	"bytes"
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"slices"

	"github.com/kvloom/kvloom/autotune"
	"github.com/kvloom/kvloom/autotune/measure"
	"github.com/kvloom/kvloom/autotune/store"
	"github.com/kvloom/kvloom/gen/plan"
	"github.com/kvloom/kvloom/internal/wholefile"
	"github.com/kvloom/kvloom/runtime/device"
	"github.com/kvloom/kvloom/specs"
)

// format is the version of the file.
const format = 1

// Sweep is every candidate of one work measured for some workloads on one device.
type Sweep struct {
	Format     int         `json:"format"`
	Model      string      `json:"model"`
	Family     string      `json:"family"`    // a stem, or dense
	PlanHash   string      `json:"plan_hash"` // of the candidates
	Device     device.Info `json:"device"`
	Driver     string      `json:"driver"`
	NVRTC      string      `json:"nvrtc"`
	Date       string      `json:"date"`       // of the last trial
	Candidates []string    `json:"candidates"` // in plan order, for a person
	Cubins     int         `json:"cubins"`     // different ones
	Points     []Measured  `json:"points"`     // sorted by context, then batch
}

// Measured is one workload of a sweep.
type Measured struct {
	Context int       `json:"context"`
	Batch   int       `json:"batch"`
	US      []float64 `json:"us"` // median by candidate; 0: it failed
}

// PlanHash identifies a list of candidates: what they are and in which order.
func PlanHash(fp plan.FamilyPlan) string {
	b, err := json.Marshal(fp.Candidates)
	if err != nil {
		panic("BUG: lab: candidates: " + err.Error())
	}
	sum := sha256.Sum256(b)
	return hex.EncodeToString(sum[:])
}

// Record makes a sweep of a work from trials of an exhaustive run. Workloads that miss a candidate are an error that names how many.
func Record(p *plan.Plan, work measure.Work, trials []store.Trial, env store.Environment) (*Sweep, error) {
	fp := p.Of(work.Family())
	s := &Sweep{Format: format, Model: p.Spec.Name, Family: string(work), PlanHash: PlanHash(fp), Driver: env.Driver, NVRTC: env.NVRTC}
	if err := json.Unmarshal(env.Device, &s.Device); err != nil {
		return nil, fmt.Errorf("record a sweep: device record: %w", err)
	}
	trials, err := autotune.Current(trials, p)
	if err != nil {
		return nil, err
	}
	byPoint, cubins := map[specs.Workload]map[string]float64{}, map[string]bool{}
	for _, t := range trials {
		if t.Family != string(work) {
			continue
		}
		w := specs.Workload{Context: t.Context, Batch: t.Batch}
		if byPoint[w] == nil {
			byPoint[w] = map[string]float64{}
		}
		us := 0.0
		if t.Class == store.OK || t.Class == store.Cut {
			us = math.Round(t.MedianUS*1e4) / 1e4 // a tenth of a nanosecond
		}
		byPoint[w][t.Candidate.ID()+" "+t.Candidate.Key] = us
		s.Date = max(s.Date, t.Started.UTC().Format("2006-01-02"))
		if t.CubinHash != "" {
			cubins[t.CubinHash] = true
		}
	}
	s.Cubins = len(cubins)
	for _, c := range fp.Candidates {
		s.Candidates = append(s.Candidates, c.ID())
	}
	for w, times := range byPoint {
		m := Measured{Context: w.Context, Batch: w.Batch}
		for _, c := range fp.Candidates {
			us, ok := times[c.ID()+" "+c.Key]
			if ok {
				m.US = append(m.US, us)
			}
		}
		if missing := len(fp.Candidates) - len(m.US); missing > 0 {
			return nil, fmt.Errorf("record a sweep of %s: %d of %d candidates were not measured at %d x %d; run kvloom tune --strategy exhaustive --budget 0",
				work, missing, len(fp.Candidates), w.Context, w.Batch)
		}
		s.Points = append(s.Points, m)
	}
	if len(s.Points) == 0 {
		return nil, fmt.Errorf("record a sweep of %s: no trial of its present candidates", work)
	}
	slices.SortFunc(s.Points, func(a, b Measured) int {
		return cmp.Or(cmp.Compare(a.Context, b.Context), cmp.Compare(a.Batch, b.Batch))
	})
	return s, nil
}

// Whole leaves out the trials of workloads that miss a candidate of today's plan, and names those workloads.
func Whole(p *plan.Plan, work measure.Work, trials []store.Trial) (kept []store.Trial, left []specs.Workload, err error) {
	current, err := autotune.Current(trials, p)
	if err != nil {
		return nil, nil, err
	}
	have := map[specs.Workload]map[string]bool{}
	for _, t := range current {
		w := specs.Workload{Context: t.Context, Batch: t.Batch}
		if have[w] == nil {
			have[w] = map[string]bool{}
		}
		have[w][t.Candidate.ID()+" "+t.Candidate.Key] = true
	}
	missing := func(w specs.Workload) bool {
		return slices.ContainsFunc(p.Of(work.Family()).Candidates, func(c plan.Candidate) bool { return !have[w][c.ID()+" "+c.Key] })
	}
	for _, t := range trials {
		w := specs.Workload{Context: t.Context, Batch: t.Batch}
		switch {
		case !missing(w):
			kept = append(kept, t)
		case !slices.Contains(left, w):
			left = append(left, w)
		}
	}
	return kept, left, nil
}

// Write puts the sweep into a file, whole or not at all.
func (s *Sweep) Write(path string) error {
	var b bytes.Buffer
	if err := json.NewEncoder(&b).Encode(s); err != nil {
		return fmt.Errorf("BUG: lab: sweep: %w", err)
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return fmt.Errorf("sweep %s: %w", path, err)
	}
	if err := wholefile.Write(path, b.Bytes()); err != nil {
		return fmt.Errorf("sweep: %w", err)
	}
	return nil
}

// Parse reads a sweep and the plan that it belongs to. One whose candidates are no longer those of the plan is refused.
func Parse(name string, b []byte) (*Sweep, *plan.Plan, error) {
	var s Sweep
	if err := json.Unmarshal(b, &s); err != nil {
		return nil, nil, fmt.Errorf("sweep %s: %w; kvloom lab record writes it", name, err)
	}
	if s.Format != format {
		return nil, nil, fmt.Errorf("sweep %s has format %d, this kvloom reads %d", name, s.Format, format)
	}
	spec, err := specs.Resolve(s.Model)
	if err != nil {
		return nil, nil, fmt.Errorf("sweep %s: %w", name, err)
	}
	p := plan.New(spec, plan.Targets[spec.Targets[0]])
	fp := p.Of(measure.Work(s.Family).Family())
	if hash := PlanHash(fp); hash != s.PlanHash {
		return nil, nil, fmt.Errorf("sweep %s was recorded with other candidates of %s (plan %.12s, now %.12s: %d candidates, now %d); record it again on a GPU",
			name, s.Family, s.PlanHash, hash, len(s.Candidates), len(fp.Candidates))
	}
	for _, m := range s.Points {
		if len(m.US) != len(fp.Candidates) {
			return nil, nil, fmt.Errorf("sweep %s: %d times at %d x %d, want %d", name, len(m.US), m.Context, m.Batch, len(fp.Candidates))
		}
	}
	return &s, p, nil
}
