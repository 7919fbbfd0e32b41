package measure

import (
	"unsafe"

	"github.com/kvloom/kvloom/gen/plan"
	"github.com/kvloom/kvloom/runtime/device"
	"github.com/kvloom/kvloom/runtime/kernel"
)

// momentStep sums the moments of a whole prompt's queries. The sums grow from launch to launch, which costs nothing.
func (r *Rig) momentStep(fn device.Function, l *device.Launch) (*Step, error) {
	p, d := r.Problem, int64(r.Spec.Attention.HeadDim)
	each := p.Batch * int64(r.Workload.Context) * p.QHeads * d * 2
	queries, err := r.newRing(each, r.sets(each))
	if err != nil {
		return nil, err
	}
	if err := r.fill(queries.base, queries.each*int64(queries.n), r.halves(1<<20, 1)); err != nil {
		return nil, err
	}
	moments, err := r.moments()
	if err != nil {
		return nil, err
	}
	args := make([]kernel.QueryMomentArgs, 1)
	return &Step{Sets: queries.n, launch: func(i int) error {
		args[0] = kernel.QueryMomentArgs{Q: queries.at(i), QLens: r.lens, Moments: moments, QBatchStride: int64(r.Workload.Context) * p.QHeads * d,
			QTokenStride: p.QHeads * d, QHeadStride: d, Batch: int32(p.Batch), KVHeads: int32(p.KVHeads), Group: int32(p.QHeads / p.KVHeads), Splits: plan.MomentSplits}
		return fn.Launch(r.Stream, l, unsafe.Pointer(&args[0]), unsafe.Sizeof(args[0]))
	}}, nil
}

// factorStep factors moments of zero as often as any others: the method is direct.
func (r *Rig) factorStep(fn device.Function, l *device.Launch) (*Step, error) {
	moments, err := r.moments()
	if err != nil {
		return nil, err
	}
	weights, err := r.alloc(kernel.WeightBytes(int(r.Problem.KVHeads), r.Spec.Attention.HeadDim))
	if err != nil {
		return nil, err
	}
	args := make([]kernel.QueryFactorArgs, 1)
	return &Step{Sets: 1, launch: func(int) error {
		args[0] = kernel.QueryFactorArgs{Moments: moments, Weights: weights, Splits: plan.MomentSplits, KVHeads: int32(r.Problem.KVHeads)}
		return fn.Launch(r.Stream, l, unsafe.Pointer(&args[0]), unsafe.Sizeof(args[0]))
	}}, nil
}

func (r *Rig) moments() (device.Ptr, error) {
	bytes := kernel.MomentBytes(plan.MomentSplits, int(r.Problem.KVHeads), r.Spec.Attention.HeadDim)
	p, err := r.alloc(bytes)
	if err != nil {
		return 0, err
	}
	return p, r.Dev.Fill(p, 0, bytes)
}
