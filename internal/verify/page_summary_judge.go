package verify

import (
	"bytes"
	"cmp"
	"fmt"
	"math"
	"slices"

	"github.com/kvloom/kvloom/internal/reference"
	"github.com/kvloom/kvloom/specs"
)

const (
	spanMetric  = "basis energy, share lost"
	meanMetric  = "basis energy, mean share lost"
	keptMetric  = "summary energy, mean share lost"
	muMetric    = "centroid, steps"
	coeffMetric = "coefficients, of the allowed error"
)

const (
	energyBound = 0.01
	// A float32 centroid next to a rounding tie may take the other code.
	muBound = 0.5 + 1e-3
	// Directions below this share of the first one's energy may be zero columns, and must be where the exact page has none.
	deficient, absent = 2e-5, 1e-12
	// svdWork bounds the exact SVDs of one launch, in rotations of page^3: of longer lists a regular sample is judged by energy.
	svdWork = 400 * 16 * 16 * 16
)

// summaryJudge compares records with what the contract allows: a basis is free in sign, and within equal singular values in
// direction, so its energy is judged and not its codes.
type summaryJudge struct {
	p     *Problem
	place map[int32][2]int // request and page, or group, of a block with a record
	// weights of each KV head; nil: the plain SVD
	weights []reference.Weights

	span  *Tally // the basis, as the best coefficients would use it
	mean  *Tally // the same, mean over the case's pages
	kept  *Tally // the summary as it stands, C and V, mean over the case's pages; not at 2 bits, where that may be negative
	mu    *Tally
	coeff *Tally

	ratios, pages         float64 // of mean
	keptRatios, keptPages float64 // of kept
}

func newSummaryJudge(p *Problem) *summaryJudge {
	n := p.Case.Name
	return &summaryJudge{p: p, place: map[int32][2]int{}, span: NewTally(n, spanMetric, energyBound), mean: NewTally(n, meanMetric, meanBound(p)), kept: NewTally(n, keptMetric, energyBound),
		mu: NewTally(n, muMetric, muBound), coeff: NewTally(n, coeffMetric, 1)}
}

// meanBound is energyBound but where all singular values are alike and codes have 2 bits: the reference's own basis then is made of equal
// numbers, which 2 bits hold without loss. Other exact bases of the same pages, the reference's rotated at random in float64, lose up to
// 0.0235 of a page beside it (head dim 112, page 8, rank 7), and a kernel may find any of them.
func meanBound(p *Problem) float64 {
	if p.Case.Name == equalSpan && p.Shape.BasisBits == 2 {
		return 0.025
	}
	return energyBound
}

func (j *summaryJudge) results() []Result {
	if j.pages > 0 {
		j.mean.Add(max(1-j.ratios/j.pages, 0), meanBound(j.p), func() string { return "mean over pages of energy kept, relative to the exact SVD's" })
	}
	if j.keptPages > 0 {
		j.kept.Add(max(1-j.keptRatios/j.keptPages, 0), energyBound, func() string { return "mean over pages of energy kept, relative to the exact SVD's" })
	}
	out := []Result{j.span.Result()}
	for _, t := range []*Tally{j.mean, j.kept, j.mu, j.coeff} {
		if r := t.Result(); r.Count > 0 { // a case may have no page with energy
			out = append(out, r)
		}
	}
	return out
}

// records judges one launch's records.
func (j *summaryJudge) records(c *reference.Cache, got map[reference.RecordKey][]byte, launch int) {
	keys := make([]reference.RecordKey, 0, len(got))
	for key := range got {
		keys = append(keys, key)
	}
	slices.SortFunc(keys, func(a, b reference.RecordKey) int {
		return cmp.Or(cmp.Compare(a.Block, b.Block), cmp.Compare(a.Head, b.Head))
	})
	if j.p.Shape.Scorer != "" {
		j.plainRecords(c, keys, got, launch)
		return
	}
	page := j.p.Shape.PageSize
	every := max(1, len(keys)/max(6, svdWork/(page*page*page)))
	for i, key := range keys {
		codes, err := reference.Unpack(j.p.Shape, got[key])
		if err == nil {
			err = codes.Check()
		}
		if err != nil {
			j.span.Fail("launch %d, block %d, head %d: %v", launch, key.Block, key.Head, err)
			continue
		}
		keys := c.DecodeKeys(key.Block, key.Head) // a quantised page's as they lie in memory, not as attention will read them
		if at := j.place[key.Block]; c.SummaryTokens() > c.PageSize {
			keys = c.GroupKeys(at[0], at[1], key.Head, c.SummaryTokens())
		}
		j.record(keys, codes, got[key], key, i%every == 0)
	}
}

