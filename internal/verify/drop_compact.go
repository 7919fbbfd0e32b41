package verify

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"

	"github.com/kvloom/kvloom/gen/plan"
	"github.com/kvloom/kvloom/runtime/device"
	"github.com/kvloom/kvloom/runtime/kernel"
	"github.com/kvloom/kvloom/specs"
)

const compactMetric = "compacted cache, wrong bytes"

func init() { register(plan.DropCompact, checkDropCompact) }

// checkDropCompact compacts every case's cache twice: into a fresh paged cache, and in place, where pages that several requests share
// go to fresh blocks. Every byte of both caches is compared with what the kept tokens' bits make of it, so neither a lost token nor a
// write elsewhere passes; and the lengths, the positions, and the table with its freed pages.
func checkDropCompact(ctx context.Context, e *Env, s *specs.Spec, c plan.Candidate, o Options) []Result {
	k, err := e.Kernel(c)
	if err != nil {
		return []Result{Failed("load", compactMetric, err)}
	}
	few := min(s.Attention.KVHeads, 2)
	shared := Case{Name: "shared prefix", Reason: "two requests share physical blocks", KVHeads: few, Lens: []int{6*s.Cache.PageSize + 1, 4 * s.Cache.PageSize}, Shared: 3, Layout: TokenMajor, Data: Random}
	var results []Result
	for _, cs := range dropCases(s, o, shared) {
		for _, inPlace := range []bool{false, true} {
			if ctx.Err() != nil || cs.Long || inPlace && (cs.Layout == FarApart || cs.Holes) {
				continue // in place, a page without a block has nowhere to go
			}
			t := NewTally(cs.Name, compactMetric, 0)
			a := e.NewArena()
			err := compactCase(e, s, k, cs, o.Seed, inPlace, a, t)
			if err != nil {
				err = fmt.Errorf("in place %v: %w", inPlace, err)
			}
			t.Err(errors.Join(err, a.Free()))
			results = append(results, t.Result())
		}
	}
	return results
}

// compactRun is one case on the device.
type compactRun struct {
	*DropProblem
	inPlace bool
	device  *DeviceProblem
	lists   [][][]int32 // [batch][kv head]
	target  compactTarget
	before  [][]byte // of the target's buffers
	args    kernel.DropCompactArgs
	slots   int
	table   []int32 // of the target

	indices, counts, positions, headLens, seqLens, newTable *Buffer
}

// compactTarget is where tokens go: buffers of 16-bit elements and the element of a slot.
type compactTarget struct {
	k, v    *Buffer
	cache   kernel.KVCache
	k0, v0  int64 // element of its buffer at which K and V begin
	buffers []*Buffer
}

func compactCase(e *Env, s *specs.Spec, k *Kernel, c Case, seed uint64, inPlace bool, a *Arena, t *Tally) error {
	p, err := NewDropProblem(s, c, seed)
	if err != nil {
		return err
	}
	r := &compactRun{DropProblem: p, inPlace: inPlace, slots: p.MaxTokens()}
	if inPlace {
		r.placeShared()
	}
	if err := r.prepare(a, rand.New(rand.NewPCG(seed, 0x6b657074))); err != nil { // "kept"
		return err
	}
	problem := e.LaunchProblem(p.Problem)
	problem.Slots = int64(r.slots)
	lists := rand.New(rand.NewPCG(seed, 0x6c69737473)) // "lists"
	enqueue := func(stream device.Stream) error { return Enqueue(k, stream, problem, &r.args) }
	return e.EachLaunch(c, enqueue, func(graph *Replay, at int) error {
		r.SetLaunch(at)
		r.choose(lists)
		if err := errors.Join(r.device.WriteLens(), r.writeLists(), r.reset(), graph.Run()); err != nil {
			return err
		}
		return errors.Join(a.Check(), r.judge(t))
	})
}

// placeShared makes the target's table: the source's own block for a page that no other request has, else a fresh one.
func (r *compactRun) placeShared() {
	c := r.Cache
	owners := map[int32]int{}
	var top int32
	for b, n := range r.Case.longest() {
		for page := range c.Pages(n) {
			owners[c.Block(b, page)]++
		}
	}
	for _, id := range c.Blocks() {
		top = max(top, id)
	}
	r.table = make([]int32, c.Batch()*c.MaxPages)
	for b, n := range r.Case.longest() {
		for page := range c.MaxPages {
			id := int32(-1)
			if page < c.Pages(n) {
				if id = c.Block(b, page); owners[id] > 1 && r.Case.Layout != Contiguous {
					top++
					id = top
					c.AddBlock(id)
				}
			}
			r.table[b*c.MaxPages+page] = id
		}
	}
}

