package bench

import (
	"slices"

	"github.com/kvloom/kvloom/autotune/measure"
	"github.com/kvloom/kvloom/gen/plan"
	"github.com/kvloom/kvloom/specs"
)

// fused scores an evicted prompt in one launch, where a spec's plan has it.
const fused = measure.Work("drop_observe_score")

// ways are the lists of works that do a family's work, launched one after the other: most families have one of one work; where a kernel does
// what several others do, both are there, and a bench measures the faster.
func ways(p *plan.Plan, family string) (list [][]measure.Work) {
	scoring := [][]measure.Work{{measure.Work(plan.DropObserve), measure.Work(plan.DropScore)}}
	if p.Has(plan.Family(fused)) {
		scoring = append(scoring, []measure.Work{fused})
	}
	choosing := [][]measure.Work{{measure.Work(plan.DropPool), measure.Work(plan.DropSelect)}}
	if p.Has(plan.DropAllot) {
		choosing = [][]measure.Work{{measure.Work(plan.DropPool), measure.Work(plan.DropAllot), measure.Work(plan.DropSelect)}}
	}
	if p.Has(plan.DropPoolSelect) {
		choosing = append(choosing, []measure.Work{measure.Work(plan.DropPoolSelect)})
	}
	switch family {
	case ChainFamily:
		if p.Has(plan.PageRerank) {
			score, choose := measure.Work(plan.PageScore), measure.Work(plan.PageSelect)
			list := [][]measure.Work{{score, choose, measure.Work(plan.PageRerank), measure.Work(plan.PageAttend)}}
			if p.Has(plan.PageRerankAttend) {
				list = append(list, []measure.Work{score, choose, measure.Work(plan.PageRerankAttend)})
			}
			if p.Has(plan.PageSelectRerankAttend) {
				list = append(list, []measure.Work{score, measure.Work(plan.PageSelectRerankAttend)})
			}
			return list
		}
		list := [][]measure.Work{{measure.Work(plan.PageScore), measure.Work(plan.PageSelect), measure.Work(plan.PageAttend)}}
		if p.Has(plan.PageSelectAttend) {
			list = append(list, []measure.Work{measure.Work(plan.PageScore), measure.Work(plan.PageSelectAttend)})
		}
		return list
	case DropObserveScore:
		return scoring
	case DropChain:
		for _, before := range scoring {
			for _, after := range choosing {
				list = append(list, slices.Concat(before, after))
			}
		}
		return list
	}
	return [][]measure.Work{{measure.Work(family)}}
}

// worksOf lists the works of families, every way of each, none twice.
func worksOf(p *plan.Plan, families []string) (list []measure.Work) {
	for _, f := range families {
		for _, works := range ways(p, f) {
			for _, w := range works {
				if !slices.Contains(list, w) {
					list = append(list, w)
				}
			}
		}
	}
	return list
}

// Bytes is what a family must move for a workload, by the plan's model.
func Bytes(p *plan.Plan, family string, w specs.Workload) int64 { return Work(p, family, w).Bytes }

// Work is what a family must move and compute for a workload, by the plan's model; of several ways, the last, which reads least.
func Work(p *plan.Plan, family string, w specs.Workload) plan.Work {
	list := ways(p, family)
	return total(p, list[len(list)-1], w)
}

// total adds up works.
func total(p *plan.Plan, works []measure.Work, w specs.Workload) (sum plan.Work) {
	for _, work := range works {
		one := cost(p, work, w)
		sum.Bytes, sum.Flops, sum.Exponential = sum.Bytes+one.Bytes, sum.Flops+one.Flops, sum.Exponential+one.Exponential
	}
	return sum
}

func cost(p *plan.Plan, work measure.Work, w specs.Workload) plan.Work {
	if work != measure.Dense {
		return p.Of(plan.Family(work)).Cost(w)
	}
	a := p.Spec.Attention
	tokens := int64(w.Batch) * int64(w.Context)
	return plan.Work{Bytes: tokens * int64(a.KVHeads) * int64(specs.Derive(p.Spec).KVPageBytes) / int64(p.Spec.Cache.PageSize), Flops: 4 * tokens * int64(a.QueryHeads) * int64(a.HeadDim),
		Exponential: tokens * int64(a.QueryHeads)}
}
