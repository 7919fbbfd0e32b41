package verify

import (
	"context"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"

	"github.com/kvloom/kvloom/gen/plan"
	"github.com/kvloom/kvloom/internal/launch"
	"github.com/kvloom/kvloom/internal/reference"
	"github.com/kvloom/kvloom/runtime/kernel"
	"github.com/kvloom/kvloom/specs"
)

const (
	momentMetric = "second moment, of the sum of magnitudes"
	factorMetric = "factor, of its column's length"
)

const (
	momentBound = 1e-5 // f32 sums of exact products
	factorBound = 1e-2 // bf16 of an element, and what f32 leaves of a singular moment
)

func init() {
	register(plan.QueryMoment, checkQueryMoment)
	register(plan.QueryFactor, checkQueryFactor)
}

// checkQueryMoment sums the moments of ragged prompts in two launches, the second adding to the first.
func checkQueryMoment(ctx context.Context, e *Env, s *specs.Spec, c plan.Candidate, o Options) []Result {
	k, err := e.Kernel(c)
	if err != nil {
		return []Result{Failed("load", momentMetric, err)}
	}
	var results []Result
	for _, tt := range []struct {
		name string
		lens []int32
	}{{"no queries", []int32{0}}, {"one query", []int32{1}}, {"ragged prompts", []int32{37, 0, 203}}, {"a prompt", []int32{1100}}} {
		if ctx.Err() != nil || !o.Wants(tt.name) {
			continue
		}
		t, a := NewTally(tt.name, momentMetric, momentBound), e.NewArena()
		t.Err(errors.Join(momentCase(k, s, tt.lens, o.Seed, a, t), a.Free()))
		results = append(results, t.Result())
	}
	return results
}

func momentCase(k *Kernel, s *specs.Spec, lens []int32, seed uint64, a *Arena, t *Tally) error {
	const splits = plan.MomentSplits
	dtype, err := reference.ParseDType(s.Cache.DType)
	if err != nil {
		return err
	}
	d, heads, group := s.Attention.HeadDim, s.Attention.KVHeads, s.Attention.Group()
	longest := 0
	for _, n := range lens {
		longest = max(longest, int(n))
	}
	head, token := d+8, heads*group*(d+8)+16
	batch := (longest + 1) * token
	bits, r := make([]uint16, batch*len(lens)+8), rand.New(rand.NewPCG(seed, 77))
	for i := range bits {
		bits[i] = dtype.Bits(math.NaN()) // strides' gaps and what is past a prompt's end are not read
	}
	want, size := make([]float64, heads*d*d), make([]float64, heads*d*d)
	for b, n := range lens {
		for i := range int(n) {
			for h := range heads * group {
				at := b*batch + i*token + h*head
				q := make([]float64, d)
				for j := range q {
					bits[at+j] = dtype.Bits(r.NormFloat64() * float64(1+j%5))
				}
				dtype.Values(q, bits[at:at+d])
				for x := range d {
					for y := range d {
						want[(h/group*d+x)*d+y] += q[x] * q[y]
						size[(h/group*d+x)*d+y] += math.Abs(q[x] * q[y])
					}
				}
			}
		}
	}
	q, err1 := a.Alloc("q", int64(2*len(bits)))
	qLens, err2 := a.Alloc("q_lens", int64(4*len(lens)))
	moments, err3 := a.Alloc("moments", int64(4*splits*heads*d*d))
	if err := errors.Join(err1, err2, err3); err != nil {
		return err
	}
	if err := errors.Join(q.Write(BytesOfUint16(bits)), qLens.Write(BytesOfInt32(lens)), moments.Fill(0)); err != nil {
		return err
	}
	args := kernel.QueryMomentArgs{Q: q.Ptr(), QLens: qLens.Ptr(), Moments: moments.Ptr(), QBatchStride: int64(batch), QTokenStride: int64(token), QHeadStride: int64(head),
		Batch: int32(len(lens)), KVHeads: int32(heads), Group: int32(group), Splits: splits}
	for times := 1; times <= 2; times++ {
		if err := RunOnce(k, launch.Problem{Batch: int64(len(lens)), KVHeads: int64(heads), SMs: 132}, &args); err != nil {
			return err
		}
		got, err := moments.Read()
		if err := errors.Join(err, a.Check()); err != nil {
			return err
		}
		parts := Float32s(got)
		for i := range want {
			sum := 0.0
			for p := range splits {
				sum += float64(parts[p*len(want)+i])
			}
			t.Add(math.Abs(sum-float64(times)*want[i])/(float64(times)*size[i]+1e-30), momentBound, func() string {
				return fmt.Sprintf("launch %d, head %d, element %d", times, i/d/d, i%(d*d))
			})
		}
	}
	return nil
}

