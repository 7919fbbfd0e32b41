package reference

import "math"

// SharedBasis scores with one basis for all pages of a sequence, the controls of the Locks paper's Tables 1 and B.6 (appendix
// B.1): 4-bit basis, 8-bit centroids and coefficients, bf16 scales. Two scopes:
//
//   - hybrid: each page keeps its centroid; the basis is the top eigenvectors of the sum over pages of their centred scatter
//     H_j, of the complete pages of the prompt.
//   - wholly shared: one centroid and one basis of the prompt's keys, the incomplete last page included.
//
// Both are frozen after the prompt; later pages get coefficients against them.
type SharedBasis struct {
	mu        []float64 // [page, dim]: dequantised centroids; of the hybrid form only
	centre    []float64 // [dim]: the one centroid of the wholly shared form, nil for the hybrid
	v         []float64 // [rank, dim] dequantised
	c         []float64 // [page, token, rank] dequantised
	dim, page int
	rank      int
	bytes     float64
}

// SharedFit is the fit of a sequence, from which bases of every rank are cut.
type SharedFit struct {
	hybrid     bool
	summaries  []Summary
	keys       []float64 // [page, token, dim] of complete pages
	centre     []float64 // [dim] zero for the hybrid form
	vectors    []float64 // [dim, dim] eigenvectors as rows, descending
	dim, page  int
	promptPage int // complete pages of the prompt
}

// FitShared fits keys [token, dim] of a sequence whose first prompt tokens are the prompt. Summaries are those of all complete
// pages, of any rank.
func FitShared(keys []float64, prompt int, summaries []Summary, hybrid bool) SharedFit {
	dim, page := summaries[0].HeadDim, summaries[0].PageSize
	f := SharedFit{hybrid: hybrid, summaries: summaries, keys: keys[:len(summaries)*page*dim], centre: make([]float64, dim),
		dim: dim, page: page, promptPage: prompt / page}
	scatter := make([]float64, dim*dim)
	add := func(row []float64) {
		for i, x := range row {
			axpy(scatter[i*dim:(i+1)*dim], x, row)
		}
	}
	if hybrid {
		for _, s := range summaries[:f.promptPage] {
			for t := range page {
				add(s.D[t*dim : (t+1)*dim])
			}
		}
	} else {
		for t := range prompt {
			axpy(f.centre, 1/float64(prompt), keys[t*dim:(t+1)*dim])
		}
		row := make([]float64, dim)
		for t := range prompt {
			copy(row, keys[t*dim:(t+1)*dim])
			axpy(row, -1, f.centre)
			add(row)
		}
	}
	_, f.vectors = eigen(scatter, dim)
	return f
}

// Rebase applies the basis, and for the wholly shared form the centroid, that were fitted to another text: the global controls of
// the Locks paper. Keys [token, dim] and summaries are those of the sequence at hand, as in FitShared.
func (f SharedFit) Rebase(keys []float64, summaries []Summary) SharedFit {
	f.summaries, f.keys = summaries, keys[:len(summaries)*f.page*f.dim]
	return f
}

// sharedBytes is what one page costs at a rank: its own codes and scales, and its part of the shared tables.
func (f SharedFit) sharedBytes(rank int) float64 {
	own := float64(f.page*rank + 2*f.page)
	table := float64(f.dim*rank)/2 + 2*float64(rank)
	if f.hybrid {
		own += float64(f.dim + 2)
	} else {
		table += float64(f.dim + 2)
	}
	return own + table/float64(len(f.summaries))
}

// RankWithin is the largest rank, at most dim, whose bytes a page do not exceed a limit; 0 where rank 1 does not fit.
func (f SharedFit) RankWithin(bytes float64) int {
	rank := 0
	for rank < f.dim && f.sharedBytes(rank+1) <= bytes {
		rank++
	}
	return rank
}

// Cut makes the scorer of a rank.
func (f SharedFit) Cut(rank int) SharedBasis {
	s := SharedBasis{dim: f.dim, page: f.page, rank: rank, bytes: f.sharedBytes(rank)}
	plain := f.vectors[:rank*f.dim]
	for r := range rank {
		s.v = append(s.v, requantised(plain[r*f.dim:(r+1)*f.dim], 4)...)
	}
	if !f.hybrid {
		s.centre = requantised(f.centre, 8)
	}
	rest, c := make([]float64, f.dim), make([]float64, rank)
	for j, one := range f.summaries {
		if f.hybrid {
			s.mu = append(s.mu, requantised(one.Mu, 8)...)
		}
		for t := range f.page {
			if f.hybrid {
				copy(rest, one.D[t*f.dim:(t+1)*f.dim])
			} else {
				copy(rest, f.keys[(j*f.page+t)*f.dim:(j*f.page+t+1)*f.dim])
				axpy(rest, -1, f.centre)
			}
			for r := range c {
				c[r] = dot(plain[r*f.dim:(r+1)*f.dim], rest)
			}
			s.c = append(s.c, requantisedUnder(TokenScale, c, 8)...)
		}
	}
	return s
}

// requantised is x as codes of so many bits under one bf16 scale hold it.
func requantised(x []float64, bits int) []float64 { return requantisedUnder(Scale, x, bits) }

// requantisedUnder is the same under the scale that a rule gives.
func requantisedUnder(rule func([]float64, int) uint16, x []float64, bits int) []float64 {
	scale := FromBF16(rule(x, bits))
	out := make([]float64, len(x))
	for i, v := range x {
		out[i] = Decoded(Code(v, scale, bits), scale, bits)
	}
	return out
}

// Score is equation 2 with the shared basis.
func (s SharedBasis) Score(scores, q []float64, l Logits) {
	projected := make([]float64, s.rank)
	for r := range projected {
		projected[r] = dot(s.v[r*s.dim:(r+1)*s.dim], q)
	}
	var base float64
	if s.centre != nil {
		base = dot(s.centre, q)
	}
	logits := make([]float64, s.page)
	for j := range scores {
		if s.centre == nil {
			base = dot(s.mu[j*s.dim:(j+1)*s.dim], q)
		}
		for t := range logits {
			at := (j*s.page + t) * s.rank
			logits[t] = l.Of(base + dot(projected, s.c[at:at+s.rank]))
		}
		scores[j] = LSE(logits)
	}
}

// Bytes counts the shared tables once, spread over all pages.
func (s SharedBasis) Bytes() float64 { return s.bytes }

// RelativeError is |a - b| / |b|, the plain distance where b is zero.
func RelativeError(a, b []float64) float64 {
	var diff float64
	for i := range b {
		diff += (a[i] - b[i]) * (a[i] - b[i])
	}
	if norm := dot(b, b); norm > 0 {
		diff /= norm
	}
	return math.Sqrt(diff)
}
