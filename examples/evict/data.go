package main

import (
	"fmt"
	"math/rand/v2"

	"github.com/kvloom/kvloom/internal/reference"
	"github.com/kvloom/kvloom/internal/tensorfile"
	"github.com/kvloom/kvloom/testdata/smollm2"
)

// page is the tokens of a page here.
const page = 16

// prompt is a KV cache as a model left it, cut where `later` queries are still to come. Bit patterns of bf16.
type prompt struct {
	kvHeads, queryHeads, dim int
	tokens                   int      // of the prompt
	window                   int      // its last queries, which vote
	later                    int      // queries after it
	all, positions           int      // tokens and queries in the file
	k, v                     []uint16 // [kv head, all tokens, dim]
	q                        []uint16 // [query head, position, dim], of the file's last positions
}

func loadPrompt(path string, window int) (*prompt, error) {
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
	p := &prompt{window: window}
	shapes := map[string][]int{}
	for name, to := range map[string]*[]uint16{"k": &p.k, "v": &p.v, "q_last": &p.q} {
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
	if k[0] != v[0] || k[1] != v[1] || k[2] != v[2] || k[2] != q[2] || q[0]%k[0] != 0 || q[1] > k[1] {
		return nil, fmt.Errorf("k %v, v %v and q_last %v do not fit together: every KV head serves the same whole number of query heads", k, v, q)
	}
	p.kvHeads, p.all, p.dim, p.queryHeads, p.positions = k[0], k[1], k[2], q[0], q[1]
	p.later = p.positions - window
	p.tokens = p.all - p.later
	if window < 1 || window > 64 || p.later < 1 || p.tokens <= window {
		return nil, fmt.Errorf("a window of %d of %d queries leaves %d to attend; allowed: 1 to %d", window, p.positions, p.later, min(p.positions-1, 64))
	}
	return p, nil
}

// cache is the prompt as the reference holds it, in shuffled pages of head-major blocks.
func (p *prompt) cache() *reference.Cache {
	c := &reference.Cache{DType: reference.BF16, HeadDim: p.dim, PageSize: page, KVHeads: p.kvHeads, SeqLens: []int32{int32(p.tokens)}}
	c.MaxPages = c.Pages(p.tokens)
	c.TableStride = c.MaxPages
	for i, block := range rand.New(rand.NewPCG(7, 11)).Perm(c.MaxPages) {
		c.Table = append(c.Table, int32(block))
		c.AddBlock(int32(block))
		for h := range p.kvHeads {
			from, to := (h*p.all+i*page)*p.dim, (h*p.all+min((i+1)*page, p.tokens))*p.dim
			copy(c.BlockKeys(int32(block), h), p.k[from:to])
			copy(c.BlockValues(int32(block), h), p.v[from:to])
		}
	}
	return c
}

// blocks lays keys and values out as kernels get them, [block, kv head, token, dim]; tokens behind the prompt are NaN.
func (p *prompt) blocks(c *reference.Cache) (k, v []uint16) {
	size := page * p.dim
	k, v = make([]uint16, c.MaxPages*p.kvHeads*size), make([]uint16, c.MaxPages*p.kvHeads*size)
	for i, block := range c.Table {
		for h := range p.kvHeads {
			at := (int(block)*p.kvHeads + h) * size
			copy(k[at:], c.BlockKeys(block, h))
			copy(v[at:], c.BlockValues(block, h))
			for j := c.TokensIn(i, p.tokens) * p.dim; j < size; j++ {
				k[at+j], v[at+j] = 0x7fc0, 0x7fc0
			}
		}
	}
	return k, v
}

// queries are positions [first, first+n) of the file's, [query head, n, dim].
func (p *prompt) queries(first, n int) []uint16 {
	out := make([]uint16, 0, p.queryHeads*n*p.dim)
	for h := range p.queryHeads {
		at := (h*p.positions + first) * p.dim
		out = append(out, p.q[at:at+n*p.dim]...)
	}
	return out
}

// voters is the window as the reference holds it.
func (p *prompt) voters() reference.DropWindow {
	return reference.DropWindow{DType: reference.BF16, Heads: p.queryHeads, Window: p.window, HeadDim: p.dim, Bits: p.queries(0, p.window)}
}
