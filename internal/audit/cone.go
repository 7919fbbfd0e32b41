package audit

import "math"

// Cone is the answer to how narrow a cone unit vectors lie in: c* = max over unit u of min over j of <u, r_j>.
//
// By duality c* is the distance of the origin from the convex hull of the r_j, where that is positive; where the hull holds the
// origin, c* is at most 0 and no cone exists.
type Cone struct {
	Lower, Upper float64 // bounds of c*: Upper - Lower <= the tolerance, or Upper <= the tolerance and c* counts as not positive
	Steps        int
}

// Positive reports whether the cone condition holds: c* is surely above 0.
func (c Cone) Positive() bool { return c.Lower > 0 }

// coneTolerance is the gap between the bounds at which the solver stops.
const coneTolerance = 1e-4

// coneSteps bounds the work; Wolfe's method ends after a finite number of steps, in practice after a few times the dimension.
const coneSteps = 2000

// SolveCone finds the point of the convex hull of unit vectors [n, dim] that is nearest to the origin, by Wolfe's method ("Finding
// the Nearest Point in a Polytope", 1976): a corral of affinely independent vectors, the nearest point of their affine hull, and a
// walk towards it that drops vectors whose weight reaches 0. Both bounds are certificates: Upper is the length of a point x of the
// hull, Lower the least <x, r_j> / |x|.
func SolveCone(r []float64, dim int) Cone {
	n := len(r) / dim
	if n == 0 {
		return Cone{Lower: 1, Upper: 1}
	}
	s := coneSolver{r: r, dim: dim, corral: []int{0}, weight: []float64{1}, x: append([]float64(nil), r[:dim]...)}
	c := Cone{Lower: math.Inf(-1), Upper: 1}
	for c.Steps < coneSteps {
		c.Steps++
		length := math.Sqrt(dot(s.x, s.x))
		c.Upper = min(c.Upper, length)
		if length < coneTolerance {
			c.Lower = min(c.Lower, 0)
			return c
		}
		best, at := math.Inf(1), 0
		for j := range n {
			if d := dot(s.x, s.vector(j)); d < best {
				best, at = d, j
			}
		}
		c.Lower = max(c.Lower, best/length)
		if c.Upper-c.Lower <= coneTolerance || !s.add(at) {
			break
		}
	}
	return c
}

type coneSolver struct {
	r      []float64
	dim    int
	corral []int
	weight []float64 // of the corral, positive, sum 1
	x      []float64 // the weighted sum
}

func (s *coneSolver) vector(j int) []float64 { return s.r[j*s.dim : (j+1)*s.dim] }

// add puts a vector into the corral and moves to the nearest point of the corral's hull. It reports false where rounding leaves no
// step to take.
func (s *coneSolver) add(j int) bool {
	for _, k := range s.corral {
		if k == j {
			return false
		}
	}
	s.corral, s.weight = append(s.corral, j), append(s.weight, 0)
	before := dot(s.x, s.x)
	for {
		target := s.affine()
		if target == nil {
			return false
		}
		step := 1.0
		for i, w := range target {
			if w < 1e-12 {
				step = min(step, s.weight[i]/max(s.weight[i]-w, 1e-300))
			}
		}
		kept := 0
		for i := range s.weight {
			w := s.weight[i] + step*(target[i]-s.weight[i])
			if w > 1e-12 {
				s.corral[kept], s.weight[kept] = s.corral[i], w
				kept++
			}
		}
		s.corral, s.weight = s.corral[:kept], s.weight[:kept]
		if step == 1 || kept <= 1 {
			break
		}
	}
	s.sum()
	return dot(s.x, s.x) < before
}

// sum normalises the weights and recomputes x.
func (s *coneSolver) sum() {
	var total float64
	for _, w := range s.weight {
		total += w
	}
	clear(s.x)
	for i, j := range s.corral {
		s.weight[i] /= total
		for d, v := range s.vector(j) {
			s.x[d] += s.weight[i] * v
		}
	}
}

// affine is the weights of the point of the corral's affine hull that is nearest to the origin: y / sum y with (G + 1 1^T) y = 1, G
// the Gram matrix. nil where G is singular to rounding.
func (s *coneSolver) affine() []float64 {
	m := len(s.corral)
	a := make([]float64, m*m)
	y := make([]float64, m)
	for i := range m {
		y[i] = 1
		for j := range i + 1 {
			a[i*m+j] = dot(s.vector(s.corral[i]), s.vector(s.corral[j])) + 1
		}
	}
	if !cholesky(a, y, m) {
		return nil
	}
	var total float64
	for _, v := range y {
		total += v
	}
	for i := range y {
		y[i] /= total
	}
	return y
}

// cholesky solves a y = b in place for a symmetric positive definite a, given by its lower triangle.
func cholesky(a, b []float64, m int) bool {
	for i := range m {
		for j := range i + 1 {
			sum := a[i*m+j]
			for k := range j {
				sum -= a[i*m+k] * a[j*m+k]
			}
			if i != j {
				a[i*m+j] = sum / a[j*m+j]
				continue
			}
			if sum < 1e-13 {
				return false
			}
			a[i*m+i] = math.Sqrt(sum)
		}
	}
	for i := range m {
		for k := range i {
			b[i] -= a[i*m+k] * b[k]
		}
		b[i] /= a[i*m+i]
	}
	for i := m - 1; i >= 0; i-- {
		for k := i + 1; k < m; k++ {
			b[i] -= a[k*m+i] * b[k]
		}
		b[i] /= a[i*m+i]
	}
	return true
}

func dot(a, b []float64) float64 {
	var sum float64
	b = b[:len(a)]
	for i, x := range a {
		sum += x * b[i]
	}
	return sum
}
