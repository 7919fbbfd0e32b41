package measure

import (
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"

	"github.com/kvloom/kvloom/gen/plan"
	"github.com/kvloom/kvloom/internal/launch"
	"github.com/kvloom/kvloom/internal/reference"
	"github.com/kvloom/kvloom/runtime/device"
	"github.com/kvloom/kvloom/runtime/kernel"
	"github.com/kvloom/kvloom/specs"
)

// coldFactor is how many L2 sizes of input a ring of buffer sets must touch before the first set is used again, so that it was evicted.
const coldFactor = 2.2

// maxSets bounds a ring of tiny inputs: beyond it a graph would have thousands of nodes.
const maxSets = 512

// Rig holds the buffers of one workload on a device: rings of them, each larger than twice the L2. Contents are random and plausible
// (finite logits, live block tables in random order); correctness is not its business.
type Rig struct {
	Dev      device.Device
	Stream   device.Stream
	Spec     *specs.Spec
	Workload specs.Workload
	Problem  launch.Problem
	Warm     bool  // one set only, so that the L2 holds it where it fits
	Build    Build // what page_summary finds to do; empty: a prompt

	rand   *rand.Rand
	record specs.Record
	owned  []device.Ptr

	table, lens, q, out, lse device.Ptr
	pool                     ring // K then V, one set
	poolV                    int64
	stored                   ring // quantised pages
	summaries                ring
	wide, wideCounts         ring // candidates of a rerank
	scores, masses           ring // masses: none where scores are of several requests
	// alone is where page_score writes outside of a chain, without masses, which are for a page_select behind it: scores and masses that
	// page_select is timed with stay as they are.
	alone         ring
	pages, counts ring
	// own, ownCounts are where page_select writes outside of a chain: the lists that attention and a rerank are timed with stay as they are.
	own, ownCounts ring
	built          ring
	drop           dropRig
}

// ring is one allocation of equal sets.
type ring struct {
	base device.Ptr
	each int64 // bytes of one set
	n    int
}

func (r ring) at(i int) device.Ptr { return r.base + device.Ptr(int64(i%r.n)*r.each) }

// NewRig makes an empty rig; buffers are made when a step first needs them.
func NewRig(dev device.Device, s *specs.Spec, w specs.Workload) (*Rig, error) {
	stream, err := dev.NewStream()
	if err != nil {
		return nil, err
	}
	maxPages := int64(s.Groups(w.Context) * s.SummaryPages()) // rows of the table are whole groups
	lists := int64(s.Attention.KVHeads)
	if s.Locks.Combine == "per_head" {
		lists = int64(s.Attention.QueryHeads)
	}
	r := &Rig{Dev: dev, Stream: stream, Spec: s, Workload: w, rand: rand.New(rand.NewPCG(1, 2)),
		record: s.Record(),
		Problem: launch.Problem{Batch: int64(w.Batch), KVHeads: int64(s.Attention.KVHeads), QHeads: int64(s.Attention.QueryHeads),
			Lists: lists, MaxPages: maxPages, NewPages: maxPages, Slots: int64(s.Slots()), SMs: int64(dev.Info().SMs)}}
	return r, r.common()
}

// Close frees all buffers.
func (r *Rig) Close() error {
	err := r.Stream.Synchronize()
	for _, p := range r.owned {
		err = errors.Join(err, r.Dev.Free(p))
	}
	r.owned = nil
	return errors.Join(err, r.Stream.Destroy())
}

func (r *Rig) alloc(bytes int64) (device.Ptr, error) {
	p, err := r.Dev.Alloc(max(bytes, 16))
	if err == nil {
		r.owned = append(r.owned, p)
	}
	return p, err
}

// sets is how many sets of so many bytes keep the cache cold.
func (r *Rig) sets(bytes int64) int {
	if r.Warm {
		return 1
	}
	n := int(math.Ceil(coldFactor * float64(r.Dev.Info().L2Bytes) / float64(max(bytes, 1))))
	return min(max(n, 2), maxSets)
}

func (r *Rig) newRing(each int64, n int) (ring, error) {
	each = (each + 255) / 256 * 256
	base, err := r.alloc(each * int64(n))
	return ring{base, each, n}, err
}

// common makes what every family reads: lengths, a shuffled block table, queries, outputs.
func (r *Rig) common() error {
	p := r.Problem
	blocks := r.rand.Perm(int(p.Batch * p.MaxPages))
	table := make([]int32, len(blocks))
	for i, b := range blocks {
		table[i] = int32(b)
	}
	lens := slices.Repeat([]int32{int32(r.Workload.Context)}, int(p.Batch))
	dim := int64(r.Spec.Attention.HeadDim)
	var err error
	if r.table, err = r.upload(bytesOf(table)); err != nil {
		return err
	}
	if r.lens, err = r.upload(bytesOf(lens)); err != nil {
		return err
	}
	if r.q, err = r.upload(r.halves(int(p.Batch*p.QHeads*dim), 1)); err != nil {
		return err
	}
	if r.out, err = r.alloc(p.Batch * p.QHeads * dim * 2); err != nil {
		return err
	}
	r.lse, err = r.alloc(p.Batch * p.QHeads * 4)
	return err
}

