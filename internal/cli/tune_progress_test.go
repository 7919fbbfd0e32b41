package cli

import (
	"bytes"
	"encoding/json"
	"strings"
	"testing"

	"github.com/kvloom/kvloom/autotune"
	"github.com/kvloom/kvloom/autotune/store"
)

// The same events as lines, as bars and as a stream of JSON.
func TestTuneProgress(t *testing.T) {
	trial := store.Trial{Family: "page_score", Context: 1024, Batch: 8, Class: store.OK, MedianUS: 12.34, Default: true, Windows: []store.Window{{Contest: "c"}}}
	broken := trial
	broken.Class = store.Hang
	events := []autotune.Event{
		{Kind: "note", Message: "3 trials are stale"},
		{Kind: "start", Total: 10, Done: 2, Points: []autotune.Progress{{Family: "page_score", Context: 1024, Batch: 1, Candidates: 3, Known: 2, BestUS: 7.5},
			{Family: "page_score", Context: 1024, Batch: 8, Candidates: 3}, {Family: "dense", Context: 1024, Batch: 1, Candidates: 4}}},
		{Kind: "trial", Total: 10, Done: 3, Trial: trial, BestUS: 11},
		{Kind: "trial", Total: 10, Done: 4, Trial: broken, BestUS: 11},
		{Kind: "contest", Total: 10, Done: 4, Trial: trial, BestUS: 11, Message: "round 1 of 10"},
	}
	for _, tt := range []struct {
		name        string
		json, onTTY bool
		want        []string
	}{
		{"lines", false, false, []string{"m: 3 trials are stale", "m: 10 trials, 2 of them known", "3/10 page_score 1024x8 12.3 us, best 11.0 us, ", "4/10 page_score 1024x8 hang", "page_score 1024x8 leaders again, round 1 of 10"}},
		{"bars", false, true, []string{"m: 3 trials are stale", "all", "page_score", "dense", "4/10", "4/6", "1024x1 7.5 us   > 1024x8 11.0 us again, round 1 of 10"}},
		{"json", true, false, []string{`"kind":"note"`, `"kind":"start"`, `"candidates":3`, `"kind":"trial"`, `"class":"hang"`, `"kind":"contest"`}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			var stdout, stderr bytes.Buffer
			p := newTuneProgress(&Context{Context: t.Context(), Stdout: &stdout, Stderr: &stderr, JSON: tt.json}, "m")
			p.onTTY = tt.onTTY
			for _, e := range events {
				p.observe(e)
			}
			p.close()
			text := stderr.String()
			if tt.json {
				text = stdout.String()
				for line := range strings.Lines(text) {
					if !json.Valid([]byte(line)) {
						t.Errorf("not JSON: %s", line)
					}
				}
			}
			for _, want := range tt.want {
				if !strings.Contains(text, want) {
					t.Errorf("no %q in\n%s", want, text)
				}
			}
		})
	}
}
