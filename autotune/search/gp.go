package search

import "math"

// gp is Gaussian-process regression with a Matern 5/2 kernel, one length for each dimension. Inputs lie in [0, 1].
type gp struct {
	lengths []float64
	noise   float64 // variance, as a share of the signal's

	// Of the last fit.
	chol  []float64
	n     int
	scale float64 // variance of the signal
}

// fit factors the kernel matrix of centred observations; false where it is not positive definite to working precision.
func (g *gp) fit(x [][]float64, y []float64) bool {
	n := len(x)
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
	g.chol, g.n = k, n
	white := append([]float64{}, y...)
	forward(k, n, white)
	g.scale = scaleOf(white)
	return true
}

// scaleOf is the variance of the signal at its likeliest, from whitened observations.
func scaleOf(white []float64) float64 {
	quad := 0.0
	for _, v := range white {
		quad += v * v
	}
	return max(quad/float64(max(len(white), 1)), 1e-10)
}

// evidence is the log marginal likelihood with the signal's variance at its best, up to a constant.
func (g *gp) evidence() float64 {
	e := -0.5 * float64(g.n) * math.Log(g.scale)
	for i := range g.n {
		e -= math.Log(g.chol[i*g.n+i])
	}
	return e
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
