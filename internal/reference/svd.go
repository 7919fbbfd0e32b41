package reference

import (
	"math"
	"slices"
	"sort"
)

// eigen returns the eigenvalues of the symmetric n x n matrix a, descending, and the eigenvectors as the rows of u. a is overwritten.
//
// Cyclic Jacobi: slow and simple, and accurate for the small eigenvalues too, which is what a reference is for.
func eigen(a []float64, n int) (values []float64, u []float64) {
	u = make([]float64, n*n)
	for i := range n {
		u[i*n+i] = 1
	}
	var trace float64
	for i := range n {
		trace += math.Abs(a[i*n+i])
	}
	for range 60 {
		if !sweep(a, u, n, 1e-18*trace) {
			break
		}
	}
	order := make([]int, n)
	for i := range order {
		order[i] = i
	}
	sort.SliceStable(order, func(i, j int) bool { return a[order[i]*n+order[i]] > a[order[j]*n+order[j]] })
	values = make([]float64, n)
	rows := make([]float64, n*n)
	for i, o := range order {
		values[i] = a[o*n+o]
		copy(rows[i*n:(i+1)*n], u[o*n:(o+1)*n])
	}
	return values, rows
}

// sweep rotates every pair once and reports whether any rotation was needed. Rows of u are the eigenvectors. Elements up to noise
// are what the rounding of the Gram matrix itself leaves.
func sweep(a, u []float64, n int, noise float64) bool {
	rotated := false
	for p := range n {
		for q := p + 1; q < n; q++ {
			apq, app, aqq := a[p*n+q], a[p*n+p], a[q*n+q]
			if math.Abs(apq) <= max(noise, 1e-16*math.Sqrt(math.Abs(app*aqq))) {
				continue
			}
			rotated = true
			theta := (aqq - app) / (2 * apq)
			t := math.Copysign(1, theta) / (math.Abs(theta) + math.Hypot(theta, 1))
			c := 1 / math.Hypot(t, 1)
			s := t * c
			rotateRows(a[p*n:(p+1)*n], a[q*n:(q+1)*n], c, s)
			for i := range n {
				a[i*n+p], a[i*n+q] = a[p*n+i], a[q*n+i]
			}
			a[p*n+p], a[q*n+q] = app-t*apq, aqq+t*apq
			a[p*n+q], a[q*n+p] = 0, 0
			rotateRows(u[p*n:(p+1)*n], u[q*n:(q+1)*n], c, s)
		}
	}
	return rotated
}

func rotateRows(p, q []float64, c, s float64) {
	for i, x := range p {
		y := q[i]
		p[i], q[i] = c*x-s*y, s*x+c*y
	}
}

// topSingular returns the top rank right singular vectors of d [rows, cols] as rows of v [rank, cols] and the singular values.
// Directions that carry nothing but rounding are zero rows: a page of rank 2 has two singular vectors, not four.
func topSingular(d []float64, rows, cols, rank int) (v, sigma []float64) {
	if rows < 32 {
		return computeTopSingular(d, rows, cols, rank)
	}
	key := singularKey(d, rows, cols, rank)
	if hit, ok := singular.get(key); ok {
		return slices.Clone(hit.v), slices.Clone(hit.sigma)
	}
	v, sigma = computeTopSingular(d, rows, cols, rank)
	singular.put(key, singularVectors{slices.Clone(v), slices.Clone(sigma)})
	return v, sigma
}

func computeTopSingular(d []float64, rows, cols, rank int) (v, sigma []float64) {
	v, sigma = make([]float64, rank*cols), make([]float64, rank)
	gram := make([]float64, rows*rows)
	for i := range rows {
		for j := range i + 1 {
			g := dot(d[i*cols:(i+1)*cols], d[j*cols:(j+1)*cols])
			gram[i*rows+j], gram[j*rows+i] = g, g
		}
	}
	values, u := eigen(gram, rows)
	for r := range min(rank, rows) {
		if values[r] <= 1e-13*values[0] || values[r] <= 0 {
			break
		}
		row := v[r*cols : (r+1)*cols]
		for i := range rows {
			axpy(row, u[r*rows+i], d[i*cols:(i+1)*cols])
		}
		normalise(row)
		sigma[r] = math.Sqrt(values[r])
	}
	return v, sigma
}

// normalise gives row length 1 and its largest element a positive sign, so that a basis does not depend on rotation order.
func normalise(row []float64) {
	norm := math.Sqrt(dot(row, row))
	largest := 0.0
	for _, x := range row {
		if math.Abs(x) > math.Abs(largest) {
			largest = x
		}
	}
	if largest < 0 {
		norm = -norm
	}
	for i := range row {
		row[i] /= norm
	}
}

func dot(a, b []float64) float64 {
	var sum float64
	b = b[:len(a)]
	for i, x := range a {
		sum += x * b[i]
	}
	return sum
}

// axpy adds s*x to y.
func axpy(y []float64, s float64, x []float64) {
	x = x[:len(y)]
	for i := range y {
		y[i] += s * x[i]
	}
}
