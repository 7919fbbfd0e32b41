package main

import (
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"time"
	"unsafe"

	"github.com/kvloom/kvloom/internal/devices"
	"github.com/kvloom/kvloom/runtime/device"
	"github.com/kvloom/kvloom/runtime/kernel"
)

// decoder holds one sequence's cache on a device and two graphs over it: sparse (score, select, attend) and dense (attend to all pages).
type decoder struct {
	dev    device.Device
	set    *kernel.Set
	model  kernel.Model
	stream device.Stream
	cache  *cache

	owned                                                      []device.Ptr
	lens, q, pages, counts, out, lse, denseOut, scores, masses device.Ptr
	table                                                      []int32
	maxPages                                                   int
	sparse, dense                                              device.Graph
	path                                                       kernel.Path // which of the two a host would serve with
}

// newDecoder opens the device and the bundle, uploads the cache, builds its summaries and captures both graphs.
func newDecoder(dev, path string, c *cache, talk io.Writer) (*decoder, error) {
	d := &decoder{cache: c}
	opened, err := devices.Open(dev)
	if err != nil {
		return nil, err
	}
	d.dev = opened.Device
	fmt.Fprintf(talk, "device: %s\n", opened.Why)
	start := time.Now()
	bundle, err := kernel.Open(path)
	if err != nil {
		return nil, errors.Join(err, d.close())
	}
	if d.set, err = bundle.Load(d.dev); err != nil {
		return nil, errors.Join(err, d.close())
	}
	d.model = d.set.Model()
	fmt.Fprintf(talk, "bundle: %s, opened and loaded in %.1f ms\n", bundle.Spec, float64(time.Since(start).Microseconds())/1000)
	for _, w := range d.set.Warnings() {
		fmt.Fprintln(talk, "warning:", w)
	}
	if err := d.fits(); err != nil {
		return nil, errors.Join(err, d.close())
	}
	if d.stream, err = d.dev.NewStream(); err != nil {
		return nil, errors.Join(err, d.close())
	}
	if err := d.prepare(); err != nil {
		return nil, errors.Join(err, d.close())
	}
	// Both graphs are captured here, to be compared; a host captures the one that is faster. Either is right at every length.
	fmt.Fprintf(talk, "a host would capture, for %d tokens, %s\n", c.tokens, d.path)
	return d, nil
}

// fits checks that the cache is one of the model that the kernels were made for.
func (d *decoder) fits() error {
	m, c := d.model, d.cache
	if m.DType != "bf16" || m.HeadDim != c.dim || m.Group() != c.queryHeads/c.kvHeads {
		return fmt.Errorf("the bundle is for %s, head dim %d, group %d; the data is bf16, head dim %d, group %d",
			m.DType, m.HeadDim, m.Group(), c.dim, c.queryHeads/c.kvHeads)
	}
	return nil
}

func (d *decoder) prepare() error {
	m, c := d.model, d.cache
	k, v, table := c.paged(m.PageSize, rand.New(rand.NewPCG(7, 11)))
	d.table, d.maxPages = table, len(table)
	lists := m.Lists(c.kvHeads)
	kv, err := d.kvCache(k, v)
	if err != nil {
		return err
	}
	heads := int64(c.queryHeads * c.dim)
	if err := d.buffers(
		buffer{&d.q, heads * 2}, buffer{&d.scores, int64(c.queryHeads*d.maxPages) * 4},
		buffer{&d.masses, kernel.MassesBytes(c.queryHeads)}, buffer{&d.pages, int64(lists*m.Slots) * 4},
		buffer{&d.counts, int64(lists) * 4}, buffer{&d.out, heads * 2}, buffer{&d.denseOut, heads * 2}, buffer{&d.lse, int64(c.queryHeads) * 4}); err != nil {
		return err
	}
	summaries, err := d.build(kv)
	if err != nil {
		return err
	}
	if d.sparse, err = d.capture(func(w kernel.Workload) error { return d.launchSparse(kv, summaries, w) }); err != nil {
		return err
	}
	if d.dense, err = d.capture(func(w kernel.Workload) error { return d.launchDense(kv, w) }); err != nil {
		return err
	}
	d.path = d.set.Path(d.workload())
	return nil
}

