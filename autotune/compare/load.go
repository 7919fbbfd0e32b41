package compare

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"slices"
	"strings"

	"github.com/kvloom/kvloom/autotune"
	"github.com/kvloom/kvloom/autotune/measure"
	"github.com/kvloom/kvloom/autotune/store"
	"github.com/kvloom/kvloom/gen/plan"
	"github.com/kvloom/kvloom/internal/bench"
	"github.com/kvloom/kvloom/runtime/device"
	"github.com/kvloom/kvloom/runtime/kernel"
	"github.com/kvloom/kvloom/specs"
)

// Side is what one file holds.
type Side struct {
	Path    string   `json:"path"`
	Kind    string   `json:"kind"`    // database, bundle, results
	Devices []string `json:"devices"` // names, with their drivers
	Entries []Entry  `json:"-"`
	Notes   []string `json:"notes"` // for a person
}

// Load reads a trial database, a bundle or a results file, whichever it is by its content.
func Load(ctx context.Context, path string) (*Side, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("compare: %w", err)
	}
	head := make([]byte, 16)
	n, err := io.ReadFull(f, head)
	if closeErr := f.Close(); closeErr != nil || err != nil && !errors.Is(err, io.ErrUnexpectedEOF) {
		return nil, fmt.Errorf("compare %s: %w", path, errors.Join(err, closeErr))
	}
	head = head[:n]
	switch {
	case bytes.HasPrefix(head, []byte("SQLite format 3")):
		return fromDatabase(ctx, path)
	case bytes.HasPrefix(bytes.TrimSpace(head), []byte("{")):
		return fromResults(path)
	}
	return fromBundle(path)
}

// fromDatabase takes the choice of every point. Trials of today's kernels count where the default is among them; at other points the
// newest of each candidate, which is what was chosen before the kernels changed.
func fromDatabase(ctx context.Context, path string) (*Side, error) {
	db, err := store.Open(ctx, path)
	if err != nil {
		return nil, err
	}
	defer db.Close()
	trials, err := db.Trials(ctx, store.Filter{})
	if err != nil {
		return nil, err
	}
	s := &Side{Path: path, Kind: "database"}
	for _, model := range modelsOf(trials) {
		group := slices.DeleteFunc(slices.Clone(trials), func(t store.Trial) bool { return t.Spec != model })
		group = lastEnvironment(group)
		chosen, older, err := present(model, group)
		if err != nil {
			return nil, err
		}
		if older > 0 {
			s.Notes = append(s.Notes, fmt.Sprintf("%s: at %d points of %s the kernels have changed since; the choice among the newest trials is taken", path, older, model))
		}
		env, err := db.EnvironmentOf(ctx, group[0].Environment)
		if err != nil {
			return nil, err
		}
		s.device(env.Device, env.Driver)
		for _, c := range autotune.Choose(chosen) {
			detail := ""
			if c.Best.L2 == "warm" {
				detail = "warm L2"
			}
			s.Entries = append(s.Entries, Entry{Key: Key{Model: model, Family: c.Family, Detail: detail, Context: c.Context, Batch: c.Batch}, Candidate: c.Best.Candidate.ID(),
				Form: c.Best.Candidate.Form, Params: c.Best.Candidate.Params,
				MedianUS: c.Best.MedianUS, LoUS: c.Best.LoUS, HiUS: c.Best.HiUS, Samples: c.Best.Samples})
		}
	}
	return s, s.notEmpty()
}

// present picks the trials that count of one model, and tells at how many points they are of older kernels.
func present(model string, trials []store.Trial) (chosen []store.Trial, older int, err error) {
	point := func(t store.Trial) string { return fmt.Sprint(t.Family, " ", t.Context, " ", t.Batch, " ", t.L2) }
	var current []store.Trial
	if spec, err := specs.Resolve(model); err == nil {
		if current, err = autotune.Current(trials, plan.New(spec, plan.Targets[spec.Targets[0]])); err != nil {
			return nil, 0, err
		}
	}
	whole, counted := map[string]bool{}, map[string]bool{}
	for _, t := range current {
		whole[point(t)] = whole[point(t)] || t.Default
	}
	for _, t := range current {
		if whole[point(t)] {
			chosen = append(chosen, t)
		}
	}
	for _, t := range autotune.Newest(trials) {
		if whole[point(t)] {
			continue
		}
		chosen = append(chosen, t)
		if !counted[point(t)] {
			counted[point(t)] = true
			older++
		}
	}
	return chosen, older, nil
}

func modelsOf(trials []store.Trial) (models []string) {
	for _, t := range trials {
		if !slices.Contains(models, t.Spec) {
			models = append(models, t.Spec)
		}
	}
	return models
}

// lastEnvironment keeps the trials of the environment that was used last.
func lastEnvironment(trials []store.Trial) []store.Trial {
	last := slices.MaxFunc(trials, func(a, b store.Trial) int { return a.Started.Compare(b.Started) }).Environment
	return slices.DeleteFunc(trials, func(t store.Trial) bool { return t.Environment != last })
}

