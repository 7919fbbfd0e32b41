package bench

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/kvloom/kvloom/autotune/measure"
	"github.com/kvloom/kvloom/gen/plan"
	"github.com/kvloom/kvloom/specs"
)

// presets are named lists of jobs, each measured in one process.
var presets = map[string]func() ([]Job, error){
	"bars":        barJobs,
	"breadth":     breadthJobs,
	"crossover":   crossoverJobs,
	"growth":      growthJobs,
	"drop-growth": DropGrowthJobs,
	"headline":    headlineJobs,
	"rerank":      rerankJobs,
}

// Presets are their names, sorted.
func Presets() []string { return slices.Sorted(maps.Keys(presets)) }

// Preset returns the jobs of presets, named with commas between, in that order; what several have in common is in the list once.
func Preset(names string) (jobs []Job, err error) {
	for _, name := range strings.Split(names, ",") {
		list := presets[name]
		if list == nil {
			return nil, fmt.Errorf("no preset of shapes called %q; there are %s", name, strings.Join(Presets(), ", "))
		}
		more, err := list()
		if err != nil {
			return nil, err
		}
		jobs = append(jobs, more...)
	}
	return distinct(suited(jobs)), nil
}

// suited makes each job's workload the one that its spec names, as a user of that shape would: a plan's defaults suit the spec's workloads.
func suited(jobs []Job) []Job {
	for i := range jobs {
		s := *jobs[i].Spec
		s.Workloads = []specs.Workload{jobs[i].Workload}
		jobs[i].Spec = &s
	}
	return jobs
}

// distinct leaves out lines that an earlier job of the list measures: axes meet in a point, and not every axis concerns every family.
func distinct(jobs []Job) (list []Job) {
	type line struct {
		family string
		shape  Shape
	}
	seen := map[line]bool{}
	for _, j := range jobs {
		j.Families = slices.DeleteFunc(slices.Clone(j.Families), func(family string) bool {
			key := line{family, ShapeOf(family, j)}
			was := seen[key]
			seen[key] = true
			return was
		})
		if len(j.Families) > 0 {
			list = append(list, j)
		}
	}
	return list
}

// The stems, as the names of families.
var (
	summary  = string(plan.PageSummary)
	score    = string(plan.PageScore)
	choose   = string(plan.PageSelect)
	attend   = string(plan.PageAttend)
	dense    = string(measure.Dense)
	dropped  = string(plan.DropScore)
	compact  = string(plan.DropCompact)
	decoding = []string{summary, score, choose, attend, ChainFamily, dense}
)

// barJobs are the shapes that kvloom's speed is judged by: long contexts of three published models, ranks 4 and 8, every rule that selects,
// and eviction of a prompt; the first of them with a warm L2 too.
func barJobs() (jobs []Job, err error) {
	add := func(model string, context, batch int, families []string, change func(*Job)) {
		if err != nil {
			return
		}
		var s *specs.Spec
		if s, err = specs.Resolve(model); err != nil {
			return
		}
		j := Job{Spec: s, Workload: specs.Workload{Context: context, Batch: batch}, Families: families}
		if change != nil {
			change(&j)
		}
		jobs = append(jobs, j)
	}
	const llama, glm1m, glm = "llama-3.1-8b", "glm-4-9b-chat-1m", "glm-4-9b-chat"
	const k128, k512, m1 = 128 << 10, 512 << 10, 1 << 20
	rank8 := func(j *Job) { j.Spec.Locks.Rank = 8 }
	add(llama, k128, 1, decoding, nil)
	add(llama, k512, 1, []string{score, choose, attend, ChainFamily}, nil)
	add(llama, k128, 8, []string{score, ChainFamily, dense}, nil)
	add(llama, k128, 1, []string{summary, score, ChainFamily}, rank8)
	add(llama, k128, 1, []string{summary}, func(j *Job) { j.Spec.Locks.Basis = plan.QueryWeighted })
	for _, build := range []measure.Build{measure.BuildFilled, measure.BuildIdle} {
		add(llama, 4<<10, 64, []string{summary}, func(j *Job) { j.Build = build })
	}
	add(llama, k512, 1, []string{score}, rank8)
	add(llama, k128, 1, []string{string(plan.KVQuantize), attend, dense}, func(j *Job) { j.Spec.Cache.DType = specs.KIVI4 })
	add(llama, k128, 8, []string{score}, rank8)
	add(glm1m, k512, 1, []string{score, choose, attend, ChainFamily, dense}, nil)
	add(glm1m, m1, 1, []string{score, choose, ChainFamily, dense}, nil)
	add(glm, k512, 1, []string{score, choose, attend, ChainFamily, dense}, nil)
	add(glm, m1, 1, []string{score, choose, ChainFamily, dense}, nil)
	add(glm, k512, 1, []string{score}, rank8)
	for _, rule := range []string{"group_max", "group_mass", "peak_normalised", "per_head"} {
		add(llama, k128, 1, []string{choose}, func(j *Job) { j.Spec.Locks.Combine = rule })
	}
	warm := func(j *Job) { j.Warm = true }
	add(llama, k128, 1, decoding, warm)
	add(llama, k512, 1, []string{score, choose, attend, ChainFamily}, warm)
	add(glm, k512, 1, []string{score, choose, attend, ChainFamily}, warm)
	for _, precision := range []string{"exact", "fast"} {
		for _, contiguous := range []bool{false, true} {
			drop := func(j *Job) {
				j.Contiguous, j.Spec.DropKV.Precision, j.Spec.DropKV.Budget = contiguous, precision, specs.Budget{Ratio: 0.05}
			}
			if precision == "fast" && contiguous {
				add(llama, k128, 1, []string{string(plan.DropAllot), DropChain}, func(j *Job) {
					drop(j)
					j.Spec.DropKV.HeadBudgets = specs.HeadBudgets{Kind: "adaptive", Floor: 0.2}
				})
			}
			add(llama, k128, 1, []string{dropped, DropObserveScore, DropChain}, drop)
			if contiguous {
				add(llama, 32<<10, 1, []string{DropObserveScore}, drop)
				add(llama, 4<<10, 1, []string{DropObserveScore}, drop)
				add("qwen2.5-7b-1m", k128, 1, []string{dropped, DropObserveScore}, drop)
			}
			if precision == "exact" { // compaction reads no scores
				add(llama, k128, 1, []string{compact}, drop)
			}
		}
	}
	return jobs, err
}

// headlineJobs are the bars without what only a reader of the whole list looks for: warm caches, other rules of selection, paged and exact
// eviction where the contiguous and fast one is there.
func headlineJobs() (jobs []Job, err error) {
	all, err := barJobs()
	for _, j := range all {
		drops := strings.HasPrefix(j.Families[0], "drop_")
		if !j.Warm && j.Spec.Locks.Combine == "share_average" && (!drops || j.Contiguous && (j.Spec.DropKV.Precision == "fast" || j.Families[0] == compact)) {
			jobs = append(jobs, j)
		}
	}
	return jobs, err
}

// Of keeps the lines of a preset, in its order.
func Of(preset string, results []Result) (kept []Result, err error) {
	jobs, err := Preset(preset)
	if err != nil {
		return nil, err
	}
	l := newLookup(results)
	for _, j := range jobs {
		for _, family := range j.Families {
			if r, ok := l.find(family, j); ok {
				kept = append(kept, r)
			}
		}
	}
	return kept, nil
}