// record judges one page's record; energy too when svd is set.
func (j *summaryJudge) record(keys []float64, codes reference.Codes, packed []byte, key reference.RecordKey, svd bool) {
	shape := j.p.Shape
	if slices.ContainsFunc(keys, func(x float64) bool { return math.IsNaN(x) || math.IsInf(x, 0) }) {
		j.notFinite(keys, codes, packed, key)
		return
	}
	d := reference.Centred(keys, shape)
	j.centroid(keys, d, codes, key)
	got := codes.Dequantise()
	if slices.ContainsFunc(got.V, math.IsNaN) || slices.ContainsFunc(got.C, math.IsNaN) {
		j.span.Fail("block %d, head %d: NaN in the basis or the coefficients of a finite page", key.Block, key.Head)
		return
	}
	if j.weights == nil { // of weighted bases C is not D V; the summary's energy holds it
		j.coefficients(d, got, codes, key)
	}
	if svd {
		j.energy(keys, d, got, key)
	}
}

func (j *summaryJudge) notFinite(keys []float64, codes reference.Codes, packed []byte, key reference.RecordKey) {
	want := reference.Summarise(keys, j.p.Shape).Quantise()
	if !math.IsNaN(reference.FromBF16(codes.MuScale)) {
		j.span.Fail("block %d, head %d: a key is not finite and the centroid's scale is %g, not NaN", key.Block, key.Head, reference.FromBF16(codes.MuScale))
		return
	}
	for _, scale := range codes.MuGroups {
		if !math.IsNaN(reference.FromBF16(scale)) {
			j.span.Fail("block %d, head %d: a key is not finite and a scale of the centroid is %g, not NaN", key.Block, key.Head, reference.FromBF16(scale))
			return
		}
	}
	want.MuScale, want.MuGroups = codes.MuScale, codes.MuGroups // any NaN
	if !bytes.Equal(want.Pack(), packed) {
		j.span.Fail("block %d, head %d: a key is not finite and codes or scales are not zero", key.Block, key.Head)
		return
	}
	j.span.Passed(1)
}

// centroid compares mu with its codes, in steps of the scale, and the scale with the exact one.
func (j *summaryJudge) centroid(keys, d []float64, codes reference.Codes, key reference.RecordKey) {
	mu := make([]float64, j.p.Shape.HeadDim)
	for i := range mu {
		mu[i] = keys[i] - d[i]
	}
	if !codes.Form.Centroid4 {
		j.vector(mu, codes.Mu, codes.MuScale, 8, largestOf(keys), key, 0)
		return
	}
	largest := largestOf(keys)
	if j.p.Cache.Centre != nil {
		centre := j.p.Cache.Centre[key.Head]
		largest = max(largest, largestOf(centre))
		for i := range mu {
			mu[i] -= centre[i]
		}
	}
	for g, scale := range codes.MuGroups {
		at := g * specs.ScaleDims
		j.vector(mu[at:at+specs.ScaleDims], codes.Mu[at:at+specs.ScaleDims], scale, 4, largest, key, at)
	}
}

// vector compares codes of a width, and their scale, with the numbers that they stand for: dims `first` and on of a centroid. largest is
// the magnitude of what they came from.
func (j *summaryJudge) vector(mu []float64, codes []int8, scaleBits uint16, bits int, largest float64, key reference.RecordKey, first int) {
	scale, want := reference.FromBF16(scaleBits), reference.FromBF16(reference.Scale(mu, bits))
	top, most := largestOf(mu), float64(int(1)<<(bits-1)-1)
	if top <= 1e-6*largest { // a centroid that is rounding: any small one is right
		if scale*most > 2e-6*largest {
			j.mu.Fail("block %d, head %d: scale %g of a centroid of zero", key.Block, key.Head, scale)
		}
		return
	}
	rounding := 1e-6 * largest / top // what f32 leaves of it, beside the scale's own rounding
	if math.Abs(scale-want) > want*(1./128+rounding) {
		j.mu.Fail("block %d, head %d: centroid scale %g, exact %g", key.Block, key.Head, scale, want)
		return
	}
	for i, x := range mu {
		err := math.Abs(x/scale - float64(codes[i]))
		if math.Abs(x/scale) > most {
			err = math.Abs(float64(codes[i])) - most // clamped
		}
		j.mu.Add(math.Max(math.Abs(err)-most*rounding, 0), muBound, func() string { return where(key, "dim", first+i) })
	}
}

