package reference

import (
	"encoding/binary"
	"math"

	"github.com/kvloom/kvloom/specs"
)

// Kivi is KIVI's quantisation of pages: what the design calls kivi4 and kivi2. Keys have a scale and a zero for each channel of a page, in
// f16: a key is zero + scale * code. Values have them for each token and group of 32 channels, in bf16: zero + scale * (code - middle), for
// the middle of the range is what bf16 must hold well. Scales and zeros are rounded first, and codes made with what they became.
type Kivi struct{ specs.KiviRecord }

// NewKivi describes the quantisation of pages.
func NewKivi(headDim, pageSize, bits int) Kivi {
	return Kivi{specs.NewKiviRecord(headDim, pageSize, bits)}
}

// KiviPage is one quantised page of one KV head.
type KiviPage struct {
	KeyScale, KeyZero     []uint16 // [dim] f16, the scales over what a code's place multiplies it by
	ValueScale, ValueZero []uint16 // [token, group] bf16
	Keys, Values          []uint8  // codes [token, dim]
}

func (k Kivi) top() float64    { return float64(int(1)<<k.Bits - 1) }
func (k Kivi) middle() float64 { return float64(int(1) << (k.Bits - 1)) }

// groupDims is how many channels a group has: 32, or 16 at the end.
func (k Kivi) groupDims(group int) int { return min(32, k.HeadDim-32*group) }

// keyPair is the pair of a channel among the four or two of its lane and group.
func (k Kivi) keyPair(dim int) int {
	return dim % 32 % (k.groupDims(dim/32) / 4) / 2
}

// field is the place of a pair of a group in a half-word.
func (k Kivi) field(group, pair int) int { return group%(4/k.Bits)*4 + pair }

// factor is what the place of a channel's codes multiplies them by.
func (k Kivi) factor(dim int) float64 {
	return float64(int(1) << (k.field(dim/32, k.keyPair(dim)) % (8 / k.Bits) * k.Bits))
}

// span is the smallest and the largest of x; NaN where one is not finite.
func span(n int, x func(i int) float64) (low, high float64) {
	low, high = math.Inf(1), math.Inf(-1)
	for i := range n {
		v := x(i)
		if math.IsNaN(v) || math.IsInf(v, 0) {
			return math.NaN(), math.NaN()
		}
		low, high = min(low, v), max(high, v)
	}
	return low, high
}

// Quantise quantises a page: keys and values [token, dim].
func (k Kivi) Quantise(keys, values []float64) KiviPage {
	d, n := k.HeadDim, k.PageSize
	p := KiviPage{KeyScale: make([]uint16, d), KeyZero: make([]uint16, d), ValueScale: make([]uint16, n*k.Groups), ValueZero: make([]uint16, n*k.Groups),
		Keys: make([]uint8, n*d), Values: make([]uint8, n*d)}
	saturated := func(x float64) uint16 { return ToFP16(min(max(x, -65504), 65504)) }
	for c := range d {
		low, high := span(n, func(t int) float64 { return keys[t*d+c] })
		if math.IsNaN(low) {
			p.KeyScale[c], p.KeyZero[c] = 0x7fff, 0x7fff
			continue
		}
		p.KeyZero[c] = saturated(low)
		zero := FromFP16(p.KeyZero[c])
		p.KeyScale[c] = saturated(max(high-zero, 0) / (k.top() * k.factor(c)))
		for t := range n {
			p.Keys[t*d+c] = k.code(keys[t*d+c], FromFP16(p.KeyScale[c])*k.factor(c), zero, 0)
		}
	}
	for t := range n {
		for g := range k.Groups {
			at, i := t*d+32*g, t*k.Groups+g
			low, high := span(k.groupDims(g), func(c int) float64 { return values[at+c] })
			if math.IsNaN(low) {
				p.ValueScale[i], p.ValueZero[i] = 0x7fff, 0x7fff
				for c := range k.groupDims(g) {
					p.Values[at+c] = uint8(k.middle())
				}
				continue
			}
			p.ValueScale[i] = ToBF16((high - low) / k.top())
			scale := FromBF16(p.ValueScale[i])
			p.ValueZero[i] = ToBF16(low + scale*k.middle())
			for c := range k.groupDims(g) {
				p.Values[at+c] = k.code(values[at+c], scale, FromBF16(p.ValueZero[i]), k.middle())
			}
		}
	}
	return p
}

