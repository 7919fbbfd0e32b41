package measure

import (
	"math"
	"slices"

	"github.com/kvloom/kvloom/gen/plan"
	"github.com/kvloom/kvloom/runtime/device"
	"github.com/kvloom/kvloom/runtime/kernel"
)

// groups is the scores of a row: of pages, or of groups of pages that share a summary.
func (r *Rig) groups() int64 { return r.Problem.MaxPages / int64(r.Spec.SummaryPages()) }

// recordBytes is one layer's summaries, those of blocks that end no group too.
func (r *Rig) recordBytes() int64 {
	return r.Problem.Batch * r.Problem.MaxPages * r.Problem.KVHeads * int64(r.record.Bytes)
}

func (r *Rig) needSummaries() error {
	if r.summaries.n > 0 {
		return nil
	}
	var err error
	// As many sets as keep the pages that attention chooses cold too: with fewer, a chain would choose the same ones again.
	if r.summaries, err = r.newRing(r.recordBytes(), max(r.sets(r.recordBytes()/int64(r.Spec.SummaryPages())), r.sets(r.touchedBytes()))); err != nil {
		return err
	}
	return r.fill(r.summaries.base, r.summaries.each*int64(r.summaries.n), r.records(16381))
}

// records makes n random records with finite scales.
func (r *Rig) records(n int) []byte {
	l := r.record
	if l.Scorer != "" {
		return r.plainRecords(n)
	}
	b := make([]byte, n*l.Bytes)
	for i := range b {
		b[i] = byte(r.rand.Uint32())
	}
	scales := func(at, count int, max float64) {
		for i := range count {
			v := math.Float32bits(float32(max * (0.2 + 0.8*r.rand.Float64())))
			b[at+2*i], b[at+2*i+1] = byte(v>>16), byte(v>>24)
		}
	}
	tokens := func(at int) {
		scales(at, l.PageSize, 3/largestCode(l.Form.CoefficientBits()))
		for i := 0; i < l.PageSize && l.Form.CoefficientBits() == 8; i++ {
			b[at+2*i] &= 0xf0 // 4 significant bits
		}
	}
	for at := 0; at < len(b); at += l.Bytes {
		tokens(at + l.TokenScales)
		scales(at+l.MuScale, l.MuGroups, 2/largestCode(l.Form.CentroidBits()))
		if l.BasisBits == 16 {
			scales(at+l.V, l.Rank*l.HeadDim, 0.1)
		} else {
			scales(at+l.ColumnScales, l.Rank*l.ColumnGroups, 0.3/7)
		}
	}
	return b
}

// needScores makes the buffer of scores: one, as a decoding step has one that each layer writes after the last and reads at once, like
// the query, the lengths and the block table, and unlike keys and summaries, of which every layer has its own.
func (r *Rig) needScores() error {
	if r.scores.n > 0 {
		return nil
	}
	p := r.Problem
	n := int(p.QHeads * r.groups())
	pattern := make([]float32, min(max(n, 1), 1<<20))
	for i := range pattern {
		pattern[i] = float32(r.rand.NormFloat64() * 2)
	}
	each := p.Batch * int64(n) * 4
	var err error
	if r.scores, err = r.newRing(each, 1); err != nil {
		return err
	}
	if err := r.fill(r.scores.base, r.scores.each*int64(r.scores.n), bytesOf(pattern)); err != nil {
		return err
	}
	return r.needMasses(pattern)
}

// needMasses makes the masses of scores that are a repeated pattern, where page_score would leave them: in the part of its first block, the
// others empty, and none behind those of a block an SM.
func (r *Rig) needMasses(pattern []float32) error {
	p := r.Problem
	if p.Batch != 1 || !plan.LeavesMasses(r.Spec) {
		return nil
	}
	upTo := make([]float64, len(pattern)+1)
	for i, s := range pattern {
		upTo[i+1] = upTo[i] + math.Exp(float64(s))
	}
	before := func(at int64) float64 {
		n := int64(len(pattern))
		return float64(at/n)*upTo[n] + upTo[at%n]
	}
	var err error
	if r.masses, err = r.newRing(kernel.MassesBytes(int(p.QHeads)), r.scores.n); err != nil {
		return err
	}
	all := make([]float32, r.masses.each/4)
	for set := range r.masses.n {
		for head := range p.QHeads {
			from := int64(set)*r.scores.each/4 + head*r.groups()
			all[(head*kernel.MassParts+1)*2+1] = float32(before(from+r.groups()) - before(from))
			for part := 1 + p.SMs; part < kernel.MassParts; part++ {
				all[(head*kernel.MassParts+part)*2] = float32(math.Inf(-1))
			}
		}
		if err := r.Dev.Write(r.masses.at(set), bytesOf(all)); err != nil {
			return err
		}
	}
	return nil
}

// massesAt is set i of the masses, 0 where there are none.
func (r *Rig) massesAt(i int) device.Ptr {
	if r.masses.n == 0 {
		return 0
	}
	return r.masses.at(i)
}

// touchedBytes is what attention over page lists reads of the pool.
func (r *Rig) touchedBytes() int64 {
	p, page := r.Problem, int64(r.Spec.Cache.PageSize*r.Spec.Attention.HeadDim)*4
	if r.kivi() {
		page = int64(r.Spec.StoreBytes())
	}
	return p.Batch * p.Lists * min(p.Slots, p.MaxPages) * page
}

// needLists makes random ascending page lists with the sink and the most recent page, one set for each launch of the ring.
func (r *Rig) needLists() error {
	if r.pages.n > 0 {
		return nil
	}
	p := r.Problem
	k := min(p.Slots, p.MaxPages)
	n := r.sets(r.touchedBytes())
	var err error
	if r.pages, err = r.newRing(p.Batch*p.Lists*p.Slots*4, n); err != nil {
		return err
	}
	if r.counts, err = r.newRing(p.Batch*p.Lists*4, n); err != nil {
		return err
	}
	counts := bytesOf(slices.Repeat([]int32{int32(k)}, int(p.Batch*p.Lists)))
	for set := range n {
		list := make([]int32, 0, p.Batch*p.Lists*p.Slots)
		for range p.Batch * p.Lists {
			list = append(list, r.choice(int(p.MaxPages), int(k), int(p.Slots))...)
		}
		if err := r.Dev.Write(r.pages.at(set), bytesOf(list)); err != nil {
			return err
		}
		if err := r.Dev.Write(r.counts.at(set), counts); err != nil {
			return err
		}
	}
	return nil
}

// needOwn makes where lists are written outside of a chain, of candidates where the model reranks.
func (r *Rig) needOwn() error {
	if r.own.n > 0 {
		return nil
	}
	pages, counts := r.pages.each, r.counts.each
	if r.reranks() {
		pages, counts = r.wide.each, r.wideCounts.each
	}
	var err error
	if r.own, err = r.newRing(pages, 1); err != nil {
		return err
	}
	r.ownCounts, err = r.newRing(counts, 1)
	return err
}

func (r *Rig) choice(pages, k, slots int) []int32 {
	picked := map[int32]bool{0: true, int32(pages - 1): true}
	for len(picked) < k {
		picked[int32(r.rand.IntN(pages))] = true
	}
	list := make([]int32, 0, slots)
	for p := range picked {
		list = append(list, p)
	}
	slices.Sort(list)
	for len(list) < slots {
		list = append(list, -1)
	}
	return list
}
