package cli

import (
	"fmt"

	"github.com/kvloom/kvloom/autotune/compare"
	tuningreport "github.com/kvloom/kvloom/autotune/report"
	"github.com/kvloom/kvloom/autotune/store"
	"github.com/kvloom/kvloom/internal/version"
)

// ReportCmd writes a page.
type ReportCmd struct {
	DB       string `arg:"" name:"db" help:"Trial database."`
	Out      string `short:"o" default:"report.html" help:"Page to write."`
	Model    string `help:"Only this model."`
	Stale    bool   `help:"Also trials of kernels that have changed since, the newest of each candidate."`
	Baseline string `help:"Database or bundle of before, to compare with." placeholder:"FILE"`
}

// Run writes one HTML file that needs nothing beside it.
func (c *ReportCmd) Run(ctx *Context) error {
	db, err := store.Open(ctx, c.DB)
	if err != nil {
		return err
	}
	defer db.Close()
	trials, err := db.Trials(ctx, store.Filter{Spec: c.Model})
	if err != nil {
		return err
	}
	groups, err := tunings(ctx, db, trials, c.Stale)
	if err != nil {
		return err
	}
	if len(groups) == 0 {
		return manyTunings(c.DB, groups)
	}
	var list []tuningreport.Tuning
	for _, g := range groups {
		list = append(list, tuningreport.Tuning{Plan: g.plan, Trials: g.trials, Stale: g.stale, Device: g.device, Driver: g.driver, NVRTC: g.nvrtc})
	}
	page, err := tuningreport.New(c.DB, version.String(), list)
	if err != nil {
		return err
	}
	if c.Baseline != "" {
		lines, notes, err := compare.Files(ctx, c.Baseline, c.DB, compare.Usual)
		if err != nil {
			return err
		}
		page.Compare(c.Baseline, compare.Usual, lines, notes)
	}
	if err := page.Write(c.Out); err != nil {
		return err
	}
	fmt.Fprintln(ctx.Stderr, c.Out)
	return nil
}
