package verify

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math"

	"github.com/kvloom/kvloom/gen/plan"
	"github.com/kvloom/kvloom/internal/reference"
	"github.com/kvloom/kvloom/runtime/device"
	"github.com/kvloom/kvloom/runtime/kernel"
	"github.com/kvloom/kvloom/specs"
)

const quantizeMetric = "quantised element, steps"

// quantizeBound is half a step, what rounding the scale takes from the last code, and what rounding a zero shifts a whole group by.
const quantizeBound = 0.6

func init() { register(plan.KVQuantize, checkKVQuantize) }

// uploadKivi writes the row table and the records of a quantised cache.
func (d *DeviceProblem) uploadKivi() error {
	c := d.Cache
	if c.Kivi == nil {
		return nil
	}
	var err error
	if d.RowTable, err = d.Arena.Input("row_table", BytesOfInt32(c.RowTable())); err != nil {
		return err
	}
	if d.Store, err = d.newRecords("store", c.Kivi.Bytes); err != nil {
		return err
	}
	return d.Store.Put(d.kiviRecords())
}

// kiviRecords are the packed records of all stored blocks.
func (d *DeviceProblem) kiviRecords() map[reference.RecordKey][]byte {
	records := map[reference.RecordKey][]byte{}
	for _, id := range d.Cache.Blocks() {
		for head := range d.Cache.KVHeads {
			records[reference.RecordKey{Block: id, Head: head}] = d.Cache.KiviRecord(id, head)
		}
	}
	return records
}

// checkKVQuantize quantises the pages of every case, then of its replays incrementally. Every element must be as near its value as its grid
// allows, and the grid as fine as the range asks for; records of other pages keep their bytes.
func checkKVQuantize(ctx context.Context, e *Env, s *specs.Spec, c plan.Candidate, o Options) []Result {
	return eachCase(ctx, e, c, quantizeMetric, quantizeCases(s, o), func(k *Kernel, cs Case) []Result {
		t, a := NewTally(cs.Name, quantizeMetric, quantizeBound), e.NewArena()
		p, err := NewProblem(s, cs, o.Seed)
		if err == nil {
			if cs.Name == notFinite {
				plantNotFinite(p)
			}
			err = (&quantizeRun{env: e, kernel: k, tally: t}).all(p, a)
		}
		t.Err(errors.Join(err, a.Free()))
		return []Result{t.Result()}
	})
}

// quantizeCases leaves out per-head lengths: caches are compacted in 16 bits.
func quantizeCases(s *specs.Spec, o Options) []Case {
	p, few := s.Cache.PageSize, min(s.Attention.KVHeads, 2)
	own := []Case{
		{Name: "pages filled while decoding", Reason: "0, 1 and several pages become complete between launches; a cut-back request is quantised anew",
			KVHeads: few, Lens: []int{3*p - 1, p, 0}, Replays: [][]int{{3*p - 1, p, 0}, {3 * p, p + 1, 2 * p}, {8*p + 1, p, 2*p + 1}, {9 * p, 2 * p, 5 * p}},
			Layout: TokenMajor, Data: Random},
		{Name: notFinite, Reason: "a channel or group with a NaN or an infinity has NaN for scale and zero", KVHeads: few, Lens: []int{3*p + 1}, Layout: HeadMajor, Data: Random},
	}
	var cases []Case
	for _, c := range Cases(s, o) {
		// Two requests would write a shared page's keys back at once.
		if !c.HeadLens && !c.Long && (c.Shared == 0 || s.Locks.Summaries != specs.PreSummaries) {
			cases = append(cases, c)
		}
	}
	for _, c := range own {
		if o.Wants(c.Name) {
			cases = append(cases, c)
		}
	}
	return cases
}

