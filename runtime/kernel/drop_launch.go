package kernel

import (
	"unsafe"

	"github.com/kvloom/kvloom/runtime/device"
)

// DropObserve writes full log-sum-exp and attention output of the last Window queries of each request, causal inside the window; for
// keydiff the mean of the keys' directions. w picks the tuned kernel.
//
// All launch functions enqueue on the caller's stream and thread; they allocate nothing, never wait, and may be captured. The arguments
// are copied before they return.
func (s *Set) DropObserve(st device.Stream, a *DropObserveArgs, w Workload) error {
	if err := s.CheckDropObserve(a); err != nil {
		return err
	}
	return s.run(st, dropObserveWork, w, s.problem(&a.Cache), a.Workspace, unsafe.Pointer(a), unsafe.Sizeof(*a))
}

// DropScore writes what dropping each token alone would do: its score, f32 [batch, kv head, token].
func (s *Set) DropScore(st device.Stream, a *DropScoreArgs, w Workload) error {
	if err := s.CheckDropScore(a); err != nil {
		return err
	}
	return s.run(st, dropScoreWork, w, s.problem(&a.Cache), 0, unsafe.Pointer(a), unsafe.Sizeof(*a))
}

// DropObserveScore scores every token from keys, values and queries alone: what DropObserve and DropScore do, in one launch, to the
// accuracy of fast precision and not bit for bit the same from run to run. Only bundles that Fuses reports have it.
func (s *Set) DropObserveScore(st device.Stream, a *DropObserveScoreArgs, w Workload) error {
	if err := s.CheckDropObserveScore(a); err != nil {
		return err
	}
	return s.run(st, dropObserveScoreWork, w, s.problem(&a.Cache), a.Workspace, unsafe.Pointer(a), unsafe.Sizeof(*a))
}

// Fuses reports whether DropObserveScore is to take the place of DropObserve and DropScore: it is there, and the tuner did not find the two
// faster for that workload.
func (s *Set) Fuses(w Workload) bool {
	return s.prefers(w, dropObserveScoreWork, dropObserveWork, dropScoreWork)
}

// prefers reports whether one work is there to take the place of others, and not known to be slower.
func (s *Set) prefers(w Workload, one workID, others ...workID) bool {
	if s.works[one] == nil {
		return false
	}
	mine, known := s.works[one].us(w)
	var theirs float64
	for _, other := range others {
		us := 0.0
		if s.works[other] != nil {
			us, _ = s.works[other].us(w)
		}
		known = known && us > 0
		theirs += us
	}
	return !known || mine <= theirs
}

// us is what the tuner measured of the choice for a workload, where it did.
func (wk *Work) us(w Workload) (us float64, known bool) {
	point, _ := wk.find(w)
	if point < 0 {
		return 0, false
	}
	us = wk.Points[point].Evidence.MedianUS
	return us, us > 0
}

// DropPool smooths scores along the sequence and marks pinned tokens.
func (s *Set) DropPool(st device.Stream, a *DropPoolArgs, w Workload) error {
	if err := s.CheckDropPool(a); err != nil {
		return err
	}
	return s.run(st, dropPoolWork, w, s.valueProblem(a.Batch, a.KVHeads, a.MaxTokens), 0, unsafe.Pointer(a), unsafe.Sizeof(*a))
}

// DropAllot divides a layer's budget over its heads (adaptive).
func (s *Set) DropAllot(st device.Stream, a *DropAllotArgs, w Workload) error {
	if err := s.CheckDropAllot(a); err != nil {
		return err
	}
	return s.run(st, dropAllotWork, w, s.valueProblem(a.Batch, a.KVHeads, a.MaxTokens), a.Workspace, unsafe.Pointer(a), unsafe.Sizeof(*a))
}

// DropSelect picks the kept tokens of each head, ascending.
func (s *Set) DropSelect(st device.Stream, a *DropSelectArgs, w Workload) error {
	if err := s.CheckDropSelect(a); err != nil {
		return err
	}
	return s.run(st, dropSelectWork, w, s.valueProblem(a.Batch, a.KVHeads, a.MaxTokens), 0, unsafe.Pointer(a), unsafe.Sizeof(*a))
}

// DropPoolSelect picks the kept tokens of each head from scores that it pools on the way: DropPool and DropSelect in one launch, without
// pooled scores in memory. Only bundles that Pools reports have it.
func (s *Set) DropPoolSelect(st device.Stream, a *DropPoolSelectArgs, w Workload) error {
	if err := s.CheckDropSelect(a); err != nil {
		return err
	}
	return s.run(st, dropPoolSelectWork, w, s.valueProblem(a.Batch, a.KVHeads, a.MaxTokens), 0, unsafe.Pointer(a), unsafe.Sizeof(*a))
}

// Pools reports whether DropPoolSelect is to take the place of DropPool and DropSelect: it is there, and the tuner did not find the two
// faster for that workload.
func (s *Set) Pools(w Workload) bool {
	return s.prefers(w, dropPoolSelectWork, dropPoolWork, dropSelectWork)
}

// DropCompact gathers the kept tokens of each head to the front of a cache.
func (s *Set) DropCompact(st device.Stream, a *DropCompactArgs, w Workload) error {
	if err := s.CheckDropCompact(a); err != nil {
		return err
	}
	p := s.problem(&a.Source)
	p.Slots = int64(a.Slots)
	return s.run(st, dropCompactWork, w, p, 0, unsafe.Pointer(a), unsafe.Sizeof(*a))
}

// valueProblem is the problem of a launch over a value a token.
func (s *Set) valueProblem(batch, kvHeads, maxTokens int32) Problem {
	page := int32(s.bundle.Model.PageSize)
	return s.problem(&KVCache{Batch: batch, KVHeads: kvHeads, MaxPages: (maxTokens + page - 1) / page})
}
