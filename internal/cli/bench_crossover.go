package cli

import (
	"fmt"

	"github.com/kvloom/kvloom/internal/bench"
	"github.com/kvloom/kvloom/specs"
)

// crossed resolves the models and hands each to f.
func (c *BenchCmd) crossed(f func(*specs.Spec) error) error {
	for _, name := range c.Models {
		s, err := specs.Resolve(name)
		if err != nil {
			return err
		}
		if c.Rank > 0 {
			s.Locks.Rank = c.Rank
		}
		if c.Budget > 0 {
			s.Locks.BudgetTokens = c.Budget
		}
		if err := f(s); err != nil {
			return err
		}
	}
	return nil
}

func (c *BenchCmd) printCrossovers(ctx *Context, results []bench.Result) error {
	return c.crossed(func(s *specs.Spec) error {
		_, err := fmt.Fprintln(ctx.Stdout, bench.CrossoverTable(s, results))
		return err
	})
}

// store writes the crossovers into the models' tuned tables, beside the choices that stand there. Bundles take them from there.
func (c *BenchCmd) store(ctx *Context, results []bench.Result) error {
	if c.Rank > 0 || c.Budget > 0 {
		return fmt.Errorf("bench --tables: a crossover of another rank or budget than the spec's does not belong into its table")
	}
	return c.crossed(func(s *specs.Spec) error {
		list := bench.Crossovers(s, results)
		if len(list) == 0 {
			return fmt.Errorf("%s: the chain beside dense attention was not measured; kvloom bench %s --crossover measures it", s.Name, s.Name)
		}
		t, ok, err := specs.ReadTable(c.Tables, s.Name)
		if err != nil {
			return err
		}
		last := results[len(results)-1]
		switch {
		case !ok:
			t = specs.Table{Model: s.Name, Device: last.Card, Driver: last.Driver, Choices: []specs.Tuned{}}
		case t.Device != last.Card:
			return fmt.Errorf("%s: the table of %s in %s was tuned on %s, this is %s; tune here first", s.Name, s.Name, c.Tables, t.Device, last.Card)
		}
		t.Crossovers = list
		if err := specs.WriteTable(c.Tables, t); err != nil {
			return err
		}
		fmt.Fprintf(ctx.Stderr, "%s: %d crossovers in %s\n", s.Name, len(t.Crossovers), c.Tables)
		return nil
	})
}
