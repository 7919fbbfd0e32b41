package reference

import (
	"fmt"
	"math"
)

// DropPool smooths scores along the sequence.
type DropPool struct {
	Kind  string // "max", "avg" or "none"
	Width int    // odd, 1 to 63
}

// Validate reports a pool that specs refuse too.
func (p DropPool) Validate() error {
	switch {
	case p.Kind != "max" && p.Kind != "avg" && p.Kind != "none":
		return fmt.Errorf("pool kind %q; use max, avg or none", p.Kind)
	case p.Width < 1 || p.Width > 63 || p.Width%2 == 0:
		return fmt.Errorf("pool width %d; allowed: odd numbers from 1 to 63", p.Width)
	}
	return nil
}

// Pool smooths the scores of the tokens before the window, [0, n-window), and sets those of pinned tokens, the window and the first
// sinks, to +inf. The tokens of the window take no part in their neighbours' pools. max pads with -inf and leaves NaN out, so that
// only a token among NaN alone stays NaN; avg divides by the tokens inside [0, n-window), and a NaN makes its neighbours NaN.
func (p DropPool) Pool(scores []float64, window, sinks int) []float64 {
	out := make([]float64, len(scores))
	end := max(len(scores)-window, 0)
	for j := range out {
		if j >= end || j < sinks {
			out[j] = math.Inf(1)
			continue
		}
		half := p.Width / 2
		if p.Kind == "none" {
			half = 0
		}
		inside := scores[max(j-half, 0):min(j+half+1, end)]
		if p.Kind == "avg" {
			var sum float64
			for _, s := range inside {
				sum += s
			}
			out[j] = sum / float64(len(inside))
			continue
		}
		out[j] = math.NaN()
		for _, s := range inside {
			if above(s, out[j]) {
				out[j] = s
			}
		}
	}
	return out
}