func (r *compactRun) prepare(a *Arena, rng *rand.Rand) error {
	d, err := r.Upload(a)
	if err != nil {
		return err
	}
	r.device = d
	heads, batch := r.Cache.KVHeads, r.Cache.Batch()
	alloc := func(to **Buffer, name string, elements int) {
		if err == nil {
			*to, err = a.Alloc(name, int64(4*elements))
		}
	}
	alloc(&r.indices, "indices", batch*heads*r.slots)
	alloc(&r.counts, "counts", batch*heads)
	alloc(&r.positions, "positions", batch*heads*r.slots)
	alloc(&r.headLens, "head_lens", batch*heads)
	alloc(&r.seqLens, "new seq_lens", batch)
	alloc(&r.newTable, "new table", batch*r.Cache.MaxPages)
	if err == nil {
		if r.inPlace {
			err = r.ownTarget(a)
		} else {
			err = r.freshTarget(a, rng)
		}
	}
	if err != nil {
		return err
	}
	for _, b := range r.target.buffers {
		data, err := b.Read()
		if err != nil {
			return err
		}
		b.frozen = false
		r.before = append(r.before, data)
	}
	r.args = kernel.DropCompactArgs{Source: r.Args(d), Target: r.target.cache, Indices: r.indices.Ptr(), Counts: r.counts.Ptr(), Positions: r.positions.Ptr(),
		HeadLens: r.headLens.Ptr(), SeqLens: r.seqLens.Ptr(), IndexBatchStride: int64(heads * r.slots), IndexHeadStride: int64(r.slots),
		TableStride: int64(r.Cache.MaxPages), Slots: int32(r.slots)}
	if r.target.cache.BlockTable != 0 {
		r.args.Table = r.newTable.Ptr()
	}
	if !r.inPlace { // a cache that was compacted before: a token's position is not its index
		old := make([]int32, batch*heads*r.slots)
		for i := range old {
			old[i] = oldPosition(i % r.slots)
		}
		in, err := a.Input("positions_in", BytesOfInt32(old))
		if err != nil {
			return err
		}
		r.args.PositionsIn, r.args.PositionBatchStride, r.args.PositionHeadStride = in.Ptr(), int64(heads*r.slots), int64(r.slots)
	}
	if r.inPlace {
		r.args.InPlace = 1
	}
	return nil
}

// oldPosition is where a token of an already compacted source stood.
func oldPosition(index int) int32 { return int32(3*index + 1) }

// ownTarget is the source itself, by the table of placeShared.
func (r *compactRun) ownTarget(a *Arena) error {
	c := r.Cache
	r.target = compactTarget{k: r.device.K, v: r.device.V, cache: r.Args(r.device), k0: c.KBase, v0: c.VBase, buffers: []*Buffer{r.device.K}}
	if !c.Joint {
		r.target.buffers = append(r.target.buffers, r.device.V)
	}
	if r.Case.Layout == Contiguous {
		return nil
	}
	table, err := a.Input("target table", BytesOfInt32(r.table))
	if err == nil {
		r.target.cache.BlockTable, r.target.cache.TableStride = table.Ptr(), int64(c.MaxPages)
	}
	return err
}

// freshTarget is a cache of its own, blocks shuffled, head-major with gaps, K and V apart.
func (r *compactRun) freshTarget(a *Arena, rng *rand.Rand) error {
	c := r.Cache
	page, heads, d := int64(c.PageSize), int64(c.KVHeads), int64(c.HeadDim)
	blocks := c.Batch() * c.MaxPages
	r.table = make([]int32, blocks)
	for i, id := range rng.Perm(blocks) {
		r.table[i] = int32(id) + 1
	}
	size := int64(c.DType.Size())
	gap := 16 / size // rows begin at multiples of 16 bytes
	row := d + gap
	k := r.Args(r.device)
	k.KTokenStride, k.KHeadStride, k.KBlockStride = row, page*row+gap, heads*(page*row+gap)+2*gap
	k.VTokenStride, k.VHeadStride, k.VBlockStride = heads*d, d, page*heads*d
	var err error
	if r.target.k, err = a.Alloc("target k", size*int64(blocks+1)*k.KBlockStride); err != nil {
		return err
	}
	if r.target.v, err = a.Alloc("target v", size*int64(blocks+1)*k.VBlockStride); err != nil {
		return err
	}
	table, err := a.Input("target table", BytesOfInt32(r.table))
	if err != nil {
		return err
	}
	k.K, k.V, k.BlockTable, k.TableStride, k.MaxPages = r.target.k.Ptr(), r.target.v.Ptr(), table.Ptr(), int64(c.MaxPages), int32(c.MaxPages)
	r.target.cache, r.target.buffers = k, []*Buffer{r.target.k, r.target.v}
	return nil
}

