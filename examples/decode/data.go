package main

import (
	"fmt"
	"math/rand/v2"

	"github.com/kvloom/kvloom/internal/tensorfile"
	"github.com/kvloom/kvloom/testdata/smollm2"
)

// cache is a contiguous KV cache as a model left it, and the queries of its last positions. Bit patterns of bf16.
type cache struct {
	kvHeads, queryHeads, dim int
	tokens, positions        int
	k, v                     []uint16 // [kv head, token, dim]
	q                        []uint16 // [query head, position, dim]; position i is token tokens-positions+i
}

func loadCache(path string) (*cache, error) {
	var f *tensorfile.File
	var err error
	if path == "" {
		f, err = tensorfile.ReadFS(smollm2.FS, smollm2.Sample)
	} else {
		f, err = tensorfile.Read(path)
	}
	if err != nil {
		return nil, err
	}
	c := &cache{}
	shapes := map[string][]int{}
	for name, to := range map[string]*[]uint16{"k": &c.k, "v": &c.v, "q_last": &c.q} {
		t, err := f.Tensor(name)
		if err != nil {
			return nil, err
		}
		if t.DType != "BF16" || len(t.Shape) != 3 {
			return nil, fmt.Errorf("tensor %q is %s %v; want BF16 with three axes", name, t.DType, t.Shape)
		}
		if *to, err = t.Bits16(); err != nil {
			return nil, err
		}
		shapes[name] = t.Shape
	}
	k, v, q := shapes["k"], shapes["v"], shapes["q_last"]
	if k[0] != v[0] || k[1] != v[1] || k[2] != v[2] || k[2] != q[2] || q[0]%k[0] != 0 || q[1] > k[1] || q[1] < 1 {
		return nil, fmt.Errorf("k %v, v %v and q_last %v do not fit together", k, v, q)
	}
	c.kvHeads, c.tokens, c.dim, c.queryHeads, c.positions = k[0], k[1], k[2], q[0], q[1]
	return c, nil
}

// query is the query token of a sequence of n tokens: the one at position n-1, or the last one for a shorter sequence. [query head, dim]
func (c *cache) query(n int) []uint16 {
	i := c.positions - 1 - (c.tokens - n)
	if i < 0 {
		i = c.positions - 1
	}
	out := make([]uint16, 0, c.queryHeads*c.dim)
	for h := range c.queryHeads {
		at := (h*c.positions + i) * c.dim
		out = append(out, c.q[at:at+c.dim]...)
	}
	return out
}

// paged lays the cache out in blocks of [kv head, token in page, dim], the pages in random blocks, as an engine's allocator would after
// some hours. Tokens behind the end are NaN: nothing may read them.
func (c *cache) paged(page int, r *rand.Rand) (k, v []uint16, table []int32) {
	pages := (c.tokens + page - 1) / page
	size := c.kvHeads * page * c.dim
	k, v = make([]uint16, pages*size), make([]uint16, pages*size)
	for i := range k {
		k[i], v[i] = 0x7fc0, 0x7fc0
	}
	for _, block := range r.Perm(pages) {
		table = append(table, int32(block))
	}
	for head := range c.kvHeads {
		for t := range c.tokens {
			from := (head*c.tokens + t) * c.dim
			to := int(table[t/page])*size + (head*page+t%page)*c.dim
			copy(k[to:to+c.dim], c.k[from:])
			copy(v[to:to+c.dim], c.v[from:])
		}
	}
	return k, v, table
}
