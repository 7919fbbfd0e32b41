package bench

import (
	"github.com/kvloom/kvloom/specs"
)

// The axes of growth. Context is varied at batch 1, batch at growthContext tokens, the budget at both.
var (
	growthContexts = []int{4 << 10, 8 << 10, 16 << 10, 32 << 10, 64 << 10, 128 << 10, 256 << 10, 512 << 10, 1 << 20}
	growthBatches  = []int{2, 4, 8, 16, 32, 64}
	growthBudgets  = []int{256, 512, 1024, 4096, 8192}
)

// growthModels are a group of 4, 8 and 16 query heads a KV head, all of 32 query heads.
var growthModels = []string{"llama-3.1-8b", "glm-4-9b-chat-1m", "glm-4-9b-chat"}

const growthContext = 128 << 10 // tokens, where batch and budget vary

// growthJobs vary context, batch and budget one at a time.
func growthJobs() (jobs []Job, err error) {
	for i, model := range growthModels {
		s, err := specs.Resolve(model)
		if err != nil {
			return nil, err
		}
		for _, n := range growthContexts {
			jobs = append(jobs, Job{Spec: s, Workload: specs.Workload{Context: n, Batch: 1}, Families: decoding})
		}
		if i > 0 {
			continue // batch and budget are varied for the first model alone
		}
		for _, n := range growthBatches {
			jobs = append(jobs, Job{Spec: s, Workload: specs.Workload{Context: growthContext, Batch: n}, Families: decoding[1:]})
		}
		for _, n := range growthBudgets {
			other := *s
			other.Locks.BudgetTokens = n
			jobs = append(jobs, Job{Spec: &other, Workload: specs.Workload{Context: growthContext, Batch: 1}, Families: []string{choose, attend, ChainFamily}})
		}
		dropped := *s
		dropped.DropKV.Budget = specs.Budget{Ratio: 0.05}
		for _, n := range []int{32 << 10, 64 << 10, 128 << 10, 256 << 10, 512 << 10, 1 << 20} {
			jobs = append(jobs, Job{Spec: &dropped, Workload: specs.Workload{Context: n, Batch: 1}, Families: []string{DropObserveScore, DropChain}, Contiguous: true})
		}
	}
	return jobs, nil
}
