package cli

import (
	"encoding/json"
	"fmt"
	"io"
	"os"
	"time"

	"github.com/vbauerster/mpb/v8"
	"github.com/vbauerster/mpb/v8/decor"
	"golang.org/x/term"

	"github.com/kvloom/kvloom/autotune"
	"github.com/kvloom/kvloom/autotune/store"
)

// tuneProgress tells how a tuning run goes: a bar on a terminal, plain lines elsewhere, events with --json.
type tuneProgress struct {
	ctx      *Context
	model    string
	bar      *mpb.Bar
	bars     *mpb.Progress
	last     string
	started  time.Time
	measured int
}

func newTuneProgress(ctx *Context, model string) *tuneProgress {
	return &tuneProgress{ctx: ctx, model: model, started: time.Now()}
}

// terminal reports whether a stream is a terminal.
func terminal(w io.Writer) bool {
	f, ok := w.(*os.File)
	return ok && term.IsTerminal(int(f.Fd()))
}

func (p *tuneProgress) observe(e autotune.Event) {
	if p.ctx.JSON {
		_ = json.NewEncoder(p.ctx.Stdout).Encode(e)
		return
	}
	if e.Kind == "note" {
		fmt.Fprintf(p.ctx.Stderr, "%s: %s\n", p.model, e.Message)
		return
	}
	if e.Kind == "start" {
		fmt.Fprintf(p.ctx.Stderr, "%s: %d trials\n", p.model, e.Total)
		if terminal(p.ctx.Stderr) {
			p.bars = mpb.New(mpb.WithOutput(p.ctx.Stderr), mpb.WithWidth(24))
			p.bar = p.bars.AddBar(int64(e.Total),
				mpb.PrependDecorators(decor.CountersNoUnit("%d/%d "), decor.AverageSpeed(0, "%.1f/s "), decor.AverageETA(decor.ET_STYLE_GO)),
				mpb.AppendDecorators(decor.Any(func(decor.Statistics) string { return p.last }, decor.WCSyncSpaceR)))
		}
		return
	}
	if e.Kind == "trial" {
		p.measured++
	}
	p.last = p.line(e)
	switch {
	case p.bar != nil:
		p.bar.SetCurrent(int64(e.Done))
	case e.Kind == "trial":
		rate := float64(p.measured) / max(time.Since(p.started).Seconds(), 1e-3)
		left := time.Duration(float64(e.Total-e.Done) / rate * float64(time.Second)).Round(time.Second)
		fmt.Fprintf(p.ctx.Stderr, "%d/%d %s, %.1f/s, at most %v left\n", e.Done, e.Total, p.last, rate, left)
	}
}

func (p *tuneProgress) line(e autotune.Event) string {
	t := e.Trial
	at := fmt.Sprintf("%s %dx%d", t.Family, t.Context, t.Batch)
	switch {
	case e.Kind == "skip":
		return at + " known"
	case t.Class == store.OK || t.Class == store.Cut:
		return fmt.Sprintf("%s %.1f us, best %.1f us", at, t.MedianUS, e.BestUS)
	}
	return fmt.Sprintf("%s %s", at, t.Class)
}

func (p *tuneProgress) close() {
	if p.bar != nil {
		p.bar.Abort(false)
		p.bars.Wait()
	}
}
