package reference

import (
	"fmt"
)

// Strides of one of K and V, in elements; the dim stride is 1.
type Strides struct {
	Block, Token, Head int64
}

// Cache is a paged KV cache: what the contracts call the KV cache ABI, with the blocks that hold tokens stored by id. The strides
// say where a device keeps them and do not change what they hold, so one cache serves every layout.
type Cache struct {
	DType                      DType
	Centre                     [][]float64 // [kv head][dim] mean keys that 4-bit centroids are stored less; nil: zero
	KScale, VScale             float64     // FP8: keys and values are elements times these; else not read
	HeadDim, PageSize, KVHeads int
	SummaryPages               int     // neighbouring pages that share a summary; 0 and 1: each has its own
	MaxPages                   int     // columns of the block table in use; rows have TableStride
	SeqLens                    []int32 // [batch]
	HeadLens                   []int32 // [batch, kv head], or nil; honoured by attend alone
	Table                      []int32 // [batch, TableStride] block ids
	TableStride                int
	KStrides, VStrides         Strides
	KBase, VBase               int64 // element of its buffer at which K and V begin
	Joint                      bool  // K and V share one buffer
	Kivi                       *Kivi // how whole pages are quantised, once QuantiseBlocks has; nil: they are not
	stored                     map[int32]int
	ids                        []int32
	keys, values               []uint16 // [stored block, kv head, token, dim]
	quantised                  map[RecordKey]decodedPage
}

// centre is a head's mean key, nil for zero.
func (c *Cache) centre(head int) []float64 {
	if c.Centre == nil {
		return nil
	}
	return c.Centre[head]
}

// Batch is the number of requests, padded rows included.
func (c *Cache) Batch() int { return len(c.SeqLens) }

// blockElements is one stored block of K.
func (c *Cache) blockElements() int { return c.KVHeads * c.PageSize * c.HeadDim }

// AddBlock stores a block of zeros under a physical id, once.
func (c *Cache) AddBlock(id int32) {
	if id < 0 {
		panic(fmt.Sprintf("BUG: reference: block id %d", id))
	}
	if c.stored == nil {
		c.stored = map[int32]int{}
	}
	if _, ok := c.stored[id]; ok {
		return
	}
	c.stored[id] = len(c.ids)
	c.ids = append(c.ids, id)
	c.keys = append(c.keys, make([]uint16, c.blockElements())...)
	c.values = append(c.values, make([]uint16, c.blockElements())...)
}

// Blocks are the stored physical block ids, in the order they were added.
func (c *Cache) Blocks() []int32 { return c.ids }

// BlockKeys is one head's page of a stored block: [token, dim] bit patterns, to read or to write.
func (c *Cache) BlockKeys(id int32, head int) []uint16 { return c.page(c.keys, id, head) }

// BlockValues is the same of V.
func (c *Cache) BlockValues(id int32, head int) []uint16 { return c.page(c.values, id, head) }

func (c *Cache) page(data []uint16, id int32, head int) []uint16 {
	b, ok := c.stored[id]
	if !ok {
		panic(fmt.Sprintf("BUG: reference: block %d was never stored", id))
	}
	size := c.PageSize * c.HeadDim
	at := b*c.blockElements() + head*size
	return data[at : at+size : at+size]
}

// Block is the physical block of a request's page, -1 where the table has none.
func (c *Cache) Block(request, page int) int32 { return c.Table[request*c.TableStride+page] }

// Length is the tokens of a request that attention sees for a KV head: the head's own length in a compacted cache.
func (c *Cache) Length(request, head int) int {
	if c.HeadLens != nil {
		return int(c.HeadLens[request*c.KVHeads+head])
	}
	return int(c.SeqLens[request])
}

// Pages is how many pages so many tokens occupy.
func (c *Cache) Pages(tokens int) int { return (tokens + c.PageSize - 1) / c.PageSize }

// Keys decodes the first tokens of one head's page of a request: [tokens, dim]; none for a page without a block.
func (c *Cache) Keys(request, page, head, tokens int) []float64 {
	id := c.Block(request, page)
	if id < 0 {
		return nil
	}
	if tokens >= c.PageSize && c.Kivi != nil {
		return c.quantised[RecordKey{id, head}].keys
	}
	return c.decode(c.BlockKeys(id, head), tokens, c.KScale)
}

// Values is the same of V.
func (c *Cache) Values(request, page, head, tokens int) []float64 {
	id := c.Block(request, page)
	if id < 0 {
		return nil
	}
	if tokens >= c.PageSize && c.Kivi != nil {
		return c.quantised[RecordKey{id, head}].values
	}
	return c.decode(c.BlockValues(id, head), tokens, c.VScale)
}

// DecodeKeys is a whole page of one head of a stored block: [token, dim].
func (c *Cache) DecodeKeys(id int32, head int) []float64 {
	return c.decode(c.BlockKeys(id, head), c.PageSize, c.KScale)
}

func (c *Cache) decode(bits []uint16, tokens int, scale float64) []float64 {
	out := make([]float64, min(tokens, c.PageSize)*c.HeadDim)
	c.DType.Values(out, bits[:len(out)])
	if c.DType == FP8 {
		for i := range out {
			out[i] *= scale
		}
	}
	return out
}

// EncodeKeys rounds keys to bit patterns: elements are keys, in FP8 keys over KScale.
func (c *Cache) EncodeKeys(out []uint16, x []float64) { c.encode(out, x, c.KScale) }

// EncodeValues is the same of V.
func (c *Cache) EncodeValues(out []uint16, x []float64) { c.encode(out, x, c.VScale) }

func (c *Cache) encode(out []uint16, x []float64, scale float64) {
	if c.DType != FP8 {
		scale = 1
	}
	for i, v := range x {
		out[i] = c.DType.Bits(v / scale)
	}
}

// TokensIn is how many of length tokens lie in a page.
func (c *Cache) TokensIn(page, length int) int {
	return min(max(length-page*c.PageSize, 0), c.PageSize)
}

// KOffset and VOffset are the element of the buffer at which a token's key or value begins.
func (c *Cache) KOffset(id int32, token, head int) int64 {
	return c.KStrides.at(c.KBase, c.RowBlock(id), token, head)
}

// VOffset is the same of V.
func (c *Cache) VOffset(id int32, token, head int) int64 {
	return c.VStrides.at(c.VBase, c.RowBlock(id), token, head)
}

func (s Strides) at(base int64, id int32, token, head int) int64 {
	return base + int64(id)*s.Block + int64(token)*s.Token + int64(head)*s.Head
}

// Elements are the elements that K's buffer and V's buffer must have for every stored block; for a joint cache both are the one
// buffer's.
func (c *Cache) Elements() (k, v int64) {
	for _, id := range c.ids {
		k = max(k, c.KOffset(id, c.PageSize-1, c.KVHeads-1)+int64(c.HeadDim))
		v = max(v, c.VOffset(id, c.PageSize-1, c.KVHeads-1)+int64(c.HeadDim))
	}
	if c.Joint {
		k = max(k, v)
		v = k
	}
	return k, v
}
