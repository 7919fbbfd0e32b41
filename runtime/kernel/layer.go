package kernel

import (
	"errors"
	"unsafe"

	"github.com/kvloom/kvloom/runtime/device"
)

// Layer is the name under which faults of a layer's arguments are reported.
const Layer = "layer"

// LayerArgs are the arguments of one layer's step: the scores that Score writes are those that Select reads, and the lists that Select
// writes are those that Attend reads. With Masses of MassesBytes beside the scores, the same in Score and Select, selection of a batch of
// one is sooner.
type LayerArgs struct {
	Score  PageScoreArgs
	Select PageSelectArgs
	Rerank *PageRerankArgs // where the model reranks: what Select proposes, and Attend reads what it keeps; else nil
	Attend PageAttendArgs
}

// DecodeLayer enqueues score, select and attend of one layer, the last two in one launch where there is a kernel for it, all of its blocks
// run at once, and masses stand beside the scores; of a model that reranks, rerank between the last two, or both in one launch where the
// set Attends. It does what PageScore, PageSelect and PageAttend do one after the other, sooner: each kernel starts while the one before it still runs, and waits for its results (programmatic dependent launch; of older
// GPUs and portable forms, ordinary edges).
//
// So whatever other work on the GPU writes (lengths, block table, query, keys and values) must be written by work that ended before
// the score kernel starts, as it has when it lies before it in the stream. The score kernel itself waits for all that lies before it:
// layer after layer, and whatever follows the layer, meet at ordinary edges.
//
// It enqueues on the caller's stream and thread, allocates nothing, never waits, and may be captured.
func (s *Set) DecodeLayer(st device.Stream, a *LayerArgs, w Workload) error {
	if err := s.CheckLayer(a); err != nil {
		return err
	}
	score, sel, attend := s.problem(&a.Score.Cache), s.selectProblem(&a.Select), s.attendProblem(&a.Attend)
	if err := s.launch(st, scoreWork, w, score, a.Score.Workspace, unsafe.Pointer(&a.Score), unsafe.Sizeof(a.Score), false); err != nil {
		return err
	}
	if a.Rerank == nil {
		// Without masses, pages are known when all are ranked: too late for one launch to gain.
		if index := s.together(selectAttendWork, sel, w); index >= 0 && a.Select.Masses != 0 && a.Select.Batch == 1 {
			return s.selectAttend(st, a, sel, index)
		}
	} else if index := s.together(selectRerankAttendWork, sel, w); index >= 0 {
		return s.selectRerankAttend(st, a, sel, index)
	}
	if err := s.launch(st, selectWork, w, sel, a.Select.Workspace, unsafe.Pointer(&a.Select), unsafe.Sizeof(a.Select), true); err != nil {
		return err
	}
	if a.Rerank != nil {
		if s.Attends() {
			return s.rerankAttend(st, a, w)
		}
		if err := s.launch(st, rerankWork, w, s.rerankProblem(a.Rerank), a.Rerank.Workspace, unsafe.Pointer(a.Rerank), unsafe.Sizeof(*a.Rerank), true); err != nil {
			return err
		}
	}
	return s.launch(st, attendWork, w, attend, a.Attend.Workspace, unsafe.Pointer(&a.Attend), unsafe.Sizeof(a.Attend), true)
}

// CheckLayer checks the arguments of all three kernels, and that each reads what the one before it writes.
func (s *Set) CheckLayer(a *LayerArgs) error {
	if a == nil {
		return &ArgumentError{Layer, "arguments", "are nil"}
	}
	// One by one: joining would allocate where nothing is wrong.
	if err := s.CheckPageScore(&a.Score); err != nil {
		return err
	}
	if err := s.CheckPageSelect(&a.Select); err != nil {
		return err
	}
	if err := s.CheckPageAttend(&a.Attend); err != nil {
		return err
	}
	if a.Rerank != nil {
		if err := s.CheckPageRerank(a.Rerank); err != nil {
			return err
		}
	}
	c := checker{work: Layer}
	if (a.Rerank != nil) != s.bundle.Model.Reranks() {
		c.fail("rerank", "must be given exactly where the model reranks (%t)", s.bundle.Model.Reranks())
		return c.result()
	}
	x, y, z := &a.Score, &a.Select, &a.Attend
	c.selectsGroups(&s.bundle.Model, y, &x.Cache)
	if y.Scores != x.Scores || y.ScoreBatchStride != x.ScoreBatchStride || y.ScoreHeadStride != x.ScoreHeadStride {
		c.fail("select.scores", "and their strides must be those that score writes")
	}
	if y.Masses != 0 && y.Masses != x.Masses {
		c.fail("select.masses", "must be those that score writes, or 0")
	}
	if y.SeqLens != x.Cache.SeqLens || z.Cache.SeqLens != x.Cache.SeqLens {
		c.fail("seq_lens", "must be the same for score, select and attend")
	}
	if y.Batch != x.Cache.Batch || y.KVHeads != x.Cache.KVHeads || z.Cache.Batch != x.Cache.Batch || z.Cache.KVHeads != x.Cache.KVHeads {
		c.fail("batch", "and kv_heads must be the same for score, select and attend")
	}
	if z.Pages == 0 {
		c.fail("attend.pages", "is null; dense attention needs no scores, launch PageAttend alone")
	} else if a.Rerank != nil {
		c.checkReranked(a)
	} else {
		c.sameLists(y, z)
	}
	return c.result()
}

// LayerWorkspaceBytes is WorkspaceBytes of the three works of a layer, in launch order.
func (s *Set) LayerWorkspaceBytes(p Problem) (bytes [3]int64, err error) {
	for i, work := range [3]string{PageScore, PageSelect, PageAttend} {
		n, workErr := s.WorkspaceBytes(work, p)
		bytes[i], err = n, errors.Join(err, workErr)
	}
	return bytes, err
}

func (s *Set) selectProblem(a *PageSelectArgs) Problem {
	p := s.problem(&KVCache{Batch: a.Batch, KVHeads: a.KVHeads, MaxPages: a.MaxPages})
	p.Slots = int64(a.Slots)
	return p
}

func (s *Set) attendProblem(a *PageAttendArgs) Problem {
	p := s.problem(&a.Cache)
	p.Slots = int64(a.Slots)
	return p
}
