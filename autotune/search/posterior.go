package search

import "math"

// posterior is what a process says of every point of a space, given observations that come one at a time: a row more costs a pass over the
// points for each row there is, and no factorisation anew.
type posterior struct {
	process  *gp
	features [][]float64
	observed []int       // points, by row
	rows     [][]float64 // of the Cholesky factor of the observed points' kernel matrix
	solved   [][]float64 // by row and point: that factor's inverse times the kernel of the observed points and the point
	left     []float64   // by point: the variance that the rows leave, its own noise included, as a share of the signal's
}

// reset forgets all rows: the process has changed.
func (p *posterior) reset() {
	p.observed, p.rows, p.solved = p.observed[:0], p.rows[:0], p.solved[:0]
	if p.left == nil {
		p.left = make([]float64, len(p.features))
	}
	for i := range p.left {
		p.left[i] = 1 + p.process.noise
	}
}

// observe makes the rows those of these points, keeping the ones in front that are alike.
func (p *posterior) observe(points []int) {
	same := 0
	for same < min(len(points), len(p.observed)) && points[same] == p.observed[same] {
		same++
	}
	for len(p.observed) > same {
		last := len(p.observed) - 1
		for i, v := range p.solved[last] {
			p.left[i] += v * v
		}
		p.observed, p.rows, p.solved = p.observed[:last], p.rows[:last], p.solved[:last]
	}
	for _, at := range points[same:] {
		p.extend(at)
	}
}

func (p *posterior) extend(at int) {
	row := make([]float64, len(p.rows)+1)
	for j, s := range p.solved {
		row[j] = s[at]
	}
	d := math.Sqrt(max(p.left[at], 1e-9))
	row[len(p.rows)] = d
	next := make([]float64, len(p.features))
	for i, f := range p.features {
		next[i] = p.process.kernel(f, p.features[at])
	}
	for j, s := range p.solved {
		r := row[j]
		for i, v := range s {
			next[i] -= r * v
		}
	}
	for i, v := range next {
		v /= d
		next[i] = v
		p.left[i] -= v * v
	}
	p.observed, p.rows, p.solved = append(p.observed, at), append(p.rows, row), append(p.solved, next)
}

// predict puts mean and standard deviation of every point's value into two slices: y are the centred values of the first rows, and the
// others count as if they came out as expected, which narrows their neighbourhood and moves no mean. A point's own noise is included: what
// the kernel of smooth functions does not explain is mostly no error of measurement but the point's own, and may be to its good.
func (p *posterior) predict(y, mean, sd []float64) {
	white := make([]float64, len(y))
	for j, v := range y {
		row := p.rows[j]
		for k, w := range white[:j] {
			v -= row[k] * w
		}
		white[j] = v / row[j]
	}
	clear(mean)
	for j, w := range white {
		for i, s := range p.solved[j] {
			mean[i] += w * s
		}
	}
	scale := scaleOf(white)
	for i, v := range p.left {
		sd[i] = math.Sqrt(max(v, 1e-12) * scale)
	}
}