// kvCache uploads the paged cache and describes it.
func (d *decoder) kvCache(k, v []uint16) (kernel.KVCache, error) {
	c, page := d.cache, int64(d.model.PageSize)
	kv := kernel.KVCache{TableStride: int64(d.maxPages), Batch: 1, KVHeads: int32(c.kvHeads), MaxPages: int32(d.maxPages),
		KTokenStride: int64(c.dim), KHeadStride: page * int64(c.dim), KBlockStride: page * int64(c.dim*c.kvHeads)}
	kv.VTokenStride, kv.VHeadStride, kv.VBlockStride = kv.KTokenStride, kv.KHeadStride, kv.KBlockStride
	for _, u := range []struct {
		to   *device.Ptr
		data []byte
	}{{&kv.K, asBytes(k)}, {&kv.V, asBytes(v)}, {&kv.BlockTable, asBytes(d.table)}, {&d.lens, asBytes([]int32{int32(c.tokens)})}} {
		if err := d.buffers(buffer{u.to, int64(len(u.data))}); err != nil {
			return kv, err
		}
		if err := d.dev.Write(*u.to, u.data); err != nil {
			return kv, err
		}
	}
	kv.SeqLens = d.lens
	return kv, nil
}

// build summarises every complete page of the prompt and returns the summaries.
func (d *decoder) build(kv kernel.KVCache) (device.Ptr, error) {
	c, bytes := d.cache, int64(d.model.RecordBytes)
	var summaries, built device.Ptr
	if err := d.buffers(buffer{&summaries, d.model.SummaryBytes(d.maxPages, c.kvHeads)}, buffer{&built, 4}); err != nil {
		return 0, err
	}
	ws, err := d.workspace(kernel.PageSummary)
	if err != nil {
		return 0, err
	}
	args := &kernel.PageSummaryArgs{Cache: kv, Summaries: summaries, BuiltLens: built, Workspace: ws,
		SummaryBlockStride: int64(c.kvHeads) * bytes, SummaryHeadStride: bytes}
	if err := d.set.PageSummary(d.stream, args, d.workload(), d.maxPages); err != nil {
		return 0, err
	}
	return summaries, d.stream.Synchronize()
}

func (d *decoder) workload() kernel.Workload {
	return kernel.Workload{Context: d.cache.tokens, Batch: 1}
}

func (d *decoder) launchSparse(kv kernel.KVCache, summaries device.Ptr, w kernel.Workload) error {
	c, m, bytes := d.cache, d.model, int64(d.model.RecordBytes)
	lists := int64(m.Lists(c.kvHeads))
	var ws [3]device.Ptr
	for i, work := range []string{kernel.PageScore, kernel.PageSelect, kernel.PageAttend} {
		var err error
		if ws[i], err = d.workspace(work); err != nil {
			return err
		}
	}
	layer := &kernel.LayerArgs{}
	layer.Score = kernel.PageScoreArgs{Cache: kv, Q: d.q, Summaries: summaries, Scores: d.scores, Masses: d.masses, Workspace: ws[0],
		QBatchStride: int64(c.queryHeads * c.dim), QHeadStride: int64(c.dim),
		SummaryBlockStride: int64(c.kvHeads) * bytes, SummaryHeadStride: bytes,
		ScoreBatchStride: int64(c.queryHeads * d.maxPages), ScoreHeadStride: int64(d.maxPages),
		SoftmaxScale: float32(m.SoftmaxScale), LogitSoftcap: float32(m.LogitSoftcap)}
	layer.Select = kernel.PageSelectArgs{Scores: d.scores, Masses: d.masses, SeqLens: d.lens, Pages: d.pages, Counts: d.counts, Workspace: ws[1],
		ScoreBatchStride: layer.Score.ScoreBatchStride, ScoreHeadStride: layer.Score.ScoreHeadStride,
		PagesBatchStride: lists * int64(m.Slots), PagesListStride: int64(m.Slots),
		Batch: 1, KVHeads: int32(c.kvHeads), MaxPages: int32(d.maxPages), Slots: int32(m.Slots),
		SinkPages: int32(m.SinkPages), RecentPages: int32(m.RecentPages)}
	layer.Attend = *d.attendArgs(kv, d.out, ws[2])
	layer.Attend.Pages, layer.Attend.Counts = d.pages, d.counts
	layer.Attend.PagesBatchStride, layer.Attend.PagesListStride = layer.Select.PagesBatchStride, layer.Select.PagesListStride
	return d.set.DecodeLayer(d.stream, layer, w)
}

