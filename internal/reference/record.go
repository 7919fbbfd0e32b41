package reference

import (
	"encoding/binary"
	"fmt"

	"github.com/kvloom/kvloom/specs"
)

// Layout is where the sections of a packed summary of this shape lie.
func (s Shape) Layout() specs.Record {
	if s.Scorer != "" {
		return specs.NewScorerRecord(s.Scorer, s.HeadDim, s.PageSize)
	}
	return specs.NewFormRecord(s.HeadDim, s.PageSize, s.Rank, s.BasisBits, s.Form)
}

// codeBits returns the bits that the record stores for a basis code.
func codeBits(code int32, bits int) uint32 {
	switch bits {
	case 4:
		return uint32(code + 8)
	case 8:
		return uint32(uint8(int8(code)))
	}
	return uint32(code)
}

// codeOf is the inverse of codeBits.
func codeOf(stored uint32, bits int) int32 {
	switch bits {
	case 4:
		return int32(stored) - 8
	case 8:
		return int32(int8(uint8(stored)))
	}
	return int32(stored)
}

// basisAt returns the byte of a row-major basis code in a record, and its shift inside it.
func basisAt(l specs.Record, row, dim int) (offset, shift int) {
	quarter := l.HeadDim / 4
	bit := dim % quarter * l.BasisBits
	return l.V + (row*4+dim/quarter)*l.QuarterBytes + bit/8, bit % 8
}

// muAt returns the byte of a code of the centroid in a record, and its shift inside it.
func muAt(l specs.Record, dim int) (offset, shift int) {
	quarter := l.HeadDim / 4
	bit := dim % quarter * l.Form.CentroidBits()
	return l.Mu + dim/quarter*l.MuQuarterBytes + bit/8, bit % 8
}

// coefficientAt is the same of a row-major code of C.
func coefficientAt(l specs.Record, i int) (offset, shift int) {
	bit := (i/l.Rank*l.RankPad + i%l.Rank) * l.Form.CoefficientBits()
	return l.C + bit/8, bit % 8
}

// storedCode is what a record stores for a code of the centroid or of C; codeStored is its inverse.
func storedCode(code int8, four bool) byte {
	if four {
		return byte(code + 8)
	}
	return byte(code)
}

func codeStored(stored byte, four bool) int8 {
	if four {
		return int8(stored&15) - 8
	}
	return int8(stored)
}

// Pack lays the codes out as specs.Record says, padding zero: Layout().Bytes bytes.
func (c Codes) Pack() []byte {
	l := c.Layout()
	b := make([]byte, l.Bytes)
	for i, code := range c.V {
		at, shift := basisAt(l, i/c.HeadDim, i%c.HeadDim)
		bits := codeBits(code, c.BasisBits)
		if c.BasisBits == 16 {
			binary.LittleEndian.PutUint16(b[at:], uint16(bits))
		} else {
			b[at] |= byte(bits << shift)
		}
	}
	for i, x := range c.Mu {
		at, shift := muAt(l, i)
		b[at] |= storedCode(x, c.Form.Centroid4) << shift
	}
	for i, x := range c.C {
		at, shift := coefficientAt(l, i)
		b[at] |= storedCode(x, c.Form.Coefficients4) << shift
	}
	for t, scale := range c.TokenScale {
		binary.LittleEndian.PutUint16(b[l.TokenScales+2*t:], scale)
	}
	for r, scale := range c.VScale {
		binary.LittleEndian.PutUint16(b[l.ColumnScales+2*r:], scale)
	}
	binary.LittleEndian.PutUint16(b[l.MuScale:], c.MuScale)
	for g, scale := range c.MuGroups {
		binary.LittleEndian.PutUint16(b[l.MuScale+2*g:], scale)
	}
	return b
}

// Unpack reads a packed record. Padding that is not zero is an error, for the layout promises zeros.
func Unpack(shape Shape, b []byte) (Codes, error) {
	l := shape.Layout()
	if len(b) != l.Bytes {
		return Codes{}, fmt.Errorf("a record of head dim %d, page %d, rank %d, %d bits has %d bytes, got %d",
			shape.HeadDim, shape.PageSize, shape.Rank, shape.BasisBits, l.Bytes, len(b))
	}
	c := Codes{Shape: shape,
		Mu: make([]int8, shape.HeadDim), V: make([]int32, shape.Rank*shape.HeadDim),
		C: make([]int8, shape.PageSize*shape.Rank), TokenScale: make([]uint16, shape.PageSize)}
	for i := range c.V {
		at, shift := basisAt(l, i/shape.HeadDim, i%shape.HeadDim)
		if shape.BasisBits == 16 {
			c.V[i] = int32(binary.LittleEndian.Uint16(b[at:]))
		} else {
			c.V[i] = codeOf(uint32(b[at])>>shift&(1<<shape.BasisBits-1), shape.BasisBits)
		}
	}
	for i := range c.Mu {
		at, shift := muAt(l, i)
		c.Mu[i] = codeStored(b[at]>>shift, shape.Form.Centroid4)
	}
	for i := range c.C {
		at, shift := coefficientAt(l, i)
		c.C[i] = codeStored(b[at]>>shift, shape.Form.Coefficients4)
	}
	for t := range c.TokenScale {
		c.TokenScale[t] = binary.LittleEndian.Uint16(b[l.TokenScales+2*t:])
	}
	if shape.BasisBits != 16 {
		c.VScale = make([]uint16, shape.Rank*l.ColumnGroups)
		for r := range c.VScale {
			c.VScale[r] = binary.LittleEndian.Uint16(b[l.ColumnScales+2*r:])
		}
	}
	c.MuScale = binary.LittleEndian.Uint16(b[l.MuScale:])
	if shape.Form.Centroid4 {
		c.MuGroups = make([]uint16, l.MuGroups)
		for g := range c.MuGroups {
			c.MuGroups[g] = binary.LittleEndian.Uint16(b[l.MuScale+2*g:])
		}
	}
	for i, x := range c.Pack() {
		if x != b[i] {
			return c, fmt.Errorf("byte %d of a record is %#02x where the layout has padding or a code of zero", i, b[i])
		}
	}
	return c, nil
}