// checkQueryFactor factors moments in partial sums: such that say something, and such that do not.
func checkQueryFactor(ctx context.Context, e *Env, s *specs.Spec, c plan.Candidate, o Options) []Result {
	k, err := e.Kernel(c)
	if err != nil {
		return []Result{Failed("load", factorMetric, err)}
	}
	var results []Result
	for _, tt := range []struct {
		name    string
		queries int
		spoil   func(s []float64)
	}{
		{"many queries", 3 * s.Attention.HeadDim, nil}, {"fewer queries than dims", 9, nil}, {oneQuery, 1, nil}, {noQueries, 0, nil},
		{"large queries", 20, func(s []float64) { scaleBy(s, 1e20) }}, {"small queries", 20, func(s []float64) { scaleBy(s, 1e-20) }},
		{"a NaN", 20, func(s []float64) { s[len(s)-1] = math.NaN() }}, {"an infinity", 20, func(s []float64) { s[0] = math.Inf(1) }},
	} {
		if ctx.Err() != nil || !o.Wants(tt.name) {
			continue
		}
		t, a := NewTally(tt.name, factorMetric, factorBound), e.NewArena()
		t.Err(errors.Join(factorCase(k, s, tt.queries, tt.spoil, o.Seed, a, t), a.Free()))
		results = append(results, t.Result())
	}
	return results
}

func scaleBy(x []float64, by float64) {
	for i := range x {
		x[i] *= by
	}
}

func factorCase(k *Kernel, s *specs.Spec, n int, spoil func([]float64), seed uint64, a *Arena, t *Tally) error {
	const splits = 3
	d, heads := s.Attention.HeadDim, min(s.Attention.KVHeads, 3)
	r := rand.New(rand.NewPCG(seed, 78))
	parts := make([]float32, splits*heads*d*d)
	sums := make([][]float64, heads)
	for h := range heads {
		queries := make([]float64, n*d)
		for i := range queries {
			queries[i] = r.NormFloat64() * math.Exp(math.Sin(float64(i%d+h)))
		}
		m := reference.SecondMoment(queries, d)
		if spoil != nil {
			spoil(m)
		}
		sums[h] = make([]float64, d*d)
		for p := range splits {
			for i, x := range m {
				share := float32(x * []float64{0.5, 0.3, 0.2}[p])
				parts[(p*heads+h)*d*d+i] = share
				sums[h][i] += float64(share)
			}
		}
	}
	bytes := reference.FactorBytes(d)
	moments, err1 := a.Alloc("moments", int64(4*len(parts)))
	weights, err2 := a.Alloc("weights", int64(heads*bytes))
	if err := errors.Join(err1, err2); err != nil {
		return err
	}
	if err := errors.Join(moments.Write(BytesOfFloat32(parts)), weights.Fill(0xff)); err != nil {
		return err
	}
	args := kernel.QueryFactorArgs{Moments: moments.Ptr(), Weights: weights.Ptr(), Splits: splits, KVHeads: int32(heads)}
	if err := RunOnce(k, launch.Problem{Batch: 1, KVHeads: int64(heads), SMs: 132}, &args); err != nil {
		return err
	}
	packed, err := weights.Read()
	if err := errors.Join(err, a.Check()); err != nil {
		return err
	}
	for h := range heads {
		want := reference.NewWeights(sums[h], d).Factor()
		got := reference.UnpackFactor(packed[h*bytes:(h+1)*bytes], d)
		for j := range d {
			length := 0.0
			for i := range d {
				length = math.Hypot(length, want[i*d+j])
			}
			for i := range d {
				t.Add(math.Abs(got[i*d+j]-want[i*d+j])/length, factorBound, func() string { return fmt.Sprintf("head %d, row %d, column %d", h, i, j) })
			}
		}
	}
	return nil
}
