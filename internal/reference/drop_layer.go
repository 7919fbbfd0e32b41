package reference

import "math"

// LayerAttention is what CAKE measures of a layer's attention: Qin et al. 2025, "CAKE: Cascading and Adaptive KV Cache Eviction with
// Layer Preferences" (ICLR), the preference-prioritized adaptive allocation. Of A, the attention weights of the window's queries to
// the keys before the window (A[-w:, :-w], of a softmax over all keys that a query sees, not renormalised), it takes
//
//	H(A) = -sum_i A[i,:] log A[i,:]^T    the dispersion: entropies of the queries' rows, natural log, 0 log 0 = 0
//	V(A) = sum_j Var(A[:,j])             the shift: how a key's weight varies over the queries
//
// The zero value has seen no head. Where the equations are silent this is the authors' implementation: query heads are summed, and
// Var is the sample variance. Either factor is the same in every layer, so that shares of a budget do not depend on it. The
// implementation's 1e-10 inside the logarithm is left out. Read from a transcription of the paper's equations and from a copy of the
// released code, which agree.
type LayerAttention struct {
	Dispersion float64 // H, nats
	Shift      float64 // V
}

// AddHead adds one query head: weights are [query of the window][key before the window]. One query alone has no shift.
func (a *LayerAttention) AddHead(weights [][]float64) {
	if len(weights) == 0 {
		return
	}
	queries := float64(len(weights))
	for _, row := range weights {
		for _, p := range row {
			if p != 0 {
				a.Dispersion -= p * math.Log(p)
			}
		}
	}
	for j := range weights[0] {
		var mean, squares float64
		for _, row := range weights {
			mean += row[j] / queries
		}
		for _, row := range weights {
			squares += (row[j] - mean) * (row[j] - mean)
		}
		a.Shift += squares / max(queries-1, 1)
	}
}

// Preference is P = H^(1/tau1) V^(1/tau2); both temperatures are above 0. It is 0 where the window is one query or the prompt is no
// longer than the window, NaN where a key or query that counts is. There is no default: the authors chose temperatures for each
// model and budget, from 0.4 to 2.3.
func (a LayerAttention) Preference(tau1, tau2 float64) float64 {
	return math.Pow(a.Dispersion, 1/tau1) * math.Pow(a.Shift, 1/tau2)
}

// AddRows adds a KV head's rows, [group, window] as DropRows makes them. A missing token has no weight.
func (a *LayerAttention) AddRows(t DropTokens, rows []DropRow, window int, l Logits) {
	keys := max(t.N-window, 0)
	for first := 0; first < len(rows); first += window {
		weights := make([][]float64, window)
		for i, row := range rows[first : first+window] {
			weights[i] = make([]float64, keys)
			for j := range keys {
				if !t.Missing[j] {
					weights[i][j] = math.Exp(l.Of(dot(row.Q, t.Key(j))) - row.LSE)
				}
			}
		}
		a.AddHead(weights)
	}
}
