package reference

import (
	"fmt"
	"math"
)

// SmallestWeight is where an attention weight stops to count: below it, it is 0 in kernels and here. Its square times a squared
// distance still is a normal f32.
const SmallestWeight = 0x1p-60

// DropScoring is what a score depends on besides the tokens.
type DropScoring struct {
	Rule   DropRule
	Logits Logits
	Group  int
	Eps    float64 // of p/(1-p+eps)
	// OutputEpsilon is half the spacing of the type that holds attention outputs, relative: 2^-24 for f32, 2^-8 for bf16. Where p
	// > 1/2, a distance below OutputEpsilon ||a|| counts as that: a then is v_j up to its rounding, and the token that holds all of
	// the attention would score 0 and be dropped first.
	OutputEpsilon float64
	// DotNoise is the error of a dot product in f32, relative to the sum of its products' sizes: 2^-21 for long sums, 0 where one
	// product alone is not 0, which f32 holds exactly.
	DotNoise float64
}

// DropScores are one KV head's.
type DropScores struct {
	Score []float64 // [tokens]; NaN for a missing token
	// Noise bounds what f32 arithmetic may add to or take from each score: [tokens].
	Noise []float64
}

// Scores scores every token of a head, those of the window included. rows are [group, window] for rules with queries; anchor is
// KeyDiff's. A query sees no token behind it: such pairs count nothing.
func (s DropScoring) Scores(t DropTokens, rows []DropRow, anchor []float64) DropScores {
	out := DropScores{Score: make([]float64, t.N), Noise: make([]float64, t.N)}
	parallel(t.N, func(j int) {
		switch {
		case t.Missing[j]:
			out.Score[j] = math.NaN()
		case s.Rule == Streaming:
			out.Score[j] = float64(j)
		case s.Rule == KeyDiff:
			out.Score[j], out.Noise[j] = minusCosine(t.Key(j), anchor), 0x1p-19
		default:
			for _, row := range rows {
				if j > row.Limit {
					continue
				}
				term, noise := s.term(t, j, row)
				out.Score[j] += term
				out.Noise[j] += noise
			}
			out.Score[j] /= float64(s.Group)
			out.Noise[j] /= float64(s.Group)
		}
	})
	return out
}

// minusCosine of a key and the anchor; 0 where either is zero.
func minusCosine(key, anchor []float64) float64 {
	k, a := dot(key, key), dot(anchor, anchor)
	if k < smallestNorm || a < smallestNorm {
		return 0
	}
	return -dot(key, anchor) / (math.Sqrt(k) * math.Sqrt(a))
}

// term is what one query adds to one token's score, and its noise.
func (s DropScoring) term(t DropTokens, j int, row DropRow) (value, noise float64) {
	key, v := t.Key(j), t.Value(j)
	x := s.Logits.Of(dot(row.Q, key)) - row.LSE
	p, rest := weight(x)
	// The logit's f32 error: accumulation of the products, then the difference.
	xNoise := s.DotNoise*absDot(row.Q, key)*s.Logits.Scale + 0x1p-22*math.Abs(x) + 0x1p-21*s.Logits.Softcap
	edge := math.Abs(x-math.Log(SmallestWeight)) < 1e-3+2*xNoise
	if p < SmallestWeight && !edge {
		return 0, 0
	}
	switch s.Rule {
	case SnapKV:
		value, noise = p, p*(xNoise+0x1p-20)
	case ValueNorm:
		var norm float64
		for _, e := range v {
			norm += math.Abs(e)
		}
		value, noise = p*norm, p*norm*(xNoise+0x1p-19)
	case DropKV:
		c := p / (rest + s.Eps)
		distance, dNoise := s.distance(p, row.Out, v)
		value = c * c * distance
		noise = value*(2*xNoise*(1+c)+0x1p-18) + c*c*dNoise
		if slack := xNoise / (rest + s.Eps); slack > 0.1 {
			noise = max(noise, 1/(s.Eps*s.Eps)*distance) // the weight's complement is lost in the noise of its logit
		}
	default:
		panic(fmt.Sprintf("BUG: reference: drop rule %q", s.Rule))
	}
	if edge {
		noise += value
	}
	if p < SmallestWeight {
		value = 0
	}
	return value, noise
}

// weight is p = e^x and 1 - p, by -expm1 where p > 1/2: there 1 - e^x would lose what p lacks of 1. A logit above its own LSE is
// rounding of the LSE.
func weight(x float64) (p, rest float64) {
	x = min(x, 0)
	p = math.Exp(x)
	if p > 0.5 {
		return p, -math.Expm1(x)
	}
	return p, 1 - p
}

// distance is ||a - v||^2, summed directly; and the noise of the form that a kernel takes: the expanded one up to p = 1/2, the
// direct one above.
func (s DropScoring) distance(p float64, a, v []float64) (distance, noise float64) {
	var norms float64
	for i := range a {
		d := a[i] - v[i]
		distance += d * d
		norms += a[i]*a[i] + v[i]*v[i]
	}
	noise = 0x1p-19 * norms
	if p > 0.5 {
		distance = max(distance, s.OutputEpsilon*s.OutputEpsilon*dot(a, a))
		if p > 0.501 {
			noise = 0x1p-20 * distance
		}
	}
	return distance, noise
}

func absDot(a, b []float64) float64 {
	var sum float64
	for i, x := range a {
		sum += math.Abs(x * b[i])
	}
	return sum
}
