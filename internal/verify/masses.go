package verify

import (
	"fmt"
	"math"

	"github.com/kvloom/kvloom/runtime/kernel"
)

// massError is how far the mass of a row may lie from that of the scores beside it, relative: exponentials are approximate, and a
// score of 60 nats in base 2 has an error of 3e-6.
const massError = 1e-4

// massOf adds up the parts of a row as page_select does: log2 of the sum of exp(s), and whether the row has masses at all.
func massOf(parts []float32) (log2 float64, ok bool) {
	top := math.Inf(-1)
	for i := 0; i < len(parts); i += 2 {
		if parts[i+1] != parts[i+1] {
			return 0, false
		}
		if parts[i+1] != 0 {
			top = max(top, float64(parts[i]))
		}
	}
	if math.IsInf(top, -1) {
		return 0, false
	}
	var sum float64
	for i := 0; i < len(parts); i += 2 {
		if parts[i+1] != 0 {
			sum += float64(parts[i+1]) * math.Exp2(float64(parts[i])-top)
		}
	}
	return top + math.Log2(sum), !math.IsInf(sum, 0)
}

// massOfScores is the same from scores.
func massOfScores(scores []float32) float64 {
	top := math.Inf(-1)
	for _, s := range scores {
		top = max(top, float64(s))
	}
	var sum float64
	for _, s := range scores {
		sum += math.Exp(float64(s) - top)
	}
	return (top + math.Log(sum)) / math.Ln2
}

// checkMasses holds what page_score left beside its scores against them. A row without masses is allowed, for page_select sums it
// then; `must` says that it is a fault.
func (r *scoreRun) checkMasses(at int, scores []float32, must bool) error {
	if r.Cache.Batch() != 1 {
		return nil
	}
	data, err := r.masses.Read()
	if err != nil {
		return err
	}
	all, n := Float32s(data), r.Groups(0)
	for h := range r.Problem.Q.Heads {
		got, ok := massOf(all[h*2*kernel.MassParts : (h+1)*2*kernel.MassParts])
		first := r.rows.At(0, h)
		want := massOfScores(scores[first : first+int64(n)])
		finite := !math.IsNaN(want) && !math.IsInf(want, 0)
		switch {
		case !ok && (!must || !finite):
		case !ok:
			return fmt.Errorf("launch %d, query head %d: no masses beside finite scores", at, h)
		case n == 0 || !finite:
			return fmt.Errorf("launch %d, query head %d: masses of 2^%g of a row that has none (%g)", at, h, got, want)
		case math.Abs(got-want) > massError:
			return fmt.Errorf("launch %d, query head %d: masses add up to 2^%g, those of the scores to 2^%g", at, h, got, want)
		}
	}
	return nil
}

// massesOf are parts as page_score leaves them, of the live pages of the only request: tiles of 8 pages dealt to some blocks, and the
// last page on its own.
func (r *selectRun) massesOf(live int) []float32 {
	return massesOf(r.Scores, r.Rows, r.QHeads, live)
}

func massesOf(scores []float32, rows Rows, heads, live int) []float32 {
	const blocks = 132
	all := make([]float32, 2*kernel.MassParts*heads)
	for h := range heads {
		row := scores[rows.At(0, h):]
		parts := all[2*kernel.MassParts*h:]
		var shift [blocks + 1]float64
		var sum [blocks + 1]float64
		for page := range live {
			s, part := float64(row[page])*math.Log2E, 1+page/8%blocks
			if page == live-1 {
				part = 0
			}
			if sum[part] == 0 {
				shift[part] = s
			}
			if !math.IsInf(s, -1) {
				sum[part] += math.Exp2(s - shift[part])
			}
		}
		for part := range sum {
			parts[2*part], parts[2*part+1] = float32(shift[part]), float32(sum[part])
		}
		for part := len(sum); part < kernel.MassParts && live%2 == 0; part++ {
			parts[2*part] = float32(math.Inf(-1)) // no block's; else blocks without pages
		}
	}
	return all
}