// code is the nearest code to x, that of zero itself where the scale is 0.
func (k Kivi) code(x, scale, zero, middle float64) uint8 {
	if !(scale > 0) {
		return uint8(middle)
	}
	return uint8(min(max(math.RoundToEven((x-zero)/scale+middle), 0), k.top()))
}

// Key is what a page means by the key of a token and channel.
func (k Kivi) Key(p KiviPage, token, dim int) float64 {
	return FromFP16(p.KeyZero[dim]) + FromFP16(p.KeyScale[dim])*k.factor(dim)*float64(p.Keys[token*k.HeadDim+dim])
}

// Value is the same of a value.
func (k Kivi) Value(p KiviPage, token, dim int) float64 {
	i := token*k.Groups + dim/32
	return FromBF16(p.ValueZero[i]) + FromBF16(p.ValueScale[i])*(float64(p.Values[token*k.HeadDim+dim])-k.middle())
}

// KeyStep is the distance of two neighbouring codes of a channel.
func (k Kivi) KeyStep(p KiviPage, dim int) float64 { return FromFP16(p.KeyScale[dim]) * k.factor(dim) }

// ValueStep is the same of a token's value.
func (k Kivi) ValueStep(p KiviPage, token, dim int) float64 {
	return FromBF16(p.ValueScale[token*k.Groups+dim/32])
}

// Decode is a whole page: keys and values [token, dim].
func (k Kivi) Decode(p KiviPage) (keys, values []float64) {
	keys, values = make([]float64, k.PageSize*k.HeadDim), make([]float64, k.PageSize*k.HeadDim)
	for t := range k.PageSize {
		for c := range k.HeadDim {
			keys[t*k.HeadDim+c], values[t*k.HeadDim+c] = k.Key(p, t, c), k.Value(p, t, c)
		}
	}
	return keys, values
}

// Pack lays a page out as a record.
func (k Kivi) Pack(p KiviPage) []byte {
	b := make([]byte, k.Bytes)
	k.walk(p, func(at int, x *uint16) { binary.LittleEndian.PutUint16(b[at:], *x) }, func(at, shift int, code *uint8) {
		word := binary.LittleEndian.Uint32(b[at:])
		binary.LittleEndian.PutUint32(b[at:], word|uint32(*code)<<shift)
	})
	return b
}

// Unpack reads a record.
func (k Kivi) Unpack(b []byte) KiviPage {
	d, n := k.HeadDim, k.PageSize
	p := KiviPage{KeyScale: make([]uint16, d), KeyZero: make([]uint16, d), ValueScale: make([]uint16, n*k.Groups), ValueZero: make([]uint16, n*k.Groups),
		Keys: make([]uint8, n*d), Values: make([]uint8, n*d)}
	k.walk(p, func(at int, x *uint16) { *x = binary.LittleEndian.Uint16(b[at:]) }, func(at, shift int, code *uint8) {
		*code = uint8(binary.LittleEndian.Uint32(b[at:]) >> shift & (1<<k.Bits - 1))
	})
	return p
}

