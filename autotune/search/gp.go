package search

import "math"

// gp is Gaussian-process regression with a Matern 5/2 kernel, one length for each dimension. Inputs lie in [0, 1].
type gp struct {
	x       [][]float64
	y       []float64 // centred
	lengths []float64
	noise   float64 // variance, as a share of the signal's
	chol    []float64
	alpha   []float64
	scale   float64 // variance of the signal
}

// fit prepares the process for these observations; false where the kernel matrix is not positive definite to working precision.
func (g *gp) fit(x [][]float64, y []float64) bool {
	n := len(x)
	g.x, g.y = x, y
	k := make([]float64, n*n)
	for i := range n {
		for j := range i {
			k[i*n+j] = g.kernel(x[i], x[j])
		}
		k[i*n+i] = 1 + g.noise
	}
	if !cholesky(k, n) {
		return false
	}
	g.chol = k
	g.alpha = append(g.alpha[:0], y...)
	forward(k, n, g.alpha)
	quad := 0.0
	for _, v := range g.alpha {
		quad += v * v
	}
	g.scale = max(quad/float64(n), 1e-10)
	backward(k, n, g.alpha)
	return true
}

// evidence is the log marginal likelihood with the signal's variance at its best, up to a constant.
func (g *gp) evidence() float64 {
	n := len(g.x)
	e := -0.5 * float64(n) * math.Log(g.scale)
	for i := range n {
		e -= math.Log(g.chol[i*n+i])
	}
	return e
}

// predict returns mean and standard deviation of the value at x, its own noise included: what the kernel of smooth functions does not
// explain is mostly no error of measurement but the point's own, and may be to its good. work has len(g.x) places.
func (g *gp) predict(x, work []float64) (mean, sd float64) {
	n := len(g.x)
	for i := range n {
		work[i] = g.kernel(x, g.x[i])
		mean += work[i] * g.alpha[i]
	}
	forward(g.chol, n, work)
	v := 1 + g.noise
	for _, w := range work[:n] {
		v -= w * w
	}
	return mean, math.Sqrt(max(v, 1e-12) * g.scale)
}

func (g *gp) kernel(a, b []float64) float64 {
	s := 0.0
	for d, l := range g.lengths {
		t := (a[d] - b[d]) / l
		s += t * t
	}
	r := math.Sqrt(5 * s)
	return (1 + r + r*r/3) * math.Exp(-r)
}

// tune moves each length, and the noise, by a factor of two as long as the evidence grows, in a fixed order.
func (g *gp) tune(x [][]float64, y []float64, rounds int) {
	if !g.fit(x, y) {
		return
	}
	best := g.evidence()
	try := func(v *float64, lo, hi float64) {
		for _, f := range []float64{0.5, 2} {
			old := *v
			*v = min(max(old*f, lo), hi)
			if *v != old && g.fit(x, y) && g.evidence() > best+1e-9 {
				best = g.evidence()
				return
			}
			*v = old
		}
	}
	for range rounds {
		for d := range g.lengths {
			try(&g.lengths[d], 0.125, 16)
		}
		try(&g.noise, 1e-4, 0.25)
	}
	g.fit(x, y)
}

// cholesky factors the lower triangle of a symmetric matrix in place.
func cholesky(a []float64, n int) bool {
	for i := range n {
		row := a[i*n : i*n+i+1]
		for j := 0; j <= i; j++ {
			s := row[j]
			other := a[j*n : j*n+j]
			for k, v := range other {
				s -= row[k] * v
			}
			if i == j {
				if s <= 1e-12 {
					return false
				}
				row[j] = math.Sqrt(s)
			} else {
				row[j] = s / a[j*n+j]
			}
		}
	}
	return true
}

// forward solves L v = b in place.
func forward(l []float64, n int, b []float64) {
	for i := range n {
		s := b[i]
		for k, v := range l[i*n : i*n+i] {
			s -= v * b[k]
		}
		b[i] = s / l[i*n+i]
	}
}

// backward solves L^T v = b in place.
func backward(l []float64, n int, b []float64) {
	for i := n - 1; i >= 0; i-- {
		s := b[i]
		for k := i + 1; k < n; k++ {
			s -= l[k*n+i] * b[k]
		}
		b[i] = s / l[i*n+i]
	}
}