func (r *Rig) upload(b []byte) (device.Ptr, error) {
	p, err := r.alloc(int64(len(b)))
	if err != nil {
		return 0, err
	}
	return p, r.Dev.Write(p, b)
}

// dtype is that of the cache's rows.
func (r *Rig) dtype() reference.DType { return reference.DType(r.Spec.Cache.RowType()) }

// halves makes n random normal numbers in the 16-bit type of queries.
func (r *Rig) halves(n int, sigma float64) []byte {
	dtype := r.dtype().Compute()
	out := make([]uint16, n)
	for i := range out {
		out[i] = dtype.Bits(r.rand.NormFloat64() * sigma)
	}
	return bytesOf(out)
}

// elements makes n random normal numbers in the cache's type.
func (r *Rig) elements(n int, sigma float64) []byte {
	dtype := r.dtype()
	if dtype.Size() == 2 {
		return r.halves(n, sigma)
	}
	out := make([]byte, n)
	for i := range out {
		out[i] = byte(dtype.Bits(r.rand.NormFloat64() * sigma))
	}
	return out
}

// fill tiles a buffer with a pattern by copies that double.
func (r *Rig) fill(dst device.Ptr, bytes int64, pattern []byte) error {
	n := min(int64(len(pattern)), bytes)
	if err := r.Dev.Write(dst, pattern[:n]); err != nil {
		return err
	}
	for n < bytes {
		m := min(n, bytes-n)
		if err := r.Stream.CopyAsync(dst+device.Ptr(n), dst, m); err != nil {
			return err
		}
		n += m
	}
	return r.Stream.Synchronize()
}

// needPool makes the KV pool: n sets for work that reads all of it, one for work that reads chosen pages. Behind the last V lie as many
// blocks as shifted may go beyond it.
func (r *Rig) needPool(whole bool) error {
	p := r.Problem
	k := p.Batch * p.MaxPages * int64(r.Spec.Cache.PageSize) * p.KVHeads * int64(r.Spec.Attention.HeadDim) * int64(r.dtype().Size())
	n := 1
	if whole {
		n = r.sets(k)
	}
	if r.pool.n >= n {
		return nil
	}
	each := (2*k + 255) / 256 * 256
	bytes := each*int64(n) + int64(r.sets(r.touchedBytes()))*r.blockBytes()
	base, err := r.alloc(bytes)
	if err != nil {
		return err
	}
	r.pool, r.poolV = ring{base, each, n}, k
	return r.fill(base, bytes, r.elements(1<<21, 1))
}

// cache describes set i of the pool, laid out [block, kv head, token, dim].
func (r *Rig) cache(i int) kernel.KVCache {
	a, page := r.Spec.Attention, int64(r.Spec.Cache.PageSize)
	d := int64(a.HeadDim)
	c := kernel.KVCache{BlockTable: r.table, SeqLens: r.lens, TableStride: r.Problem.MaxPages,
		KBlockStride: page * d * int64(a.KVHeads), KTokenStride: d, KHeadStride: page * d,
		Batch: int32(r.Problem.Batch), KVHeads: int32(a.KVHeads), MaxPages: int32(r.Problem.MaxPages), KScale: 1, VScale: 1}
	c.VBlockStride, c.VTokenStride, c.VHeadStride = c.KBlockStride, c.KTokenStride, c.KHeadStride
	if r.pool.n > 0 {
		c.K = r.pool.at(i)
		c.V = c.K + device.Ptr(r.poolV)
	}
	r.describeStore(&c, i)
	return c
}

// blockBytes is what a block of K or of V takes of the pool, all KV heads.
func (r *Rig) blockBytes() int64 {
	return int64(r.Spec.Cache.PageSize) * r.Problem.KVHeads * int64(r.Spec.Attention.HeadDim) * int64(r.dtype().Size())
}

// shifted is the cache for work that chooses pages by scores and reads them in one launch, set i of so many. Outside of a chain all launches
// choose the same pages, by the one buffer of scores: so that these come from memory each time, as in a decoding step, where each layer
// has a cache of its own, set i lies i blocks further on in the pool.
func (r *Rig) shifted(i, sets int) kernel.KVCache {
	c := r.cache(i)
	c.K += device.Ptr(int64(i%sets) * r.blockBytes())
	c.V += device.Ptr(int64(i%sets) * r.blockBytes())
	return c
}

