package main

import (
	"errors"
	"math"

	"github.com/kvloom/kvloom/internal/devices"
	"github.com/kvloom/kvloom/internal/reference"
)

// row is what one replay of both graphs gave.
type row struct {
	Tokens        int     `json:"tokens"`
	Pages         int     `json:"pages"`
	Kept          int     `json:"kept"`           // pages a KV head
	Mass          float64 `json:"mass"`           // retained attention mass, mean over query heads
	MassReference float64 `json:"mass_reference"` // the same of float64's selection
	OutputError   float64 `json:"output_error"`   // sparse output against full float64 attention, relative
	DenseError    float64 `json:"dense_error"`    // dense output, likewise
	SparseUS      float64 `json:"sparse_us"`      // median of replays with warm L2; 0: not measured
	DenseUS       float64 `json:"dense_us"`
}

// decode replays both graphs at each length and compares with float64.
func (d *decoder) decode(lens []int) ([]row, error) {
	var rows []row
	for _, n := range lens {
		q := d.cache.query(n)
		if err := errors.Join(d.dev.Write(d.lens, asBytes([]int32{int32(n)})), d.dev.Write(d.q, asBytes(q)),
			d.sparse.Launch(d.stream), d.dense.Launch(d.stream), d.stream.Synchronize()); err != nil {
			return nil, err
		}
		r, err := d.compare(n, q)
		if err != nil {
			return nil, err
		}
		if r.SparseUS, err = devices.ReplayUS(d.dev, d.stream, d.sparse); err != nil {
			return nil, err
		}
		if r.DenseUS, err = devices.ReplayUS(d.dev, d.stream, d.dense); err != nil {
			return nil, err
		}
		rows = append(rows, r)
	}
	return rows, nil
}

// compare reads the results back and holds them against float64.
func (d *decoder) compare(n int, q []uint16) (row, error) {
	c, m := d.cache, d.model
	lists := m.Lists(c.kvHeads)
	pages, counts := make([]int32, lists*m.Slots), make([]int32, lists)
	out, dense := make([]uint16, c.queryHeads*c.dim), make([]uint16, c.queryHeads*c.dim)
	if err := errors.Join(d.dev.Read(asBytes(pages), d.pages), d.dev.Read(asBytes(counts), d.counts),
		d.dev.Read(asBytes(out), d.out), d.dev.Read(asBytes(dense), d.denseOut)); err != nil {
		return row{}, err
	}
	ref := c.reference(m.PageSize, n)
	logits := reference.Logits{Scale: m.SoftmaxScale, Softcap: m.LogitSoftcap}
	queries := reference.Queries{DType: reference.BF16, Heads: c.queryHeads, HeadDim: c.dim, Bits: q}
	chosen, err := d.referenceLists(ref, queries, logits)
	if err != nil {
		return row{}, err
	}
	full := ref.AttendAll(queries, nil, logits)
	r := row{Tokens: n, Pages: ref.Pages(n), Kept: int(counts[0])}
	var norm, sparseErr, denseErr float64
	for h := range c.queryHeads {
		list := h * lists / c.queryHeads
		exact := ref.ExactScores(0, h*c.kvHeads/c.queryHeads, queries.Of(0, h), logits)
		r.Mass += reference.RetainedMass(exact, pages[list*m.Slots:][:counts[list]]) / float64(c.queryHeads)
		r.MassReference += reference.RetainedMass(exact, chosen[0][list]) / float64(c.queryHeads)
		for i, want := range full[h].Out {
			norm += want * want
			sparseErr += square(reference.FromBF16(out[h*c.dim+i]) - want)
			denseErr += square(reference.FromBF16(dense[h*c.dim+i]) - want)
		}
	}
	r.OutputError, r.DenseError = math.Sqrt(sparseErr/norm), math.Sqrt(denseErr/norm)
	return r, nil
}

// referenceLists is float64's own summary, scoring and selection of the same cache.
func (d *decoder) referenceLists(ref *reference.Cache, q reference.Queries, l reference.Logits) (reference.Lists, error) {
	rule, err := reference.ParseCombine(d.model.Combine)
	if err != nil {
		return nil, err
	}
	budget := reference.Budget{Slots: d.model.Slots, SinkPages: d.model.SinkPages, RecentPages: d.model.RecentPages}
	shape := reference.Shape{HeadDim: d.model.HeadDim, PageSize: d.model.PageSize, Rank: d.model.Rank, BasisBits: d.model.BasisBits}
	return ref.Score(ref.Build(shape), q, l).Select(rule, d.model.Group(), budget), nil
}

func square(x float64) float64 { return x * x }

// reference is the first n tokens of the cache, unshuffled.
func (c *cache) reference(page, n int) *reference.Cache {
	pages := (c.tokens + page - 1) / page
	ref := &reference.Cache{DType: reference.BF16, HeadDim: c.dim, PageSize: page, KVHeads: c.kvHeads, MaxPages: pages,
		SeqLens: []int32{int32(n)}, TableStride: pages}
	for p := range pages {
		ref.Table = append(ref.Table, int32(p))
		ref.AddBlock(int32(p))
		for head := range c.kvHeads {
			from, to := (head*c.tokens+p*page)*c.dim, (head*c.tokens+min((p+1)*page, c.tokens))*c.dim
			copy(ref.BlockKeys(int32(p), head), c.k[from:to])
			copy(ref.BlockValues(int32(p), head), c.v[from:to])
		}
	}
	return ref
}
