package audit

import (
	"math"
	"sort"
)

// Query is the audit of one (layer, query head, query position).
type Query struct {
	Head     int       `json:"head"`     // query head
	Position int       `json:"position"` // of the query; it sees the tokens up to itself
	Evicted  int       `json:"evicted"`  // k
	Eps      float64   `json:"eps"`      // largest attention weight of an evicted token
	Lower    float64   `json:"c_lower"`  // bounds of c*
	Upper    float64   `json:"c_upper"`
	Factor   float64   `json:"factor"`            // 1 / (c (1-eps) (1-k eps)); 0: not finite
	Ratios   []float64 `json:"ratios,omitempty"`  // F of the greedy choice over F of the best one, subsets of this query
	Skipped  int       `json:"skipped,omitempty"` // evicted tokens whose value is the output itself: they have no direction
}

// Cone reports whether the cone condition holds.
func (q Query) Cone() bool { return q.Lower > 0 }

// attention of one query: weights p [n], output a [dim], and the residuals a - v_j with their lengths.
type attention struct {
	n, dim int
	p      []float64
	rest   []float64 // [n, dim]
	length []float64 // [n]
	score  []float64 // p/(1-p) ||a - v||
}

// attend computes attention of a query over tokens [0, n) of a KV head, keys and values [.., dim].
func attend(q, keys, values []float64, n, dim int, scale float64) attention {
	a := attention{n: n, dim: dim, p: make([]float64, n), rest: make([]float64, n*dim), length: make([]float64, n), score: make([]float64, n)}
	top, sum := math.Inf(-1), 0.0
	for j := range n {
		a.p[j] = scale * dot(q, keys[j*dim:(j+1)*dim])
		top = max(top, a.p[j])
	}
	for j := range n {
		a.p[j] = math.Exp(a.p[j] - top)
		sum += a.p[j]
	}
	out := make([]float64, dim)
	for j := range n {
		a.p[j] /= sum
		for d, v := range values[j*dim : (j+1)*dim] {
			out[d] += a.p[j] * v
		}
	}
	for j := range n {
		r := a.rest[j*dim : (j+1)*dim]
		for d, v := range values[j*dim : (j+1)*dim] {
			r[d] = out[d] - v
		}
		a.length[j] = math.Sqrt(dot(r, r))
		a.score[j] = a.p[j] / (1 - a.p[j]) * a.length[j]
		if a.p[j] == 1 {
			a.score[j] = math.Inf(1) // it holds all of the attention, whatever rounding says of 0/0
		}
	}
	return a
}

// evict lists the k tokens with the smallest scores, ties to the higher index, so that what is kept prefers the lower.
func (a attention) evict(k int) []int {
	order := make([]int, a.n)
	for j := range order {
		order[j] = j
	}
	sort.SliceStable(order, func(x, y int) bool {
		i, j := order[x], order[y]
		if a.score[i] != a.score[j] {
			return a.score[i] < a.score[j]
		}
		return i > j
	})
	return order[:k]
}

// moved is how far the output moves when the tokens of a set are dropped together: ||sum p (a - v)|| / (1 - sum p).
func (a attention) moved(set []int) float64 {
	sum := make([]float64, a.dim)
	mass := 0.0
	for _, j := range set {
		mass += a.p[j]
		for d, x := range a.rest[j*a.dim : (j+1)*a.dim] {
			sum[d] += a.p[j] * x
		}
	}
	return math.Sqrt(dot(sum, sum)) / (1 - mass)
}

// examine audits one query with k tokens evicted.
func (a attention) examine(k int) Query {
	q := Query{Evicted: k}
	units := make([]float64, 0, k*a.dim)
	for _, j := range a.evict(k) {
		q.Eps = max(q.Eps, a.p[j])
		if a.length[j] == 0 {
			q.Skipped++
			continue
		}
		for _, x := range a.rest[j*a.dim : (j+1)*a.dim] {
			units = append(units, x/a.length[j])
		}
	}
	c := SolveCone(units, a.dim)
	q.Lower, q.Upper = c.Lower, c.Upper
	if mass := float64(k) * q.Eps; c.Positive() && mass < 1 {
		q.Factor = 1 / (c.Lower * (1 - q.Eps) * (1 - mass))
	}
	return q
}

// ratio enumerates every way to evict half of the candidates and returns F of the decoupled choice over F of the best: at least 1.
func (a attention) ratio(candidates []int) float64 {
	order := append([]int(nil), candidates...)
	sort.Slice(order, func(x, y int) bool { return a.score[order[x]] < a.score[order[y]] })
	k := len(order) / 2
	greedy := a.moved(order[:k])
	best := greedy
	set := make([]int, 0, k)
	var choose func(from int)
	choose = func(from int) {
		if len(set) == k {
			best = min(best, a.moved(set))
			return
		}
		for i := from; i <= len(order)-(k-len(set)); i++ {
			set = append(set, order[i])
			choose(i + 1)
			set = set[:len(set)-1]
		}
	}
	choose(0)
	if best == 0 {
		return 1
	}
	return greedy / best
}
