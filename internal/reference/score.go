package reference

import "math"

// Logits turn dot products into logits: scale, then the optional cap on each logit, cap * tanh(logit / cap).
type Logits struct {
	Scale   float64
	Softcap float64 // 0: none
}

// Of is the logit of one dot product.
func (l Logits) Of(dot float64) float64 {
	x := dot * l.Scale
	if l.Softcap > 0 {
		x = l.Softcap * math.Tanh(x/l.Softcap)
	}
	return x
}

// LSE is log(sum(exp(x))) with the maximum taken out. Nothing sums to -inf; a NaN makes it NaN; +inf without NaN is +inf.
func LSE(x []float64) float64 {
	top := math.Inf(-1)
	for _, v := range x {
		if math.IsNaN(v) {
			return v
		}
		top = max(top, v)
	}
	if math.IsInf(top, 0) {
		return top
	}
	var sum float64
	for _, v := range x {
		sum += math.Exp(v - top)
	}
	return top + math.Log(sum)
}

// PageLSE is equation 1, exact: the log-sum-exp of the logits of q [dim] with keys [tokens, dim].
func PageLSE(q, keys []float64, l Logits) float64 {
	d := len(q)
	logits := make([]float64, len(keys)/d)
	for t := range logits {
		logits[t] = l.Of(dot(q, keys[t*d:(t+1)*d]))
	}
	return LSE(logits)
}

// Score is equation 2 on a dequantised summary: each token's logit is reconstructed from the centroid and the basis, capped, and
// summed in the log domain. It also returns the largest |logit|, which the error bound grows with.
func (s Dequantised) Score(q []float64, l Logits) (score, largest float64) {
	projected := make([]float64, s.Rank) // V^T q
	for r := range projected {
		projected[r] = dot(s.V[r*s.HeadDim:(r+1)*s.HeadDim], q)
	}
	base := dot(s.Mu, q)
	logits := make([]float64, s.PageSize)
	for t := range logits {
		logits[t] = l.Of(base + dot(projected, s.C[t*s.Rank:(t+1)*s.Rank]))
		largest = max(largest, math.Abs(logits[t]))
	}
	return LSE(logits), largest
}
