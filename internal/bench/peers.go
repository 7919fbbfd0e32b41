package bench

import (
	"bufio"
	"bytes"
	"context"
	_ "embed"
	"encoding/json"
	"fmt"
	"os/exec"
	"strings"
)

//go:embed peers.py
var peersSource string

// measurePeers fills in the baselines as they are measured and returns notes on what was left out.
func (b *Bench) measurePeers(ctx context.Context, results []Result) (notes []string) {
	jobs, err := json.Marshal(results)
	if err != nil {
		panic("BUG: bench: results: " + err.Error())
	}
	cmd := exec.CommandContext(ctx, b.Python, "-c", peersSource, strings.Join(b.Peers, ","))
	cmd.Stdin = bytes.NewReader(jobs)
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.StdoutPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		return []string{fmt.Sprintf("peers %s left out: %v", strings.Join(b.Peers, ","), err)}
	}
	lines := bufio.NewScanner(out)
	for lines.Scan() {
		var answer struct {
			Index   int                `json:"index"`
			Peers   map[string]float64 `json:"peers"`
			LeftOut map[string]string  `json:"left_out"`
		}
		if json.Unmarshal(lines.Bytes(), &answer) != nil || answer.Index < 0 || answer.Index >= len(results) {
			continue // a peer's own talk on standard output
		}
		r := &results[answer.Index]
		for name, us := range answer.Peers {
			r.Baselines[name] = us
			b.Progress(fmt.Sprintf("%-12s %dx%d: %s %.1f us, %.1f times ours", r.Family, r.Shape.Tokens, r.Shape.Batch, name, us, us/r.MedianUS))
		}
		for name, why := range answer.LeftOut {
			notes = append(notes, fmt.Sprintf("%s left out of %s: %s", name, r.Family, why))
		}
		if b.Keep != nil && len(answer.Peers) > 0 {
			if err := b.Keep(results); err != nil {
				notes = append(notes, err.Error())
			}
		}
	}
	if err := cmd.Wait(); err != nil {
		last := strings.TrimSpace(stderr.String())
		notes = append(notes, fmt.Sprintf("peers %s: %v: %s", strings.Join(b.Peers, ","), err, last[max(0, len(last)-400):]))
	}
	return notes
}
