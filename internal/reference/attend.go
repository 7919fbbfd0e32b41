package reference

import "math"

// Attention is the result of one query head.
type Attention struct {
	Out []float64 // [dim], not rounded
	LSE float64   // natural log of the softmax denominator; -inf without tokens
}

// Attend is softmax attention of one query head over the listed pages alone, renormalised; pages nil means all. Pages without a
// block and tokens past the length do not exist; with no token at all the output is 0 and the LSE -inf.
func (c *Cache) Attend(request, kvHead int, q []float64, pages []int32, l Logits) Attention {
	length := c.Length(request, kvHead)
	if pages == nil {
		pages = make([]int32, c.Pages(length))
		for i := range pages {
			pages[i] = int32(i)
		}
	}
	out := Attention{Out: make([]float64, c.HeadDim), LSE: math.Inf(-1)}
	top, sum := math.Inf(-1), 0.0
	for _, page := range pages {
		tokens := c.TokensIn(int(page), length)
		if tokens == 0 {
			continue
		}
		keys := c.Keys(request, int(page), kvHead, tokens)
		values := c.Values(request, int(page), kvHead, tokens)
		for t := range len(keys) / c.HeadDim {
			logit := l.Of(dot(q, keys[t*c.HeadDim:(t+1)*c.HeadDim]))
			if logit > top {
				shrink := math.Exp(top - logit)
				sum *= shrink
				for i := range out.Out {
					out.Out[i] *= shrink
				}
				top = logit
			}
			p := math.Exp(logit - top)
			sum += p
			axpy(out.Out, p, values[t*c.HeadDim:(t+1)*c.HeadDim])
		}
	}
	if sum == 0 {
		return out
	}
	for i := range out.Out {
		out.Out[i] /= sum
	}
	out.LSE = top + math.Log(sum)
	return out
}

// ExactScores is equation 1 for every page of a request and query: [page].
func (c *Cache) ExactScores(request, kvHead int, q []float64, l Logits) []float64 {
	length := int(c.SeqLens[request])
	scores := make([]float64, c.Pages(length))
	for page := range scores {
		scores[page] = PageLSE(q, c.Keys(request, page, kvHead, c.TokensIn(page, length)), l)
	}
	return scores
}

// RetainedMass is the share of the exact attention mass that the chosen pages hold, from the exact page scores.
func RetainedMass(exact []float64, chosen []int32) float64 {
	kept := make([]float64, len(chosen))
	for i, page := range chosen {
		kept[i] = exact[page]
	}
	return math.Exp(LSE(kept) - LSE(exact))
}
