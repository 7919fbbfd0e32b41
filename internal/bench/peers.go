package bench

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	_ "embed"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strings"
)

//go:embed peers_common.py
var peersCommon string

//go:embed peers_torch.py
var peersTorch string

//go:embed peers_flashinfer.py
var peersFlashInfer string

//go:embed peers_locks.py
var peersLocks string

// peer is what lines are measured beside: a Python package, in a process of its own behind peers_common.py.
type peer struct {
	source   string
	families []string
	// ranked: a process serves the lines of one rank, which it is told by this variable.
	ranked string
}

var peers = map[string]peer{
	"torch":      {source: peersTorch, families: []string{summary, score, choose, attend, dense, dropped, compact, DropObserveScore, DropChain}},
	"flashinfer": {source: peersFlashInfer, families: []string{attend, dense}},
	"locks-kv":   {source: peersLocks, families: []string{summary, score, choose, attend, ChainFamily}, ranked: "LOCKS_RKI4_RANK"},
}

// Peers are the names of what lines can be measured beside.
func Peers() []string { return []string{"torch", "flashinfer", "locks-kv"} }

// measurePeers fills in the baselines as they are measured and returns notes on what was left out.
func (b *Bench) measurePeers(ctx context.Context, results []Result) (notes []string) {
	for _, name := range b.Peers {
		p, ok := peers[name]
		if !ok {
			notes = append(notes, fmt.Sprintf("no peer called %q; there are %s", name, strings.Join(Peers(), ", ")))
			continue
		}
		for _, g := range p.groups(results) {
			notes = append(notes, b.measurePeer(ctx, name, p, g, results)...)
		}
	}
	return notes
}

// group is what one process serves.
type group struct {
	rank int
	list []int // indices of results
}

// groups divides the results that a peer can stand beside over processes: one, or one a rank where the peer needs that. Lines without a rank
// go with the first.
func (p peer) groups(results []Result) (groups []group) {
	for i, r := range results {
		if !slices.Contains(p.families, r.Family) {
			continue
		}
		at := slices.IndexFunc(groups, func(g group) bool {
			return p.ranked == "" || r.Shape.Rank == 0 || g.rank == 0 || g.rank == r.Shape.Rank
		})
		if at < 0 {
			groups, at = append(groups, group{rank: r.Shape.Rank}), len(groups)
		}
		if p.ranked != "" && groups[at].rank == 0 {
			groups[at].rank = r.Shape.Rank
		}
		groups[at].list = append(groups[at].list, i)
	}
	return groups
}

// measurePeer runs one process over the lines of a group.
func (b *Bench) measurePeer(ctx context.Context, name string, p peer, g group, results []Result) (notes []string) {
	type line struct {
		Family string `json:"family"`
		Shape  Shape  `json:"shape"`
	}
	var lines []line
	for _, i := range g.list {
		lines = append(lines, line{results[i].Family, results[i].Shape})
	}
	jobs, err := json.Marshal(lines)
	if err != nil {
		panic("BUG: bench: shapes: " + err.Error())
	}
	proc := exec.CommandContext(ctx, b.Python, "-c", peersCommon+"\n\n"+p.source)
	proc.Stdin = bytes.NewReader(jobs)
	if p.ranked != "" {
		proc.Env = append(os.Environ(), fmt.Sprintf("%s=%d", p.ranked, cmp.Or(g.rank, 4)))
	}
	var stderr bytes.Buffer
	proc.Stderr = &stderr
	out, err := proc.StdoutPipe()
	if err == nil {
		err = proc.Start()
	}
	if err != nil {
		return []string{fmt.Sprintf("left out: %s: %v", name, err)}
	}
	answers := bufio.NewScanner(out)
	answers.Buffer(nil, 1<<20)
	for answers.Scan() {
		var answer struct {
			Index   *int               `json:"index"`
			Peers   map[string]float64 `json:"peers"`
			LeftOut map[string]string  `json:"left_out"`
		}
		if json.Unmarshal(answers.Bytes(), &answer) != nil || answer.Index == nil || *answer.Index < 0 || *answer.Index >= len(g.list) {
			continue // a peer's own talk on standard output
		}
		r := &results[g.list[*answer.Index]]
		for peer, us := range answer.Peers {
			r.Baselines[peer] = us
			b.Progress(fmt.Sprintf("%-12s %dx%d: %s %.1f us, %.1f times ours", r.Family, r.Shape.Tokens, r.Shape.Batch, peer, us, us/r.MedianUS))
		}
		for peer, why := range answer.LeftOut {
			notes = append(notes, fmt.Sprintf("left out: %s of %s, %s, %d tokens: %s", peer, r.Family, r.Shape.heads(), r.Shape.Tokens, why))
		}
		if b.Keep != nil && len(answer.Peers) > 0 {
			if err := b.Keep(results); err != nil {
				notes = append(notes, err.Error())
			}
		}
	}
	if err := proc.Wait(); err != nil {
		notes = append(notes, fmt.Sprintf("left out: %s: %v: %s", name, err, lastLine(stderr.String())))
	}
	return notes
}

// lastLine is what a Python traceback ends with.
func lastLine(text string) string {
	lines := strings.Split(strings.TrimSpace(text), "\n")
	last := strings.TrimSpace(lines[len(lines)-1])
	return last[:min(len(last), 300)]
}

// heads names the heads of a shape: 32/8.
func (s Shape) heads() string {
	if s.QHeads == 0 {
		return fmt.Sprint(s.KVHeads)
	}
	return fmt.Sprintf("%d/%d", s.QHeads, s.KVHeads)
}