// plantNotFinite spoils an element of a key and one of a value in the first two pages, and quantises again.
func plantNotFinite(p *Problem) {
	c := p.Cache
	for page := range 2 {
		id := c.Block(0, page)
		c.BlockKeys(id, 0)[c.HeadDim+1] = c.DType.Bits(math.Inf(1 - 2*page))
		c.BlockValues(id, c.KVHeads-1)[2*c.HeadDim+c.HeadDim-1] = c.DType.Bits(math.NaN())
	}
	c.QuantiseBlocks(*c.Kivi)
}

// quantizeRun is one case on the device.
type quantizeRun struct {
	*DeviceProblem
	env    *Env
	kernel *Kernel
	tally  *Tally
	before []int32 // quantized_lens before the launch
	lens   *Buffer
	space  *Buffer
}

func (r *quantizeRun) all(p *Problem, a *Arena) error {
	d, err := p.Upload(a)
	if err != nil {
		return err
	}
	r.DeviceProblem, r.before = d, make([]int32, p.Cache.Batch())
	launch := r.env.LaunchProblem(p)
	if r.lens, err = a.Alloc("quantized_lens", int64(4*len(r.before))); err != nil {
		return err
	}
	if r.space, err = r.kernel.Workspace(launch); err != nil {
		return err
	}
	if err := r.lens.Write(BytesOfInt32(r.before)); err != nil {
		return err
	}
	if d.Store.sparse() {
		err = errors.Join(err, d.eraseRecords())
	} else {
		err = errors.Join(err, d.Store.Fill(0xff))
	}
	if p.Spec.Locks.Summaries == specs.PreSummaries {
		d.K.frozen = false
	}
	args := &kernel.KVQuantizeArgs{Cache: d.Args(), QuantizedLens: r.lens.Ptr(), Workspace: r.space.Ptr()}
	return errors.Join(err, r.env.EachLaunch(p.Case, func(st device.Stream) error { return Enqueue(r.kernel, st, launch, args) }, r.once))
}

// eraseRecords takes what Upload wrote from buffers that cannot be filled whole.
func (d *DeviceProblem) eraseRecords() error {
	blank := bytes.Repeat([]byte{0xff}, d.Cache.Kivi.Bytes)
	for key := range d.kiviRecords() {
		if err := d.Store.WriteAt(blank, d.Store.At(key)); err != nil {
			return err
		}
	}
	return nil
}

func (r *quantizeRun) once(graph *Replay, at int) error {
	r.SetLaunch(at)
	if err := r.WriteLens(); err != nil {
		return err
	}
	old, err := r.read()
	if err == nil {
		err = graph.Run()
	}
	if err != nil {
		return err
	}
	records, err := r.read()
	if err := errors.Join(err, r.Arena.Check(), r.space.CheckZero(checkedWorkspace)); err != nil {
		return err
	}
	due := r.due()
	for key, record := range records {
		switch {
		case due[key]:
			r.compare(key, record)
			if err := r.compareRows(key, record); err != nil {
				return err
			}
		case !bytes.Equal(record, old[key]):
			return fmt.Errorf("the record of block %d, head %d was written, but no page of it became complete", key.Block, key.Head)
		}
	}
	return r.checkLens()
}

// due are the pages that the launch has to quantise.
func (r *quantizeRun) due() map[reference.RecordKey]bool {
	due := map[reference.RecordKey]bool{}
	for b, n := range r.Cache.SeqLens {
		for page := int(r.before[b]) / r.Cache.PageSize; page < int(n)/r.Cache.PageSize; page++ {
			for head := range r.Cache.KVHeads {
				due[reference.RecordKey{Block: r.Cache.Block(b, page), Head: head}] = true
			}
		}
	}
	return due
}

func (r *quantizeRun) checkLens() error {
	data, err := r.lens.Read()
	if err != nil {
		return err
	}
	for b, got := range Int32s(data) {
		want := r.Cache.SeqLens[b] / int32(r.Cache.PageSize) * int32(r.Cache.PageSize)
		if got != want {
			return fmt.Errorf("quantized_lens of request %d is %d, want %d", b, got, want)
		}
		r.before[b] = want
	}
	return nil
}

