package kernel

import (
	"fmt"
	"math"
	"math/bits"
)

// Grade tells how well a kernel fits the workload that it is used for, the best first.
type Grade int

// The grades.
const (
	Exact       Grade = iota // tuned for this very workload
	Bucket                   // tuned for one between the same powers of two
	Nearest                  // tuned for the nearest in log space, at most nearestOctaves away in context and in batch
	DefaultUsed              // no tuned workload is near, or none exists: the untuned default
	Fallback                 // the portable form, on an architecture that the tuned code does not run on
	numGrades
)

func (g Grade) String() string {
	return [...]string{"exact", "bucket", "nearest", "default", "fallback"}[g]
}

// nearestOctaves bounds the distance that a choice is carried: beyond a factor of 16 the balance of launch, latency and bandwidth
// that was tuned is another one.
const nearestOctaves = 4

// Answer is the outcome of a lookup.
type Answer struct {
	Kernel    *Kernel
	Grade     Grade
	Inherited bool   // tuned on another GPU of the same architecture
	Tuned     *Point // nil for default and fallback
	Reason    string // a sentence
}

// Lookup picks the kernel of a work for a workload as on the device that the bundle was tuned on.
func (b *Bundle) Lookup(work string, w Workload) (Answer, error) {
	wk := b.work(work)
	if wk == nil {
		return Answer{}, fmt.Errorf("bundle of %s: no work %q", b.Spec, work)
	}
	point, grade := wk.find(w)
	a := Answer{Grade: grade, Reason: wk.reason(point, grade, w)}
	if point < 0 {
		a.Kernel = &b.Kernels[wk.untuned(w)]
		return a, nil
	}
	a.Tuned = &wk.Points[point]
	a.Kernel = &b.Kernels[a.Tuned.Kernel]
	return a, nil
}

// find returns the index of the point and its grade, or -1 and DefaultUsed. Ties go to the earlier point.
func (wk *Work) find(w Workload) (int, Grade) {
	for i := range wk.Points {
		if wk.Points[i].Workload == w {
			return i, Exact
		}
	}
	best, grade, distance := -1, DefaultUsed, math.Inf(1)
	for i := range wk.Points {
		p := wk.Points[i].Workload
		dc, db := octaves(p.Context, w.Context), octaves(p.Batch, w.Batch)
		g := Nearest
		if bucket(p.Context) == bucket(w.Context) && bucket(p.Batch) == bucket(w.Batch) {
			g = Bucket
		}
		if dc > nearestOctaves || db > nearestOctaves {
			continue
		}
		if g < grade || g == grade && dc+db < distance {
			best, grade, distance = i, g, dc+db
		}
	}
	return best, grade
}

// untuned is the kernel for a workload that no tuned point is near: the default of the nearest workload that has its own, as near as a choice
// would be carried, else the work's.
func (wk *Work) untuned(w Workload) int {
	index, distance := wk.Default, math.Inf(1)
	for i := range wk.Defaults {
		d := wk.Defaults[i].Workload
		dc, db := octaves(d.Context, w.Context), octaves(d.Batch, w.Batch)
		if dc <= nearestOctaves && db <= nearestOctaves && dc+db < distance {
			index, distance = wk.Defaults[i].Kernel, dc+db
		}
	}
	return index
}

// kernels calls do with every kernel that a lookup may pick, some of them twice.
func (wk *Work) kernels(do func(index int)) {
	do(wk.Default)
	for i := range wk.Defaults {
		do(wk.Defaults[i].Kernel)
	}
	for i := range wk.Points {
		do(wk.Points[i].Kernel)
	}
}

// workspaceBytes is what the largest of them needs.
func (b *Bundle) workspaceBytes(wk *Work, p Problem) (n int64) {
	wk.kernels(func(i int) { n = max(n, b.Kernels[i].Geometry.WorkspaceBytes(p)) })
	return n
}

// octaves is |log2(a/b)|; numbers below 1 count as 1.
func octaves(a, b int) float64 { return math.Abs(math.Log2(float64(max(a, 1)) / float64(max(b, 1)))) }

// bucket is the power of two at or above n: 1, 2, 3-4, 5-8, ...
func bucket(n int) int { return bits.Len(uint(max(n, 1) - 1)) }

func (wk *Work) reason(point int, g Grade, w Workload) string {
	if point < 0 {
		if len(wk.Points) == 0 {
			return wk.Name + " was not tuned: the default is used"
		}
		return fmt.Sprintf("no tuned workload of %s is within a factor of %d of context %d, batch %d: the default is used",
			wk.Name, 1<<nearestOctaves, w.Context, w.Batch)
	}
	p := wk.Points[point].Workload
	switch g {
	case Exact:
		return fmt.Sprintf("tuned for context %d, batch %d", p.Context, p.Batch)
	case Bucket:
		return fmt.Sprintf("context %d, batch %d lies in one bucket with the tuned %d, %d", w.Context, w.Batch, p.Context, p.Batch)
	}
	return fmt.Sprintf("the tuned workload nearest to context %d, batch %d is %d, %d", w.Context, w.Batch, p.Context, p.Batch)
}
