package bench

import (
	"github.com/kvloom/kvloom/gen/plan"
	"github.com/kvloom/kvloom/specs"
)

// rerankJobs are a layer with an exact rerank of twice the pages behind small summaries, beside the layer of rank 4 without one, and the
// scores of both; and scores from all keys.
func rerankJobs() (jobs []Job, err error) {
	small := []func(*specs.Locks){
		func(*specs.Locks) {},
		func(l *specs.Locks) { l.Rank, l.Rerank = 1, 2 },
		func(l *specs.Locks) { l.Rank, l.Rerank, l.SummaryTokens, l.Basis = 1, 2, 32, plan.QueryWeighted },
		func(l *specs.Locks) { l.Rank, l.Rerank, l.SummaryTokens, l.Basis = 2, 2, 32, plan.QueryWeighted },
		func(l *specs.Locks) { l.Rank, l.Rerank, l.CoefficientBits = 1, 2, 4 },
		func(l *specs.Locks) {
			l.Rank, l.Rerank, l.CoefficientBits, l.CentroidBits, l.Basis = 1, 2, 4, 4, plan.QueryWeighted
		},
	}
	for _, at := range []struct {
		model          string
		context, batch int
	}{{"llama-3.1-8b", 128 << 10, 1}, {"glm-4-9b-chat-1m", 1 << 20, 1}, {"llama-3.1-8b", 128 << 10, 8}} {
		for _, change := range small {
			s, err := specs.Resolve(at.model)
			if err != nil {
				return nil, err
			}
			change(&s.Locks)
			jobs = append(jobs, Job{Spec: s, Workload: specs.Workload{Context: at.context, Batch: at.batch}, Families: []string{score, ChainFamily}})
		}
	}
	s, err := specs.Resolve("llama-3.1-8b")
	if err != nil {
		return nil, err
	}
	s.Locks.Scorer = specs.ExactLSE
	return append(jobs, Job{Spec: s, Workload: specs.Workload{Context: 128 << 10, Batch: 1}, Families: []string{score}}), nil
}
