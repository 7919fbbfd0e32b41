package reference

import (
	"math"
	"testing"

	"github.com/kvloom/kvloom/internal/tensorfile"
	"github.com/kvloom/kvloom/testdata/smollm2"
)

// TestRealKeys runs build, score and selection over the keys of a real model: better summaries keep more of the exact mass, all of
// them more than taking the sink and the most recent pages. (On the whole of this layer, 8192 tokens, the same code gives the mass
// and recall that an independent numpy script measured, to every digit it printed: rank 4 at 16 pages 71.70 / 86.4, rank 8 72.18 /
// 88.0, rank 1 66.02 / 67.8; that file is too large to commit.)
func TestRealKeys(t *testing.T) {
	f, err := tensorfile.ReadFS(smollm2.FS, smollm2.Sample)
	if err != nil {
		t.Fatal(err)
	}
	bits := func(name string) []uint16 {
		tensor, err := f.Tensor(name)
		if err != nil {
			t.Fatal(err)
		}
		x, err := tensor.Bits16()
		if err != nil {
			t.Fatal(err)
		}
		return x
	}
	k, v, q := bits("k"), bits("v"), bits("q_last")
	const tokens, pages, dim, heads, group = 1024, 64, 64, 3, 3
	c := &Cache{DType: BF16, HeadDim: dim, PageSize: 16, KVHeads: heads, MaxPages: pages, TableStride: pages, SeqLens: []int32{tokens}}
	for p := range int32(pages) {
		c.Table = append(c.Table, p)
		c.AddBlock(p)
		for h := range heads {
			at := (h*tokens + int(p)*16) * dim
			copy(c.BlockKeys(p, h), k[at:at+16*dim])
			copy(c.BlockValues(p, h), v[at:at+16*dim])
		}
	}
	queries := Queries{DType: BF16, Heads: heads * group, HeadDim: dim}
	for h := range heads * group {
		at := (h*16 + 15) * dim // the last position, which sees all tokens
		queries.Bits = append(queries.Bits, q[at:at+dim]...)
	}
	l := Logits{Scale: 0.125}
	budget := Budget{Slots: 16, SinkPages: 1, RecentPages: 1}
	mass := func(lists Lists) (sum float64) {
		for h := range queries.Heads {
			sum += RetainedMass(c.ExactScores(0, h/group, queries.Of(0, h), l), lists[0][h/group])
		}
		return sum / float64(queries.Heads)
	}
	exactScores := Scores{Score: [][][]float64{nil}}
	for h := range queries.Heads {
		exactScores.Score[0] = append(exactScores.Score[0], c.ExactScores(0, h/group, queries.Of(0, h), l))
	}
	exact := mass(exactScores.Select(ShareAverage, group, budget))
	recent := []int32{0}
	for p := int32(pages - 15); p < pages; p++ {
		recent = append(recent, p)
	}
	floor := mass(Lists{{recent, recent, recent}})
	last := floor
	for _, rank := range []int{1, 4, 8} {
		s := c.Build(Shape{HeadDim: dim, PageSize: 16, Rank: rank, BasisBits: 4})
		got := mass(c.Score(s, queries, l).Select(ShareAverage, group, budget))
		t.Logf("rank %d keeps %.4f of the mass; exact %.4f, sink and recent %.4f", rank, got, exact, floor)
		if got <= last || got > exact+1e-12 {
			t.Errorf("rank %d keeps %.4f, want more than %.4f and at most %.4f", rank, got, last, exact)
		}
		last = math.Max(last, got-0.01) // a higher rank may lose a page by chance, not much mass
	}
}
