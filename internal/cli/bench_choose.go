package cli

import (
	"context"
	"encoding/json"
	"fmt"

	"github.com/kvloom/kvloom/autotune"
	"github.com/kvloom/kvloom/autotune/measure"
	"github.com/kvloom/kvloom/autotune/store"
	"github.com/kvloom/kvloom/gen/plan"
	"github.com/kvloom/kvloom/specs"
)

// chooser picks candidates: from a trial database, else from the committed tables, else the default.
func (c *BenchCmd) chooser(ctx context.Context) (choose func(*specs.Spec, *plan.Plan, specs.Workload, measure.Work) (plan.Candidate, error), done func(), err error) {
	table := func(s *specs.Spec, _ *plan.Plan) (specs.Table, error) {
		t, _, err := specs.TunedTable(s.Name)
		return t, err
	}
	done = func() {}
	if c.DB != "" {
		db, err := store.Open(ctx, c.DB)
		if err != nil {
			return nil, nil, err
		}
		done = func() { db.Close() }
		table = func(s *specs.Spec, p *plan.Plan) (specs.Table, error) {
			trials, err := db.Trials(ctx, store.Filter{Spec: s.Name})
			if err != nil {
				return specs.Table{}, err
			}
			if trials, err = autotune.Current(trials, p); err != nil {
				return specs.Table{}, err
			}
			return autotune.TableOf(s, autotune.Choose(trials)), nil
		}
	}
	tables := map[string]specs.Table{} // a database is read once for each spec, whatever workloads it names
	return func(s *specs.Spec, p *plan.Plan, w specs.Workload, work measure.Work) (plan.Candidate, error) {
		same := *s
		same.Workloads = nil
		key, err := json.Marshal(same)
		if err != nil {
			return plan.Candidate{}, fmt.Errorf("BUG: bench: spec %s: %w", s.Name, err)
		}
		t, ok := tables[string(key)]
		if !ok {
			if t, err = table(s, p); err != nil {
				return plan.Candidate{}, err
			}
			tables[string(key)] = t
		}
		if cand, ok := autotune.FromTable(t, p, string(work), w); ok {
			return cand, nil
		}
		fp := p.Of(work.Family())
		if len(fp.Candidates) == 0 {
			return plan.Candidate{}, fmt.Errorf("%s: the plan has no candidate", work)
		}
		return fp.Candidates[p.DefaultAt(string(work), work.Family(), w)], nil
	}, done, nil
}
