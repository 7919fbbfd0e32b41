package reference

import "math"

// Observe is full softmax attention of one query over the tokens up to position limit: LSE and output. Missing tokens do not exist;
// without any token the output is 0 and the LSE -inf.
func (t DropTokens) Observe(q []float64, limit int, l Logits) Attention {
	out := Attention{Out: make([]float64, t.Dim), LSE: math.Inf(-1)}
	logits := make([]float64, 0, t.N)
	at := make([]int, 0, t.N)
	for j := range min(limit+1, t.N) {
		if !t.Missing[j] {
			logits = append(logits, l.Of(dot(q, t.Key(j))))
			at = append(at, j)
		}
	}
	if len(at) == 0 {
		return out
	}
	out.LSE = LSE(logits)
	for i, j := range at {
		axpy(out.Out, math.Exp(logits[i]-out.LSE), t.Value(j))
	}
	return out
}

// LogitNoise bounds the error that f32 may make in any of the logits that a query sees: of a sum of products, relative to their sizes
// by dotNoise, and of the cap.
func (t DropTokens) LogitNoise(q []float64, limit int, l Logits, dotNoise float64) float64 {
	var largest float64
	for j := range min(limit+1, t.N) {
		if !t.Missing[j] {
			largest = max(largest, absDot(q, t.Key(j)))
		}
	}
	return (dotNoise+0x1p-23)*largest*l.Scale + 0x1p-21*l.Softcap
}

// smallestNorm is the squared norm below which a key has no direction: f32 holds it with fewer digits, or not at all.
const smallestNorm = 0x1p-126

// Anchor is KeyDiff's: the mean of the keys' directions. A zero key has no direction and counts as zeros.
func (t DropTokens) Anchor() []float64 {
	anchor := make([]float64, t.Dim)
	var n float64
	for j := range t.N {
		if t.Missing[j] {
			continue
		}
		n++
		if norm := dot(t.Key(j), t.Key(j)); !(norm < smallestNorm) {
			axpy(anchor, 1/math.Sqrt(norm), t.Key(j))
		}
	}
	for i := range anchor {
		anchor[i] /= max(n, 1)
	}
	return anchor
}

// DropRow is one query of the window with what was observed of it.
type DropRow struct {
	Q     []float64
	Limit int // last position that it sees; negative: the query does not exist
	Attention
}

// DropRows makes the rows of a KV head, [group, window], and observes each.
func (c *Cache) DropRows(t DropTokens, q DropWindow, request, kvHead int, l Logits) []DropRow {
	group := q.Heads / c.KVHeads
	rows := make([]DropRow, group*q.Window)
	for r := range rows {
		i := r % q.Window
		rows[r] = DropRow{Q: q.Of(request, kvHead*group+r/q.Window, i), Limit: t.N - q.Window + i}
		rows[r].Attention = t.Observe(rows[r].Q, rows[r].Limit, l)
	}
	return rows
}