func fromBundle(path string) (*Side, error) {
	b, err := kernel.Open(path)
	if err != nil {
		return nil, err
	}
	s := &Side{Path: path, Kind: "bundle", Devices: []string{named(b.Device.Name, b.Device.DriverName)},
		Notes: []string{path + " is a bundle and holds no samples: it is compared by intervals, without correction for many comparisons"}}
	for _, w := range b.Works {
		for _, p := range w.Points {
			k := &b.Kernels[p.Kernel]
			var params []plan.Param
			for _, q := range k.Params {
				params = append(params, plan.Param(q))
			}
			s.Entries = append(s.Entries, Entry{Key: Key{Model: b.Spec, Family: w.Name, Context: p.Workload.Context, Batch: p.Workload.Batch},
				Candidate: k.ID(), Form: plan.Form(k.Form), Params: params, MedianUS: p.Evidence.MedianUS, LoUS: p.Evidence.LoUS, HiUS: p.Evidence.HiUS})
		}
	}
	return s, s.notEmpty()
}

// fromResults takes the newest line of each work. Its model is the shape, for result lines name none.
func fromResults(path string) (*Side, error) {
	results, err := bench.Read(path)
	if err != nil {
		return nil, err
	}
	s := &Side{Path: path, Kind: "results",
		Notes: []string{path + " is a results file and holds no samples: it is compared by intervals, without correction for many comparisons"}}
	for _, r := range bench.Newest(results) {
		if r.Family == "" || r.MedianUS <= 0 {
			return nil, fmt.Errorf("compare %s: a line without family or time; each line is what kvloom bench wrote", path)
		}
		if name := named(r.Card, r.Driver); !slices.Contains(s.Devices, name) {
			s.Devices = append(s.Devices, name)
		}
		s.Entries = append(s.Entries, Entry{Key: Key{Model: r.Card, Family: r.Family, Detail: detailOf(r.Shape), Context: r.Shape.Tokens, Batch: r.Shape.Batch},
			Candidate: r.Candidate, MedianUS: r.MedianUS, LoUS: r.LoUS, HiUS: r.HiUS})
	}
	return s, s.notEmpty()
}

// usual are the values of a shape that go without saying: a family's lines have the same keys, so nothing becomes alike.
var usual = map[string]any{"basis": "svd", "coefficient_bits": 8.0, "combine": "share_average", "dtype": "bf16", "l2": "cold", "layout": "paged", "mode": "prompt", "scan": "full",
	"scorer": "page_local"}

// detailOf is "kv_heads=8 page=16 rank=4", of a shape what is not usual, besides tokens and batch.
func detailOf(shape bench.Shape) string {
	var fields map[string]any
	b, err := json.Marshal(shape)
	if err == nil {
		err = json.Unmarshal(b, &fields)
	}
	if err != nil {
		panic("BUG: compare: shape: " + err.Error())
	}
	delete(fields, "tokens")
	delete(fields, "batch")
	var words []string
	for _, k := range slices.Sorted(maps.Keys(fields)) {
		if fields[k] != usual[k] {
			words = append(words, fmt.Sprint(k, "=", fields[k]))
		}
	}
	return strings.Join(words, " ")
}

func named(device, driver string) string { return device + ", driver " + driver }

func (s *Side) device(record []byte, driver string) {
	var info device.Info
	_ = json.Unmarshal(record, &info) // an unreadable record has no name
	if name := named(info.Name, driver); !slices.Contains(s.Devices, name) {
		s.Devices = append(s.Devices, name)
	}
}

func (s *Side) notEmpty() error {
	if len(s.Entries) == 0 {
		return fmt.Errorf("compare: %s (a %s) holds nothing to compare", s.Path, s.Kind)
	}
	return nil
}

// Only keeps the entries of one model.
func (s *Side) Only(model string) {
	s.Entries = slices.DeleteFunc(s.Entries, func(e Entry) bool { return e.Key.Model != model })
}

// Files loads and compares two files. Sides measured on different devices or drivers are compared, and the notes say so.
func Files(ctx context.Context, old, now string, rule Rule) (lines []Line, notes []string, err error) {
	a, err := Load(ctx, old)
	if err != nil {
		return nil, nil, err
	}
	b, err := Load(ctx, now)
	if err != nil {
		return nil, nil, err
	}
	return Sides(a, b, rule)
}

// Sides compares what was loaded.
func Sides(a, b *Side, rule Rule) (lines []Line, notes []string, err error) {
	if (a.Kind == "results") != (b.Kind == "results") {
		return nil, nil, fmt.Errorf("compare: %s is a %s and %s a %s: a results file names shapes instead of models, compare it with another one", a.Path, a.Kind, b.Path, b.Kind)
	}
	notes = slices.Concat(a.Notes, b.Notes)
	if !slices.Equal(a.Devices, b.Devices) {
		notes = append(notes, fmt.Sprintf("measured on different devices or drivers: %s; and %s", strings.Join(a.Devices, "; "), strings.Join(b.Devices, "; ")))
	}
	return Sets(a.Entries, b.Entries, rule), notes, nil
}

// Works keeps the entries of some works.
func (s *Side) Works(works []measure.Work) {
	s.Entries = slices.DeleteFunc(s.Entries, func(e Entry) bool { return !slices.Contains(works, measure.Work(e.Key.Family)) })
}