// walk visits everything that a record holds: 16-bit numbers by their offset, codes by the offset of their word and their place in it.
func (k Kivi) walk(p KiviPage, number func(at int, x *uint16), code func(at, shift int, code *uint8)) {
	rows := min(k.Tokens, 8) // of a half
	half := k.Codes / max(k.Tokens/8, 1)
	vector := 1
	for vector < 4 && k.Words%(2*vector) == 0 {
		vector *= 2
	}
	for c := range k.HeadDim {
		number(2*c, &p.KeyScale[c])
		number(2*k.HeadDim+2*c, &p.KeyZero[c])
	}
	for t := range k.PageSize {
		tile, row := k.Head+t/k.Tokens*k.Tile, t%k.Tokens%8
		codes := tile + t%k.Tokens/8*half
		for g := range k.Groups {
			at := tile + 2*k.Codes + t%k.Tokens/8*rows/2*k.Groups*4 + (row/2*k.Groups+g)*4 + row%2*2
			number(at, &p.ValueScale[t*k.Groups+g])
			number(at+k.Params, &p.ValueZero[t*k.Groups+g])
		}
		for c := range k.HeadDim {
			g, in := c/32, c%32
			word := g / (4 / k.Bits)
			at := func(lanes, lane int) int { return word/vector*lanes*4*vector + lane*4*vector + word%vector*4 }
			lane := row*4 + in/(k.groupDims(g)/4)
			code(codes+at(rows*4, lane), k.field(g, k.keyPair(c))*k.Bits+c%2*16, &p.Keys[t*k.HeadDim+c])
			lane = in%16/2*(rows/2) + row/2
			code(codes+k.Codes+at(8*rows/2, lane), k.field(g, in/16*2+in%2)*k.Bits+row%2*16, &p.Values[t*k.HeadDim+c])
		}
	}
}

// decodedPage is what a quantised page means, and its record.
type decodedPage struct {
	keys, values []float64
	record       []byte
}

// QuantiseBlocks quantises every stored block: its pages, wherever they are whole, then mean what their codes mean. A block's rows lie
// elsewhere than its record does: see RowBlock.
func (c *Cache) QuantiseBlocks(k Kivi) {
	c.Kivi, c.quantised = &k, map[RecordKey]decodedPage{}
	for _, id := range c.ids {
		for head := range c.KVHeads {
			p := k.Quantise(c.decode(c.BlockKeys(id, head), c.PageSize, 1), c.decode(c.BlockValues(id, head), c.PageSize, 1))
			keys, values := k.Decode(p)
			c.quantised[RecordKey{id, head}] = decodedPage{keys, values, k.Pack(p)}
		}
	}
}

// KiviRecord is the packed record of a head's page of a stored block.
func (c *Cache) KiviRecord(id int32, head int) []byte { return c.quantised[RecordKey{id, head}].record }

// RowBlock is the block that holds the rows of a stored block in 16 bits: the block itself but in a KIVI cache, whose row table names blocks of
// its own. So that either table is never taken for the other, it is the stored block as far from the end of Blocks as id is from its begin.
func (c *Cache) RowBlock(id int32) int32 {
	at, ok := c.stored[id]
	if c.Kivi == nil || !ok {
		return id
	}
	return c.ids[len(c.ids)-1-at]
}

// RowTable is the block table of the rows: Table by RowBlock.
func (c *Cache) RowTable() []int32 {
	rows := make([]int32, len(c.Table))
	for i, id := range c.Table {
		rows[i] = c.RowBlock(id)
	}
	return rows
}

// DecodeRows is a whole page of a stored block as its rows have it: keys and values [token, dim].
func (c *Cache) DecodeRows(id int32, head int) (keys, values []float64) {
	return c.decode(c.BlockKeys(id, head), c.PageSize, c.KScale), c.decode(c.BlockValues(id, head), c.PageSize, c.VScale)
}

// AdoptKiviRecord makes a head's page of a stored block mean what a record says; with rows its keys in 16 bits too, as writing back leaves them.
func (c *Cache) AdoptKiviRecord(id int32, head int, record []byte, rows bool) {
	keys, values := c.Kivi.Decode(c.Kivi.Unpack(record))
	c.quantised[RecordKey{id, head}] = decodedPage{keys, values, record}
	if rows {
		c.EncodeKeys(c.BlockKeys(id, head), keys)
	}
}