func largestOf(x []float64) (top float64) {
	for _, v := range x {
		top = max(top, math.Abs(v))
	}
	return top
}

// coefficients compares C with D V for the stored V. C comes from the unquantised V, so each column may be off by what quantising
// that column can do, besides half a step of the token's own scale.
func (j *summaryJudge) coefficients(d []float64, got reference.Dequantised, codes reference.Codes, key reference.RecordKey) {
	shape := j.p.Shape
	exact := reference.Coefficients(d, got.V, shape)
	step := make([]float64, shape.Rank) // the norm that a column's rounding error can have
	for r := range step {
		if shape.BasisBits == 16 {
			step[r] = 1. / 256
			continue
		}
		half := 0.5
		if shape.BasisBits == 2 {
			half = 1 // the outer levels stand for more
		}
		groups := len(codes.VScale) / shape.Rank
		for _, bits := range codes.VScale[r*groups : (r+1)*groups] {
			scale := half * reference.FromBF16(bits)
			step[r] += scale * scale * float64(shape.HeadDim/groups)
		}
		step[r] = math.Sqrt(step[r])
	}
	top := largestOf(d)
	for t := range shape.PageSize {
		norm := 0.0
		for _, x := range d[t*shape.HeadDim : (t+1)*shape.HeadDim] {
			norm += x * x
		}
		norm = math.Sqrt(norm)
		half := 0.5 * reference.FromBF16(codes.TokenScale[t])
		for r := range shape.Rank {
			i := t*shape.Rank + r
			allowed := 1.05*half + norm*(step[r]+1e-4) + 1e-6*top
			if allowed == 0 {
				continue
			}
			j.coeff.Add(math.Abs(got.C[i]-exact[i])/allowed, 1, func() string { return where(key, "token and column", i) })
		}
	}
}

// energy compares what the basis, and the summary as a whole, keep of the page with what the exact SVD keeps after the same
// quantisation; and which columns are zero.
func (j *summaryJudge) energy(keys, d []float64, got reference.Dequantised, key reference.RecordKey) {
	shape := j.p.Shape
	exact := j.summarise(keys, key.Head)
	first := exact.Sigma[0] * exact.Sigma[0]
	for r := range shape.Rank {
		zero := !slices.ContainsFunc(got.V[r*shape.HeadDim:(r+1)*shape.HeadDim], func(x float64) bool { return x != 0 })
		share := exact.Sigma[r] * exact.Sigma[r]
		if zero && share <= deficient*first {
			// Allowed; and then no match for what a coarse code of another column leaves, which an extra column would catch by chance.
			clear(exact.V[r*shape.HeadDim : (r+1)*shape.HeadDim])
		}
		switch {
		case !zero && share <= absent*first:
			j.span.Fail("block %d, head %d: column %d of a page of lower rank is not zero", key.Block, key.Head, r)
		case zero && share > deficient*first:
			j.span.Fail("block %d, head %d: column %d is zero, its direction holds %.2g of the first one's energy", key.Block, key.Head, r, share/first)
		}
	}
	if first == 0 {
		j.span.Passed(1)
		return
	}
	want := exact.Quantise().Dequantise()
	d, want.V, got.V = j.measure(d, key.Head), j.measure(want.V, key.Head), j.measure(got.V, key.Head)
	best := reference.SpanEnergy(d, want.V, shape)
	if shape.BasisBits == 16 {
		best = 0
		for _, s := range exact.Sigma {
			best += s * s
		}
	}
	lost := max(1-reference.SpanEnergy(d, got.V, shape)/best, 0)
	bound := energyBound
	if shape.BasisBits < 16 {
		// Quantising turns a basis a little at random: another exact basis of the same page would differ as much. The bound that
		// counts is on the case's mean.
		bound = 0.1
	}
	j.span.Add(lost, bound, func() string { return where(key, "page", 0) })
	j.pages++
	j.ratios += 1 - lost
	if kept := reference.Energy(d, want.V, want.C, shape); kept > 0 && shape.BasisBits >= 4 {
		j.keptPages++
		j.keptRatios += reference.Energy(d, got.V, got.C, shape) / kept
	}
}

// same reports a record that a second build made differently.
func (j *summaryJudge) same(first, again map[reference.RecordKey][]byte) {
	for key, record := range first {
		if !bytes.Equal(record, again[key]) {
			j.span.Fail("block %d, head %d: a second build of the same page wrote other bytes", key.Block, key.Head)
		}
	}
}

func where(key reference.RecordKey, what string, i int) string {
	return fmt.Sprintf("block %d, head %d, %s %d", key.Block, key.Head, what, i)
}
