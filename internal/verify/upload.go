package verify

import (
	"errors"

	"github.com/kvloom/kvloom/internal/reference"
	"github.com/kvloom/kvloom/runtime/device"
	"github.com/kvloom/kvloom/runtime/kernel"
)

// DeviceProblem is a problem's inputs in device memory.
type DeviceProblem struct {
	*Problem
	Arena          *Arena
	K, V           *Buffer // one and the same where the cache is joint
	Table, SeqLens *Buffer
	HeadLens       *Buffer // nil without head lengths
	RowTable       *Buffer // of a KIVI cache, as Store
	Store          *SummaryBuffer
	Q              *Buffer
	QRows          Rows
	Centre         device.Ptr // mean keys that 4-bit centroids are stored less, or 0
}

// Rows describes [batch, row, element] data with strides in elements.
type Rows struct {
	Batch, Rows, Width     int
	BatchStride, RowStride int64
}

// Rows gives the strides of a [batch, rows, width] tensor of elements of size bytes: dense, or in a padded case with gaps of
// 16 bytes between rows and of 48 between requests.
func (p *Problem) Rows(rows, width, size int) Rows {
	r := Rows{Batch: p.Cache.Batch(), Rows: rows, Width: width, RowStride: int64(width)}
	if p.Case.Layout == Padded {
		r.RowStride += int64(16 / size)
	}
	r.BatchStride = int64(rows) * r.RowStride
	if p.Case.Layout == Padded {
		r.BatchStride += int64(48 / size)
	}
	return r
}

// Elements is how many elements a buffer for the rows needs.
func (r Rows) Elements() int64 {
	return int64(r.Batch-1)*r.BatchStride + int64(r.Rows-1)*r.RowStride + int64(r.Width)
}

// At is the element at which a row begins.
func (r Rows) At(batch, row int) int64 { return int64(batch)*r.BatchStride + int64(row)*r.RowStride }

// Gaps calls f for every element of the buffer that belongs to no row.
func (r Rows) Gaps(f func(element int64) bool) {
	owned := make([]bool, r.Elements())
	for b := range r.Batch {
		for row := range r.Rows {
			at := r.At(b, row)
			for i := range int64(r.Width) {
				owned[at+i] = true
			}
		}
	}
	for i, o := range owned {
		if !o && !f(int64(i)) {
			return
		}
	}
}

// Upload writes the problem's inputs into an arena.
func (p *Problem) Upload(a *Arena) (*DeviceProblem, error) {
	d := &DeviceProblem{Problem: p, Arena: a}
	a.spread = p.Case.Layout == FarApart
	var err error
	if d.K, d.V, err = uploadCache(a, p.Cache); err != nil {
		return nil, err
	}
	if d.Table, err = a.Input("block_table", BytesOfInt32(p.Cache.Table)); err != nil {
		return nil, err
	}
	if d.SeqLens, err = a.Input("seq_lens", BytesOfInt32(p.Cache.SeqLens)); err != nil {
		return nil, err
	}
	if p.Cache.HeadLens != nil {
		if d.HeadLens, err = a.Input("head_lens", BytesOfInt32(p.Cache.HeadLens)); err != nil {
			return nil, err
		}
	}
	if err = d.uploadKivi(); err != nil {
		return nil, err
	}
	if p.Cache.Centre != nil {
		var all []float32
		for _, head := range p.Cache.Centre {
			for _, x := range head {
				all = append(all, float32(x))
			}
		}
		mean, err := a.Input("centre", BytesOfFloat32(all))
		if err != nil {
			return nil, err
		}
		d.Centre = mean.Ptr()
	}
	d.QRows = p.Rows(p.Q.Heads, p.Q.HeadDim, 2)
	q := make([]uint16, d.QRows.Elements())
	poisonNaN(q)
	for b := range d.QRows.Batch {
		for h := range p.Q.Heads {
			at := (b*p.Q.Heads + h) * p.Q.HeadDim
			copy(q[d.QRows.At(b, h):], p.Q.Bits[at:at+p.Q.HeadDim])
		}
	}
	d.Q, err = a.Input("q", BytesOfUint16(q))
	return d, err
}

// WriteLens updates the lengths on the device to those of the launch that SetLaunch chose.
func (d *DeviceProblem) WriteLens() error {
	err := d.SeqLens.Write(BytesOfInt32(d.Cache.SeqLens))
	if d.HeadLens != nil {
		err = errors.Join(err, d.HeadLens.Write(BytesOfInt32(d.Cache.HeadLens)), d.HeadLens.Freeze())
	}
	return errors.Join(err, d.SeqLens.Freeze())
}

