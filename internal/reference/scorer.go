package reference

import "math"

// PageScorer estimates the log-sum-exp of a query's logits on the complete pages of one KV head from what it keeps of them.
type PageScorer interface {
	// Score writes the estimates of the first len(scores) pages for a query q [dim].
	Score(scores, q []float64, l Logits)
	// Bytes is what a scan reads for one page and KV head, shares of tables that all pages use included; 0: no stored form exists.
	Bytes() float64
}

// PageLocal scores by equation 2 of the Locks paper on summaries fitted to each page ("Locks: Local Compact Key Summaries",
// section 4). Without quantisation it has no stored form.
type PageLocal struct {
	summaries []Dequantised
	form      Form
	dim, page int
	rest      []float64 // [page, token, dim] keys of complete pages that have no summary yet, for summaries of several pages
}

// NewPageLocal keeps the first rank directions of summaries of at least that rank. Bits is the width of the basis, with 8-bit
// centroids and coefficients; 0 leaves everything unquantised.
func NewPageLocal(summaries []Summary, rank, bits int) PageLocal {
	return NewStored(summaries, PlainForm(rank, bits), summaries[0].HeadDim, summaries[0].PageSize, nil, nil)
}

// NewStored keeps summaries of at least the form's rank in the form, each of f.Pages pages of page tokens. Centre is as in Summary.Stored; rest are
// the keys [page, token, dim] of complete pages behind the last summary, fewer than f.Pages of them, which are scored exactly.
func NewStored(summaries []Summary, f Form, dim, page int, centre, rest []float64) PageLocal {
	s := PageLocal{form: f, dim: dim, page: page, rest: rest}
	for _, full := range summaries {
		s.summaries = append(s.summaries, full.Stored(f, centre))
	}
	return s
}

// Truncate is the summary of a lower rank: singular vectors come in order, so it is the one that Summarise would give.
func (s Summary) Truncate(rank, bits int) Summary {
	out := s
	out.Rank, out.BasisBits = rank, bits
	out.V, out.Sigma = s.V[:rank*s.HeadDim], s.Sigma[:rank]
	out.C = make([]float64, 0, s.PageSize*rank)
	for t := range s.PageSize {
		out.C = append(out.C, s.C[t*s.Rank:t*s.Rank+rank]...)
	}
	return out
}

// Score is equation 2.
func (s PageLocal) Score(scores, q []float64, l Logits) {
	for j := range scores {
		at := j / s.form.Pages
		if at >= len(s.summaries) {
			first := (j - len(s.summaries)*s.form.Pages) * s.page * s.dim
			scores[j] = PageLSE(q, s.rest[first:first+s.page*s.dim], l)
			continue
		}
		one := s.summaries[at]
		if first := j % s.form.Pages * s.page * one.Rank; s.form.Pages > 1 {
			one.PageSize, one.C = s.page, one.C[first:first+s.page*one.Rank]
		}
		scores[j], _ = one.Score(q, l)
	}
}

// Bytes is the payload of one page.
func (s PageLocal) Bytes() float64 { return s.form.Bytes(s.dim, s.page) }

// Quest scores a page by a bound on its largest logit, from the element-wise minimum and maximum of its keys ("Quest: Query-Aware
// Sparsity for Efficient Long-Context LLM Inference", Tang et al., ICML 2024). It estimates no log-sum-exp.
type Quest struct {
	low, high []float64 // [page, dim]
	dim       int
}

// NewQuest takes keys [page, token, dim] of complete pages.
func NewQuest(keys []float64, dim, page int) Quest {
	s := Quest{dim: dim}
	for at := 0; at < len(keys); at += page * dim {
		low, high := append([]float64{}, keys[at:at+dim]...), append([]float64{}, keys[at:at+dim]...)
		for i, x := range keys[at : at+page*dim] {
			low[i%dim], high[i%dim] = min(low[i%dim], x), max(high[i%dim], x)
		}
		s.low, s.high = append(s.low, low...), append(s.high, high...)
	}
	return s
}

// Score is the logit of sum over i of max(q_i low_i, q_i high_i).
func (s Quest) Score(scores, q []float64, l Logits) {
	for j := range scores {
		low, high := s.low[j*s.dim:(j+1)*s.dim], s.high[j*s.dim:(j+1)*s.dim]
		var bound float64
		for i, x := range q {
			bound += max(x*low[i], x*high[i])
		}
		scores[j] = l.Of(bound)
	}
}

// Bytes: two vectors in the cache's 16-bit type, in which extrema of keys are exact.
func (s Quest) Bytes() float64 { return float64(4 * s.dim) }

// MeanKey scores a page as if each of its keys were their mean: equation 2 of the Locks paper at rank 0, and the mean-pooled
// block keys of "MoBA: Mixture of Block Attention for Long-Context LLMs" (Lu et al., 2025) without its training.
type MeanKey struct {
	mu        []float64 // [page, dim]
	dim, page int
	bytes     float64
}

// NewMeanKey takes summaries of any rank; the mean gets 8-bit codes under one bf16 scale, or stays unquantised.
func NewMeanKey(summaries []Summary, quantised bool) MeanKey {
	s := MeanKey{dim: summaries[0].HeadDim, page: summaries[0].PageSize}
	for _, one := range summaries {
		mu := one.Mu
		if quantised {
			mu = one.Truncate(0, 8).Quantise().Dequantise().Mu
			s.bytes = float64(s.dim + 2)
		}
		s.mu = append(s.mu, mu...)
	}
	return s
}

// Score is the mean's logit plus the log of the tokens.
func (s MeanKey) Score(scores, q []float64, l Logits) {
	for j := range scores {
		scores[j] = l.Of(dot(q, s.mu[j*s.dim:(j+1)*s.dim])) + math.Log(float64(s.page))
	}
}

// Bytes is dim codes and a scale.
func (s MeanKey) Bytes() float64 { return s.bytes }

// ExactLSE scores by equation 1 of the Locks paper: the oracle, which reads every key.
type ExactLSE struct {
	keys      []float64 // [page, token, dim]
	dim, page int
}

// NewExactLSE keeps the keys [page, token, dim].
func NewExactLSE(keys []float64, dim, page int) ExactLSE { return ExactLSE{keys, dim, page} }

// Score is the exact log-sum-exp.
func (s ExactLSE) Score(scores, q []float64, l Logits) {
	for j := range scores {
		scores[j] = PageLSE(q, s.keys[j*s.page*s.dim:(j+1)*s.page*s.dim], l)
	}
}

// Bytes is every key in 16 bits.
func (s ExactLSE) Bytes() float64 { return float64(2 * s.page * s.dim) }

// SinkAndRecent asks nothing of the query: later pages rank higher, so with a sink page always kept it is the window of
// "Efficient Streaming Language Models with Attention Sinks" (Xiao et al., ICLR 2024), in whole pages.
type SinkAndRecent struct{}

// Score is the page's index.
func (SinkAndRecent) Score(scores, _ []float64, _ Logits) {
	for j := range scores {
		scores[j] = float64(j)
	}
}

// Bytes is 0: nothing is read.
func (SinkAndRecent) Bytes() float64 { return 0 }