func (d *decoder) launchDense(kv kernel.KVCache, w kernel.Workload) error {
	ws, err := d.workspace(kernel.Dense)
	if err != nil {
		return err
	}
	return d.set.PageAttend(d.stream, d.attendArgs(kv, d.denseOut, ws), w)
}

func (d *decoder) attendArgs(kv kernel.KVCache, out, ws device.Ptr) *kernel.PageAttendArgs {
	row := int64(d.cache.queryHeads * d.cache.dim)
	return &kernel.PageAttendArgs{Cache: kv, Q: d.q, Out: out, LSE: d.lse, Workspace: ws, QBatchStride: row, QHeadStride: int64(d.cache.dim),
		OutBatchStride: row, OutHeadStride: int64(d.cache.dim), Slots: int32(d.model.Slots),
		SoftmaxScale: float32(d.model.SoftmaxScale), LogitSoftcap: float32(d.model.LogitSoftcap)}
}

// capture makes a graph of what launch enqueues. Memory is allocated before: nothing in a graph may allocate.
func (d *decoder) capture(launch func(kernel.Workload) error) (device.Graph, error) {
	if err := launch(d.workload()); err != nil { // once outside: what a first launch sets up must not fall into the capture
		return nil, err
	}
	if err := d.stream.Synchronize(); err != nil {
		return nil, err
	}
	if err := d.stream.BeginCapture(); err != nil {
		return nil, err
	}
	err := launch(d.workload())
	g, endErr := d.stream.EndCapture()
	return g, errors.Join(err, endErr)
}

// buffer is a place for the address of so many bytes, zeroed.
type buffer struct {
	at    *device.Ptr
	bytes int64
}

func (d *decoder) buffers(list ...buffer) error {
	for _, b := range list {
		p, err := d.dev.Alloc(b.bytes)
		if err != nil {
			return err
		}
		d.owned = append(d.owned, p)
		*b.at = p
		if err := d.dev.Fill(p, 0, b.bytes); err != nil {
			return err
		}
	}
	return nil
}

func (d *decoder) workspace(work string) (device.Ptr, error) {
	n, err := d.set.WorkspaceBytes(work, d.set.ProblemOf(1, d.cache.kvHeads, d.maxPages, d.maxPages))
	if err != nil || n == 0 {
		return 0, err
	}
	var p device.Ptr
	return p, d.buffers(buffer{&p, n})
}

func (d *decoder) close() error {
	var err error
	for _, g := range []device.Graph{d.sparse, d.dense} {
		if g != nil {
			err = errors.Join(err, g.Destroy())
		}
	}
	for _, p := range d.owned {
		err = errors.Join(err, d.dev.Free(p))
	}
	if d.stream != nil {
		err = errors.Join(err, d.stream.Destroy())
	}
	if d.set != nil {
		err = errors.Join(err, d.set.Unload())
	}
	if d.dev != nil {
		err = errors.Join(err, d.dev.Close())
	}
	return err
}

func asBytes[T uint16 | int32 | float32](s []T) []byte {
	return unsafe.Slice((*byte)(unsafe.Pointer(&s[0])), len(s)*int(unsafe.Sizeof(s[0])))
}