// Args is the cache as kernels take it.
func (d *DeviceProblem) Args() kernel.KVCache {
	c := d.Cache
	size := int64(c.DType.Size())
	args := kernel.KVCache{
		K: d.K.Ptr() + device.Ptr(size*c.KBase), V: d.V.Ptr() + device.Ptr(size*c.VBase),
		BlockTable: d.Table.Ptr(), SeqLens: d.SeqLens.Ptr(),
		KBlockStride: c.KStrides.Block, KTokenStride: c.KStrides.Token, KHeadStride: c.KStrides.Head,
		VBlockStride: c.VStrides.Block, VTokenStride: c.VStrides.Token, VHeadStride: c.VStrides.Head,
		TableStride: int64(c.TableStride), Batch: int32(c.Batch()), KVHeads: int32(c.KVHeads), MaxPages: int32(c.MaxPages),
		KScale: float32(c.KScale), VScale: float32(c.VScale),
	}
	if d.HeadLens != nil {
		args.HeadLens = d.HeadLens.Ptr()
	}
	if d.Store != nil {
		args.RowTable, args.Store = d.RowTable.Ptr(), d.Store.Ptr()
		args.StoreBlockStride, args.StoreHeadStride = d.Store.BlockStride, d.Store.HeadStride
	}
	return args
}

// uploadCache writes K and V by their strides. What lies between is NaN, so that a wrong stride shows.
func uploadCache(a *Arena, c *reference.Cache) (k, v *Buffer, err error) {
	kElements, vElements := c.Elements()
	size := int64(c.DType.Size())
	if c.Joint {
		if k, err = a.Alloc("kv", size*kElements); err != nil {
			return nil, nil, err
		}
		err = writePlanes(k, plane{c, c.BlockKeys, c.KOffset}, plane{c, c.BlockValues, c.VOffset})
		return k, k, err
	}
	if k, err = a.Alloc("k", size*kElements); err != nil {
		return nil, nil, err
	}
	if v, err = a.Alloc("v", size*vElements); err != nil {
		return nil, nil, err
	}
	return k, v, errors.Join(writePlanes(k, plane{c, c.BlockKeys, c.KOffset}), writePlanes(v, plane{c, c.BlockValues, c.VOffset}))
}

// plane is K or V of a cache.
type plane struct {
	cache  *reference.Cache
	page   func(id int32, head int) []uint16
	offset func(id int32, token, head int) int64
}

// writePlanes writes one image of the buffer, or, where it is an address space with a few blocks in it, one image a block.
func writePlanes(b *Buffer, planes ...plane) error {
	dtype := planes[0].cache.DType
	size := int64(dtype.Size())
	if !b.sparse() {
		image := make([]uint16, b.Bytes/size)
		poisonNaN(image)
		for _, p := range planes {
			for _, id := range p.cache.Blocks() {
				p.put(image, id, 0)
			}
		}
		return errors.Join(b.Write(bytesOfElements(dtype, image)), b.Freeze())
	}
	for _, p := range planes {
		for _, id := range p.cache.Blocks() {
			first := p.offset(id, 0, 0)
			image := make([]uint16, p.offset(id, p.cache.PageSize-1, p.cache.KVHeads-1)+int64(p.cache.HeadDim)-first)
			poisonNaN(image)
			p.put(image, id, first)
			if err := b.WriteAt(bytesOfElements(dtype, image), size*first); err != nil {
				return err
			}
		}
	}
	return nil
}

// put writes one block into an image whose first element is element first of the buffer.
func (p plane) put(image []uint16, id int32, first int64) {
	d := p.cache.HeadDim
	for h := range p.cache.KVHeads {
		page := p.page(id, h)
		for t := range p.cache.PageSize {
			copy(image[p.offset(id, t, h)-first:], page[t*d:(t+1)*d])
		}
	}
}

// SummaryBuffer is device memory for records.
type SummaryBuffer struct {
	*Buffer
	BlockStride, HeadStride int64 // bytes
}

// NewSummaryBuffer allocates records for every block that the cache stores, with gaps between heads and between blocks, filled
// with 0xff: every scale in it is NaN.
func (d *DeviceProblem) NewSummaryBuffer() (*SummaryBuffer, error) {
	return d.newRecords("summaries", d.Shape.Layout().Bytes)
}

func (d *DeviceProblem) newRecords(name string, bytes int) (*SummaryBuffer, error) {
	s := &SummaryBuffer{HeadStride: int64(bytes) + 16}
	s.BlockStride = int64(d.Cache.KVHeads)*s.HeadStride + 32
	var top int32
	for _, id := range d.Cache.Blocks() {
		top = max(top, id)
	}
	var err error
	if s.Buffer, err = d.Arena.Alloc(name, int64(top+1)*s.BlockStride); err != nil || s.sparse() {
		return s, err
	}
	return s, s.Fill(0xff)
}

// At is the byte at which a record begins.
func (s *SummaryBuffer) At(key reference.RecordKey) int64 {
	return int64(key.Block)*s.BlockStride + int64(key.Head)*s.HeadStride
}

// Put writes packed records.
func (s *SummaryBuffer) Put(records map[reference.RecordKey][]byte) error {
	if !s.sparse() {
		image, err := s.Read()
		if err != nil {
			return err
		}
		for key, record := range records {
			copy(image[s.At(key):], record)
		}
		return errors.Join(s.Write(image), s.Freeze())
	}
	for key, record := range records {
		if err := s.WriteAt(record, s.At(key)); err != nil {
			return err
		}
	}
	return nil
}
