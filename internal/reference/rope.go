package reference

import "math"

// Rope is a rotary embedding in Hugging Face's layout: it turns the pairs (i, i + dim/2) by position * theta^(-2i/dim).
type Rope struct {
	Theta float64
}

// Turn rotates x [dim] by a position in place; a negative position turns back.
func (r Rope) Turn(x []float64, position float64) {
	half := len(x) / 2
	for i := range half {
		sin, cos := math.Sincos(position * math.Pow(r.Theta, -float64(i)/float64(half)))
		a, b := x[i], x[i+half]
		x[i], x[i+half] = a*cos-b*sin, a*sin+b*cos
	}
}

// PreRope is PageLocal fitted to keys before their rotation, the control of the Locks paper's Table C.17: the query is turned back
// by each token's position instead.
type PreRope struct {
	pages     []Dequantised
	turn      []float64 // [page, token, dim/2, 2] cosine and sine
	dim, page int
	bytes     float64
}

// NewPreRope takes post-RoPE keys [page, token, dim] whose first has position 0.
func NewPreRope(keys []float64, dim, page int, f Form, rope Rope) PreRope {
	s := PreRope{dim: dim, page: page, bytes: f.Bytes(dim, page)}
	turned := append([]float64{}, keys...)
	for t := range len(keys) / dim {
		rope.Turn(turned[t*dim:(t+1)*dim], -float64(t))
		for i := range dim / 2 {
			sin, cos := math.Sincos(float64(t) * math.Pow(rope.Theta, -float64(i)/float64(dim/2)))
			s.turn = append(s.turn, cos, sin)
		}
	}
	for at := 0; at < len(keys); at += page * dim {
		one := Summarise(turned[at:at+page*dim], Shape{HeadDim: dim, PageSize: page, Rank: f.Rank, BasisBits: f.BasisBits})
		s.pages = append(s.pages, one.Stored(f, nil))
	}
	return s
}

// Score is equation 2 with the query turned back for every token.
func (s PreRope) Score(scores, q []float64, l Logits) {
	half := s.dim / 2
	back, logits := make([]float64, s.dim), make([]float64, s.page)
	for j := range scores {
		p := s.pages[j]
		for t := range logits {
			turn := s.turn[(j*s.page+t)*s.dim:]
			for i := range half {
				cos, sin := turn[2*i], turn[2*i+1]
				back[i], back[i+half] = q[i]*cos+q[i+half]*sin, q[i+half]*cos-q[i]*sin
			}
			x := dot(back, p.Mu)
			for r := range p.Rank {
				x += p.C[t*p.Rank+r] * dot(back, p.V[r*s.dim:(r+1)*s.dim])
			}
			logits[t] = l.Of(x)
		}
		scores[j] = LSE(logits)
	}
}

// Bytes is the payload of one record; nothing about positions is stored.
func (s PreRope) Bytes() float64 { return s.bytes }
