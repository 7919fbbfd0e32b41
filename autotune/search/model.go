package search

import (
	"math"
	"slices"
)

// Model measures the first points and a few at random. Then it takes in turn the point that is expected to improve most on the best, by
// a Gaussian process over the parameters that learns what the prior guess gets wrong, and the most promising neighbour of the best: a
// smooth model does not see what the compiler does to single points.
type Model struct{}

// Name is how a command line spells it.
func (Model) Name() string { return "model" }

// randomShare and randomMost say how many points are measured at random before the process is asked.
const (
	randomShare = 0.01
	randomMost  = 8
)

// Start begins a run.
func (Model) Start(s *Space, seed uint64) Run {
	m := &modelled{seen: newSeen(s), features: s.features(), near: s.neighbours(), shuffled: s.shuffled(seed)}
	m.random = min(max(int(randomShare*float64(len(s.Points))), 3), randomMost)
	m.process.noise = 1e-3
	if len(m.features) > 0 {
		m.process.lengths = slices.Repeat([]float64{1}, len(m.features[0]))
	}
	m.posterior = posterior{process: &m.process, features: m.features}
	m.posterior.reset()
	return m
}

type modelled struct {
	seen
	features [][]float64
	shuffled []int
	near     [][]int
	turn     int
	random   int // points taken at random after the first
	pending  []int
	process  gp
	fitted   int // results when the lengths were last tuned
	stale    bool

	posterior posterior

	mean, sd []float64 // by point: log time
	offset   float64   // of the mean function: offset + slope * prior
	slope    float64
}

// Next is a first point, a random one, or the one of the greatest expected improvement; ties go to the lower index.
func (m *modelled) Next() (int, bool) {
	if i, ok := m.first(m.space.Start); ok {
		return m.hold(i)
	}
	if len(m.results)+len(m.pending) < len(m.space.Start)+m.random || m.best == 0 {
		if i, ok := m.first(m.shuffled); ok {
			return m.hold(i)
		}
		return 0, false
	}
	m.update()
	at := -1
	if m.turn++; m.turn%2 == 0 {
		at = m.nearby()
	}
	if at < 0 {
		at = m.likeliest()
	}
	if at < 0 {
		return 0, false
	}
	m.ask(at)
	return m.hold(at)
}

// likeliest is the point of the greatest expected improvement.
func (m *modelled) likeliest() int {
	at, top := -1, -1.0
	for i := range m.space.Points {
		if m.asked[i] {
			continue
		}
		if e := improvement(math.Log(m.best)-m.mean[i], m.sd[i]); e > top {
			at, top = i, e
		}
	}
	return at
}

// nearby is the neighbour of the best point measured that is predicted fastest; -1 when all of them were asked for.
func (m *modelled) nearby() int {
	at := -1
	for _, r := range m.results {
		if !r.OK || r.US != m.best {
			continue
		}
		for _, i := range m.near[r.Point] {
			if !m.asked[i] && (at < 0 || m.mean[i] < m.mean[at]) {
				at = i
			}
		}
	}
	return at
}

func (m *modelled) hold(i int) (int, bool) {
	m.pending = append(m.pending, i)
	m.stale = true
	return i, true
}

// Tell learns.
func (m *modelled) Tell(r Result) {
	m.seen.Tell(r)
	m.pending = slices.DeleteFunc(m.pending, func(i int) bool { return i == r.Point })
	m.stale = true
}

// Gain is the greatest expected improvement; log time is share enough.
func (m *modelled) Gain() float64 {
	if m.best == 0 || m.left == 0 {
		return m.seen.Gain()
	}
	m.update()
	top := 0.0
	for i := range m.space.Points {
		if !m.asked[i] {
			top = max(top, improvement(math.Log(m.best)-m.mean[i], m.sd[i]))
		}
	}
	return top
}

// Promise adds up the chances of all points that are left.
func (m *modelled) Promise(share float64) float64 {
	if m.best == 0 || m.left == 0 {
		return float64(m.left)
	}
	m.update()
	bar, sum := math.Log(m.best)+math.Log1p(-share), 0.0
	for i := range m.space.Points {
		if !m.asked[i] {
			sum += normal((bar - m.mean[i]) / m.sd[i])
		}
	}
	return sum
}

