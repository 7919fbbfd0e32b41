package cli

import (
	"fmt"
	"io"
	"strings"
	"text/tabwriter"

	"github.com/kvloom/kvloom/autotune"
	"github.com/kvloom/kvloom/autotune/store"
	"github.com/kvloom/kvloom/runtime/device"
)

// tuneReport is what a tuning run came to.
type tuneReport struct {
	Model    string      `json:"model"`
	Device   device.Info `json:"device"`
	Why      string      `json:"why"` // it stopped
	Measured int         `json:"measured"`
	Known    int         `json:"known"`
	Left     int         `json:"left"`
	Database string      `json:"database"`
	Bundle   string      `json:"bundle"`
	Choices  []choiceOf  `json:"choices"`
	Against  string      `json:"against_defaults"`
	Warnings []string    `json:"warnings"`
}

// choiceOf is one line of the table of choices. Times are microseconds.
type choiceOf struct {
	Model     string         `json:"model"`
	Family    string         `json:"family"`
	Context   int            `json:"context"`
	Batch     int            `json:"batch"`
	Candidate string         `json:"candidate"`
	MedianUS  float64        `json:"median_us"`
	LoUS      float64        `json:"lo_us"`
	HiUS      float64        `json:"hi_us"`
	DefaultUS float64        `json:"default_us"` // 0: not measured
	RunnerUS  float64        `json:"runner_up_us"`
	Tied      int            `json:"tied"`
	Classes   map[string]int `json:"classes"`
}

func choiceRow(c autotune.Choice) choiceOf {
	row := choiceOf{Model: c.Best.Spec, Family: c.Family, Context: c.Context, Batch: c.Batch, Candidate: shortID(c.Best),
		MedianUS: c.Best.MedianUS, LoUS: c.Best.LoUS, HiUS: c.Best.HiUS, DefaultUS: c.Default.MedianUS, Tied: c.Tied, Classes: c.Counts}
	if c.RunnerUp.Class == store.OK {
		row.RunnerUS = c.RunnerUp.MedianUS
	}
	return row
}

// shortID is a candidate's ID without its family.
func shortID(t store.Trial) string {
	return strings.TrimPrefix(t.Candidate.ID(), string(t.Candidate.Family)+" ")
}

func (r tuneReport) print(w io.Writer) {
	fmt.Fprintf(w, "%s on %s: %d trials measured, %d known, %d left (%s)\n\n", r.Model, r.Device.Name, r.Measured, r.Known, r.Left, r.Why)
	printChoices(w, r.Choices)
	if r.Against != "" {
		fmt.Fprintf(w, "\n%s\n", r.Against)
	}
	for _, warning := range r.Warnings {
		fmt.Fprintf(w, "warning: %s\n", warning)
	}
	fmt.Fprintf(w, "\nbundle   %s\ndatabase %s\n", r.Bundle, r.Database)
}

func printChoices(w io.Writer, rows []choiceOf) {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(t, "model\tfamily\tcontext\tbatch\tus\tdefault\ttied\tcandidate")
	for _, c := range rows {
		byDefault := "-"
		if c.DefaultUS > 0 {
			byDefault = fmt.Sprintf("%.2f", c.DefaultUS)
		}
		fmt.Fprintf(t, "%s\t%s\t%d\t%d\t%.2f\t%s\t%d\t%s\n", c.Model, c.Family, c.Context, c.Batch, c.MedianUS, byDefault, c.Tied, c.Candidate)
	}
	_ = t.Flush()
}