func (r *quantizeRun) read() (map[reference.RecordKey][]byte, error) {
	records := map[reference.RecordKey][]byte{}
	for key := range r.kiviRecords() {
		data, err := r.Store.ReadAt(r.Store.At(key), int64(r.Cache.Kivi.Bytes))
		if err != nil {
			return nil, err
		}
		records[key] = data
	}
	return records, nil
}

// compare judges a record by what its codes mean: within half a step of every value, under a grid as fine as the reference's.
func (r *quantizeRun) compare(key reference.RecordKey, record []byte) {
	k, c := r.Cache.Kivi, r.Cache
	got, want := k.Unpack(record), k.Unpack(c.KiviRecord(key.Block, key.Head))
	keys, values := c.DecodeRows(key.Block, key.Head)
	for t := range c.PageSize {
		for d := range c.HeadDim {
			where := func(what string) func() string {
				return func() string {
					return fmt.Sprintf("block %d, head %d, token %d, dim %d of %s: scale %#x, zero %#x, code %d; reference %#x, %#x, %d", key.Block, key.Head, t, d, what,
						got.KeyScale[d], got.KeyZero[d], got.Keys[t*c.HeadDim+d], want.KeyScale[d], want.KeyZero[d], want.Keys[t*c.HeadDim+d])
				}
			}
			r.tally.Add(stepsOff(k.Key(got, t, d), k.Key(want, t, d), keys[t*c.HeadDim+d], k.KeyStep(got, d), k.KeyStep(want, d)), quantizeBound, where("K"))
			r.tally.Add(stepsOff(k.Value(got, t, d), k.Value(want, t, d), values[t*c.HeadDim+d], k.ValueStep(got, t, d), k.ValueStep(want, t, d)), quantizeBound, where("V"))
		}
	}
}

// compareRows checks that keys are what they were, or where summaries are built of quantised keys, what the record means, to the last bit of bf16.
func (r *quantizeRun) compareRows(key reference.RecordKey, record []byte) error {
	c := r.Cache
	page := c.Kivi.Unpack(record)
	for t := range c.PageSize {
		data, err := r.K.ReadAt(2*c.KOffset(key.Block, t, key.Head), int64(2*c.HeadDim))
		if err != nil {
			return err
		}
		for d, bits := range Uint16s(data) {
			if r.Spec.Locks.Summaries != specs.PreSummaries {
				if want := c.BlockKeys(key.Block, key.Head)[t*c.HeadDim+d]; bits != want {
					return fmt.Errorf("block %d, head %d, token %d, dim %d: the key became %#04x, was %#04x", key.Block, key.Head, t, d, bits, want)
				}
				continue
			}
			want := c.Kivi.Key(page, t, d)
			off := math.Abs(c.DType.Value(bits)-want) / (math.Abs(want)/128 + 1e-30)
			if math.IsNaN(want) && math.IsNaN(c.DType.Value(bits)) {
				off = 0
			}
			r.tally.Add(off/2, quantizeBound, func() string {
				return fmt.Sprintf("block %d, head %d, token %d, dim %d: %#04x was written back for %g", key.Block, key.Head, t, d, bits, want)
			})
		}
	}
	return nil
}

// stepsOff is how far got is from the exact value x in steps, infinite where the step is not the reference's but for its last bit. Where the
// reference itself is further than half a step away, as zeros and scales far from what 16 bits hold are, that distance is allowed.
func stepsOff(got, want, x, step, wantStep float64) float64 {
	switch {
	case math.IsNaN(want) && math.IsNaN(got):
		return 0
	case math.IsNaN(got) || math.Abs(step-wantStep) > wantStep/100+1e-7:
		return math.Inf(1)
	case wantStep == 0:
		if math.Abs(got-want) <= math.Abs(want)/128 {
			return 0
		}
		return math.Inf(1)
	}
	return max(math.Abs(got-x)-max(math.Abs(want-x)-wantStep/2, 0), 0) / wantStep
}
