package verify

import (
	"math"
	"math/rand/v2"

	"github.com/kvloom/kvloom/gen/plan"
	"github.com/kvloom/kvloom/internal/reference"
)

// Cases of query-weighted bases alone: what the queries were.
const (
	noQueries = "no queries"
	oneQuery  = "one query"
)

// summaryWeights makes the weights of each KV head of a case, or none where the spec's basis has none: queries that prefer some
// dims and share a few directions, differently in each head.
func summaryWeights(p *Problem, seed uint64) []reference.Weights {
	if p.Spec.Locks.Basis != plan.QueryWeighted {
		return nil
	}
	d := p.Cache.HeadDim
	n := 3 * d
	switch p.Case.Name {
	case noQueries:
		n = 0
	case oneQuery:
		n = 1
	}
	list := make([]reference.Weights, p.Cache.KVHeads)
	for h := range list {
		r := rand.New(rand.NewPCG(seed, uint64(1000+h)))
		shared := make([]float64, d)
		for i := range shared {
			shared[i] = r.NormFloat64()
		}
		queries := make([]float64, n*d)
		for q := range n {
			along := 2 * r.NormFloat64()
			for i := range d {
				queries[q*d+i] = math.Exp(1.2*math.Sin(float64(3*i+h)))*r.NormFloat64() + along*shared[i]
			}
		}
		list[h] = reference.NewWeights(reference.SecondMoment(queries, d), d)
	}
	return list
}

// equalWeights weigh all directions of every KV head alike: the plain SVD's bases, which a chain's estimates are of.
func equalWeights(p *Problem) []reference.Weights {
	d := p.Cache.HeadDim
	list := make([]reference.Weights, p.Cache.KVHeads)
	for h := range list {
		list[h] = reference.NewWeights(make([]float64, d*d), d)
	}
	return list
}

// packWeights lays the heads' factors out as page_summary takes them.
func packWeights(list []reference.Weights) []byte {
	var b []byte
	for _, w := range list {
		b = append(b, reference.PackFactor(w.Factor(), w.Dim)...)
	}
	return b
}

// summarise is the reference's summary of a page of one head.
func (j *summaryJudge) summarise(keys []float64, head int) reference.Summary {
	if j.weights == nil {
		return reference.Summarise(keys, j.p.Shape)
	}
	return reference.SummariseWeighted(keys, j.p.Shape, j.weights[head])
}

// measure maps rows to where squared lengths are what a basis is judged by: the keys' own space, or that of logits under the weights.
func (j *summaryJudge) measure(x []float64, head int) []float64 {
	if j.weights == nil {
		return x
	}
	return j.weights[head].Apply(x)
}