// update predicts every point from all results, and as if those that are still out came as expected: the next ones are looked for elsewhere.
func (m *modelled) update() {
	if !m.stale && m.mean != nil {
		return
	}
	m.stale = false
	x, y := m.observations()
	if m.mean == nil {
		m.mean, m.sd = make([]float64, len(m.features)), make([]float64, len(m.features))
	}
	if len(m.results) >= m.fitted+max(4, m.fitted/8) { // the more there are, the less a few more change the lengths
		m.process.tune(x, y, 2)
		m.fitted = len(m.results)
		m.posterior.reset()
	}
	var points []int
	for _, r := range m.results {
		points = append(points, r.Point)
	}
	m.posterior.observe(append(points, m.pending...))
	m.posterior.predict(y, m.mean, m.sd)
	for i := range m.mean {
		m.mean[i] += m.prior(i)
	}
}

// observations returns features and what the mean function leaves of the log times. A failure counts as somewhat slower than the
// slowest, so that its neighbourhood is not tried first, and not given up either.
func (m *modelled) observations() (x [][]float64, y []float64) {
	slowest := math.Inf(-1)
	for _, r := range m.results {
		if r.OK {
			slowest = max(slowest, math.Log(r.US))
		}
	}
	ceiling := math.Log(m.best) + math.Log(4) // beyond it slow is slow: outliers would bend the process
	var raw []float64
	for _, r := range m.results {
		v := slowest + 0.2
		if r.OK {
			v = math.Log(r.US)
		}
		x = append(x, m.features[r.Point])
		raw = append(raw, min(v, ceiling))
	}
	m.regress(raw)
	for i, r := range m.results {
		y = append(y, raw[i]-m.prior(r.Point))
	}
	return x, y
}

// regress fits offset and slope of the mean function. The slope is held between 0 (the guess is of no use) and 1.5, and drawn towards 1/2
// while there are few results.
func (m *modelled) regress(y []float64) {
	n, sy, sp := float64(len(y)), 0.0, 0.0
	for i, r := range m.results {
		sy += y[i]
		sp += m.guess(r.Point)
	}
	spp, spy := 0.0, 0.0
	for i, r := range m.results {
		dp := m.guess(r.Point) - sp/n
		spp += dp * dp
		spy += dp * (y[i] - sy/n)
	}
	const weight = 0.1
	m.slope = min(max((spy+0.5*weight)/(spp+weight), 0), 1.5)
	m.offset = (sy - m.slope*sp) / n
}

func (m *modelled) guess(i int) float64 {
	if m.space.Prior == nil {
		return 0
	}
	return m.space.Prior[i]
}

func (m *modelled) prior(i int) float64 { return m.offset + m.slope*m.guess(i) }

// improvement is the expected part below zero of a normal variable with mean -gap.
func improvement(gap, sd float64) float64 {
	z := gap / sd
	return gap*normal(z) + sd*math.Exp(-z*z/2)/math.Sqrt(2*math.Pi)
}

func normal(z float64) float64 { return 0.5 * math.Erfc(-z/math.Sqrt2) }

// features places the points in a unit cube: for each parameter name the rank of the value among its values, one more dimension for
// points that do not have it, and one for each kind but the first.
func (s *Space) features() [][]float64 {
	values := map[string][]int{}
	var names, kinds []string
	for _, p := range s.Points {
		if !slices.Contains(kinds, p.Kind) {
			kinds = append(kinds, p.Kind)
		}
		for _, q := range p.Params {
			if values[q.Name] == nil {
				names = append(names, q.Name)
			}
			if !slices.Contains(values[q.Name], q.Value) {
				values[q.Name] = append(values[q.Name], q.Value)
			}
		}
	}
	for _, v := range values {
		slices.Sort(v)
	}
	features := make([][]float64, len(s.Points))
	for i, p := range s.Points {
		for _, name := range names {
			at := slices.IndexFunc(p.Params, func(q Param) bool { return q.Name == name })
			switch v := values[name]; {
			case at < 0:
				features[i] = append(features[i], 0.5)
			case len(v) == 1:
				features[i] = append(features[i], 0)
			default:
				features[i] = append(features[i], float64(slices.Index(v, p.Params[at].Value))/float64(len(v)-1))
			}
		}
		for _, k := range kinds[min(1, len(kinds)):] {
			features[i] = append(features[i], indicator(p.Kind == k))
		}
	}
	return features
}

func indicator(yes bool) float64 {
	if yes {
		return 1
	}
	return 0
}