// choose keeps random tokens of each head, ascending: none, some, all.
func (r *compactRun) choose(rng *rand.Rand) {
	r.lists = make([][][]int32, r.Cache.Batch())
	for b, n := range r.Cache.SeqLens {
		for h := range r.Cache.KVHeads {
			share := []float64{0.3, 1, 0, 0.05}[(b+h)%4]
			list := []int32{}
			for j := range n {
				if rng.Float64() < share {
					list = append(list, j)
				}
			}
			r.lists[b] = append(r.lists[b], list)
		}
	}
}

func (r *compactRun) writeLists() error {
	indices := make([]int32, r.Cache.Batch()*r.Cache.KVHeads*r.slots)
	for i := range indices {
		indices[i] = -1
	}
	var counts []int32
	for _, heads := range r.lists {
		for _, list := range heads {
			copy(indices[len(counts)*r.slots:], list)
			counts = append(counts, int32(len(list)))
		}
	}
	return errors.Join(r.indices.Write(BytesOfInt32(indices)), r.indices.Freeze(), r.counts.Write(BytesOfInt32(counts)), r.counts.Freeze())
}

// reset brings the target back to what it held, and poisons the other outputs.
func (r *compactRun) reset() error {
	var err error
	for i, b := range r.target.buffers {
		err = errors.Join(err, b.Write(r.before[i]))
	}
	return errors.Join(err, r.positions.Poison(), r.headLens.Poison(), r.seqLens.Poison(), r.newTable.Poison())
}

func (r *compactRun) judge(t *Tally) error {
	want := make([][]byte, len(r.before))
	for i, data := range r.before {
		want[i] = slices.Clone(data)
	}
	var positions, headLens, seqLens, table []int32
	for b, heads := range r.lists {
		longest := 0
		for h, list := range heads {
			keys, values := r.Cache.Kept(b, h, list)
			r.put(want[0], r.target.k0, b, h, keys, r.target.cache.KBlockStride, r.target.cache.KTokenStride, r.target.cache.KHeadStride)
			r.put(want[len(want)-1], r.target.v0, b, h, values, r.target.cache.VBlockStride, r.target.cache.VTokenStride, r.target.cache.VHeadStride)
			longest = max(longest, len(list))
			headLens = append(headLens, int32(len(list)))
			padded := append(slices.Clone(list), make([]int32, r.slots-len(list))...)
			for i := range padded {
				switch {
				case i >= len(list):
					padded[i] = -1
				case !r.inPlace:
					padded[i] = oldPosition(int(padded[i]))
				}
			}
			positions = append(positions, padded...)
		}
		seqLens = append(seqLens, int32(longest))
		for page := range r.Cache.MaxPages {
			id := int32(-1)
			if page < r.Cache.Pages(longest) && r.table != nil {
				id = r.table[b*r.Cache.MaxPages+page]
			}
			table = append(table, id)
		}
	}
	for i, b := range r.target.buffers {
		got, err := b.Read()
		if err != nil {
			return err
		}
		if expected := want[i]; !bytes.Equal(got, expected) {
			at := 0
			for got[at] == expected[at] {
				at++
			}
			return fmt.Errorf("byte %d of %q is %#02x, the kept tokens make it %#02x", at, b.Name, got[at], expected[at])
		}
		t.Passed(int64(len(got)))
	}
	checks := []struct {
		b    *Buffer
		want []int32
	}{{r.positions, positions}, {r.headLens, headLens}, {r.seqLens, seqLens}}
	if r.args.Table != 0 {
		checks = append(checks, struct {
			b    *Buffer
			want []int32
		}{r.newTable, table})
	}
	for _, c := range checks {
		data, err := c.b.Read()
		if err != nil {
			return err
		}
		if got := Int32s(data); !slices.Equal(got, c.want) {
			return fmt.Errorf("%s: %s", c.b.Name, firstDifference(got, c.want))
		}
		t.Passed(int64(len(c.want)))
	}
	return nil
}

// put writes one head's kept rows into an image of the target.
func (r *compactRun) put(image []byte, base int64, b, h int, rows []uint16, block, token, head int64) {
	d := r.Cache.HeadDim
	for i := range len(rows) / d {
		at := base + int64(h)*head
		if r.target.cache.BlockTable == 0 {
			at += int64(b)*block + int64(i)*token
		} else {
			at += int64(r.table[b*r.Cache.MaxPages+i/r.Cache.PageSize])*block + int64(i%r.Cache.PageSize)*token
		}
		for _, bits := range rows[i*d : (i+1)*d] {
			if r.Cache.DType.Size() == 1 {
				image[at] = byte(bits)
			} else {
				binary.LittleEndian.PutUint16(image[2*at:], bits)
			}
			at++
		}
	}
}