// Step is one work of a rig, ready to launch on any set.
type Step struct {
	Work      Work
	Sets      int
	workspace device.Ptr
	launch    func(i int) error
	// dependent, where not nil, is the geometry of a kernel that may start before the one before it has ended: inside a chain, and alone,
	// where the launch before it is a copy of itself, only where that copy lets nothing start early.
	dependent *device.Launch
	// chained, where not nil, is true while the step is launched as a link of a chain.
	chained *bool
	early   bool // alone too
	// reset runs before each replay, outside the timed part.
	reset func() error
}

// Launch enqueues the work on set i, where the rig's buffers are rings; any i will do.
func (s *Step) Launch(i int) error { return s.launch(i) }

// Step prepares a candidate's kernel. Its workspace is zeroed once, as a caller would.
func (r *Rig) Step(work Work, c plan.Candidate, fn device.Function) (*Step, error) {
	if err := device.Prepare(fn, c.Geometry.DynamicShared, c.Geometry.Cluster); err != nil {
		return nil, err
	}
	p := r.Problem
	if r.reranks() && (work == Work(plan.PageSelect) || work == Work(plan.PageRerank) || work == Work(plan.PageRerankAttend) || work == Work(plan.PageSelectRerankAttend)) {
		p.Slots = int64(r.Spec.Proposals())
	}
	workspace := c.Geometry.WorkspaceBytes(p)
	ws, err := r.alloc(workspace)
	if err != nil {
		return nil, err
	}
	if err := r.Dev.Fill(ws, 0, max(workspace, 16)); err != nil {
		return nil, err
	}
	if work == Work(plan.DropCompact) {
		p.Slots = int64(r.kept())
	}
	if work == Work(plan.PageSummary) && r.Build != BuildPrompt && r.Build != "" {
		p.NewPages = 1
	}
	geometry, err := c.Geometry.Launch(p)
	if err != nil {
		return nil, err
	}
	l := &geometry
	s, err := r.stepOf(work, fn, l, ws)
	if err == nil {
		s.workspace = ws
		if l.Dependent {
			s.dependent, s.early, l.Dependent = l, !links(work), !links(work)
		}
	}
	return s, err
}

// links reports whether a work lets the launch behind it start before it has ended.
func links(work Work) bool {
	switch work {
	case Work(plan.PageScore), Work(plan.PageSelect), Work(plan.PageRerank), Work(plan.PageRerankAttend), Work(plan.PageSelectRerankAttend), Work(plan.PageAttend), Dense, Work(plan.PageSelectAttend),
		Work(plan.DropPool), Work(plan.DropAllot), Work(plan.DropSelect), Work(plan.DropPoolSelect), Work(plan.DropCompact):
		return true
	}
	return false
}

// release frees a step's workspace: a tuner makes thousands of steps on one rig.
func (r *Rig) release(s *Step) error {
	r.owned = slices.DeleteFunc(r.owned, func(p device.Ptr) bool { return p == s.workspace })
	return r.Dev.Free(s.workspace)
}

func (r *Rig) stepOf(work Work, fn device.Function, l *device.Launch, ws device.Ptr) (*Step, error) {
	switch work {
	case Work(plan.PageSummary):
		return r.summaryStep(fn, l, ws)
	case Work(plan.PageScore):
		return r.scoreStep(fn, l, ws)
	case Work(plan.PageSelect):
		return r.selectStep(fn, l, ws)
	case Work(plan.PageAttend), Dense:
		return r.attendStep(work, fn, l, ws)
	case Work(plan.PageSelectAttend):
		return r.selectAttendStep(fn, l, ws)
	case Work(plan.PageRerank):
		return r.rerankStep(fn, l, ws)
	case Work(plan.PageRerankAttend):
		return r.rerankAttendStep(fn, l)
	case Work(plan.PageSelectRerankAttend):
		return r.selectRerankStep(fn, l, ws)
	case Work(plan.KVQuantize):
		return r.quantizeStep(fn, l, ws)
	case Work(plan.QueryMoment):
		return r.momentStep(fn, l)
	case Work(plan.QueryFactor):
		return r.factorStep(fn, l)
	case Work(plan.DropObserve):
		return r.observeStep(fn, l, ws)
	case Work(plan.DropScore):
		return r.dropScoreStep(fn, l)
	case Work(plan.DropObserveScore):
		return r.observeScoreStep(fn, l, ws)
	case Work(plan.DropPool):
		return r.poolStep(fn, l)
	case Work(plan.DropAllot):
		return r.allotStep(fn, l, ws)
	case Work(plan.DropSelect):
		return r.keepStep(fn, l, &r.drop.pooled)
	case Work(plan.DropPoolSelect):
		return r.keepStep(fn, l, &r.drop.scores)
	case Work(plan.DropCompact):
		return r.compactStep(fn, l)
	}
	return nil, fmt.Errorf("BUG: measure: unknown work %q", work)
}
