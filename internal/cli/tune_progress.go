package cli

import (
	"encoding/json"
	"fmt"
	"io"
	"os"
	"strings"
	"sync/atomic"
	"time"

	"github.com/vbauerster/mpb/v8"
	"github.com/vbauerster/mpb/v8/decor"
	"golang.org/x/term"

	"github.com/kvloom/kvloom/autotune"
	"github.com/kvloom/kvloom/autotune/store"
)

// tuneProgress tells how a tuning run goes: a bar for each family on a terminal, plain lines elsewhere, events with --json.
type tuneProgress struct {
	ctx      *Context
	model    string
	onTTY    bool
	bars     *mpb.Progress
	all      *mpb.Bar
	family   map[string]*familyBar
	started  time.Time
	measured int
}

// familyBar is one family's bar with what is known of each of its workloads.
type familyBar struct {
	bar       *mpb.Bar
	workloads []string               // in the order of the run
	says      map[string]string      // by workload
	last      atomic.Pointer[string] // all of them: the bars are drawn by a goroutine of their own
}

// tell renews what is said of a workload, which becomes the one that is worked on.
func (f *familyBar) tell(workload, text string) {
	f.says[workload] = text
	var parts []string
	for _, w := range f.workloads {
		switch {
		case w == workload:
			parts = append(parts, "> "+w+" "+f.says[w])
		case f.says[w] != "":
			parts = append(parts, w+" "+f.says[w])
		}
	}
	line := strings.Join(parts, "   ")
	f.last.Store(&line)
}

func (f *familyBar) text() string {
	if s := f.last.Load(); s != nil {
		return *s
	}
	return ""
}

func newTuneProgress(ctx *Context, model string) *tuneProgress {
	return &tuneProgress{ctx: ctx, model: model, onTTY: terminal(ctx.Stderr), started: time.Now(), family: map[string]*familyBar{}}
}

// terminal reports whether a stream is a terminal.
func terminal(w io.Writer) bool {
	f, ok := w.(*os.File)
	return ok && term.IsTerminal(int(f.Fd()))
}

func (p *tuneProgress) observe(e autotune.Event) {
	switch {
	case p.ctx.JSON:
		_ = json.NewEncoder(p.ctx.Stdout).Encode(e)
	case e.Kind == "note":
		p.say(fmt.Sprintf("%s: %s", p.model, e.Message))
	case e.Kind == "start":
		p.say(fmt.Sprintf("%s: %d trials, %d of them known", p.model, e.Total, e.Done))
		if p.onTTY {
			p.start(e)
		}
	case e.Kind == "trial":
		p.measured++
		p.trial(e)
	case e.Kind == "contest":
		p.contest(e)
	}
}

// say prints a line, above the bars where there are any.
func (p *tuneProgress) say(line string) {
	if p.bars != nil {
		_, _ = fmt.Fprintln(p.bars, line)
		return
	}
	fmt.Fprintln(p.ctx.Stderr, line)
}

// start makes the bars: all trials with rate and time left, then the families.
func (p *tuneProgress) start(e autotune.Event) {
	p.bars = mpb.New(mpb.WithOutput(p.ctx.Stderr), mpb.WithAutoRefresh())
	p.all = p.bars.AddBar(int64(e.Total), mpb.BarWidth(20), mpb.PrependDecorators(decor.Name("all", decor.WCSyncSpaceR), decor.CountersNoUnit("%d/%d", decor.WCSyncSpace)),
		mpb.AppendDecorators(decor.AverageSpeed(0, " %.1f/s "), decor.Name("at most "), decor.AverageETA(decor.ET_STYLE_GO), decor.Name(" left")))
	p.all.SetCurrent(int64(e.Done))
	totals, known := map[string]int64{}, map[string]int64{}
	var order []string
	for _, point := range e.Points {
		if totals[point.Family] == 0 {
			order = append(order, point.Family)
		}
		totals[point.Family] += int64(point.Candidates)
		known[point.Family] += int64(point.Known)
	}
	for _, name := range order {
		f := &familyBar{says: map[string]string{}}
		for _, point := range e.Points {
			if point.Family != name {
				continue
			}
			w := fmt.Sprintf("%dx%d", point.Context, point.Batch)
			f.workloads = append(f.workloads, w)
			if point.BestUS > 0 {
				f.says[w] = fmt.Sprintf("%.1f us", point.BestUS)
			}
		}
		f.bar = p.bars.AddBar(totals[name], mpb.BarWidth(20), mpb.PrependDecorators(decor.Name(name, decor.WCSyncSpaceR), decor.CountersNoUnit("%d/%d", decor.WCSyncSpace)),
			mpb.AppendDecorators(decor.Any(func(decor.Statistics) string { return " " + f.text() })))
		f.bar.SetCurrent(known[name])
		p.family[name] = f
	}
}

func (p *tuneProgress) trial(e autotune.Event) {
	line := p.line(e)
	if f := p.family[e.Trial.Family]; f != nil {
		f.tell(workload(e), bestSoFar(e))
		f.bar.Increment()
		p.all.SetCurrent(int64(e.Done))
		return
	}
	rate := float64(p.measured) / max(time.Since(p.started).Seconds(), 1e-3)
	left := time.Duration(float64(e.Total-e.Done) / rate * float64(time.Second)).Round(time.Second)
	fmt.Fprintf(p.ctx.Stderr, "%d/%d %s %s, %.1f/s, at most %v left\n", e.Done, e.Total, e.Trial.Family, line, rate, left)
}

// contest tells of leaders that are measured again; of a contest one line is enough where lines stay.
func (p *tuneProgress) contest(e autotune.Event) {
	line := fmt.Sprintf("%s leaders again, %s", workload(e), e.Message)
	if f := p.family[e.Trial.Family]; f != nil {
		f.tell(workload(e), bestSoFar(e)+" again, "+e.Message)
		return
	}
	if last := e.Trial.Windows[len(e.Trial.Windows)-1]; last.Round == 0 && last.Contest != "" && e.Trial.Default {
		fmt.Fprintf(p.ctx.Stderr, "%s %s\n", e.Trial.Family, line)
	}
}

func workload(e autotune.Event) string { return fmt.Sprintf("%dx%d", e.Trial.Context, e.Trial.Batch) }

func bestSoFar(e autotune.Event) string {
	if e.BestUS == 0 {
		return "none right yet"
	}
	return fmt.Sprintf("%.1f us", e.BestUS)
}

func (p *tuneProgress) line(e autotune.Event) string {
	t := e.Trial
	at := workload(e)
	if t.Class == store.OK || t.Class == store.Cut {
		return fmt.Sprintf("%s %.1f us, best %.1f us", at, t.MedianUS, e.BestUS)
	}
	return fmt.Sprintf("%s %s", at, t.Class)
}

func (p *tuneProgress) close() {
	if p.bars == nil {
		return
	}
	for _, f := range p.family {
		f.bar.Abort(false)
	}
	p.all.Abort(false)
	p.bars.Wait()
}
