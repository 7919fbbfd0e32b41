package specs

// RecordForm is how a record of page_local holds C, the centroid and V's scales; its zero is the Locks paper's.
type RecordForm struct {
	Coefficients4 bool // C in 4 bits, else 8
	Centroid4     bool // the centroid less the head's mean key in 4 bits, a scale every ScaleDims dims; else 8 bits and one scale
	Grouped       bool // a scale every ScaleDims dims of a column of V, else one a column
}

// ScaleDims is the dims that share a scale where scales are grouped; it divides every head dim.
const ScaleDims = 16

// Plain reports the paper's form.
func (f RecordForm) Plain() bool { return f == RecordForm{} }

// String is what differs from the plain form, as kvloom quality spells it: c4, m4, s16, or several of them.
func (f RecordForm) String() (text string) {
	if f.Coefficients4 {
		text += "c4"
	}
	if f.Centroid4 {
		text += "m4"
	}
	if f.Grouped {
		text += "s16"
	}
	return text
}

// bits are 4 or 8.
func bits(small bool) int {
	if small {
		return 4
	}
	return 8
}

// CoefficientBits and CentroidBits are the widths of codes.
func (f RecordForm) CoefficientBits() int { return bits(f.Coefficients4) }

// CentroidBits is the width of a code of the centroid.
func (f RecordForm) CentroidBits() int { return bits(f.Centroid4) }

// Record is the layout "record" of one page summary in memory: what page_summary writes, page_score reads and the reference
// packs and unpacks. One record belongs to one (physical block, KV head). Sections follow each other in this order; every
// offset is a multiple of 4, the record's size a multiple of 16. Codes are little-endian inside a byte, the lowest first.
//
//	V     rank rows of head_dim codes of the basis (row c is column c of V)
//	mu    head_dim int8; at 4 bits a row like one of a 4-bit V
//	C     page rows of rank codes, row t is token t, padded to RankPad codes (zero bits); int8, at 4 bits nibbles as V's
//	Tok   page bf16 scales, one a token; of 8-bit codes with 4 significant bits (rounded up), so that f16 holds code times scale
//	Col   rank bf16 scales of V's columns (none at 16 bits); grouped: [rank][head_dim/16]
//	Mu    one bf16 scale; at 4 bits [head_dim/16]
//
// A row of V is stored in four quarters of head_dim/4 codes in natural order, each quarter padded with zero bytes to a multiple of
// 4 bytes, so that lane p of a quad loads its quarter in whole words. Padding is zero. 2-bit codes 0, 1, 2, 3 mean -1.5, -0.5, 0.5,
// 1.5; 4-bit codes are two's complement nibbles -7..7 stored with a bias of 8 (code + 8, so zero is 8); 8-bit codes two's complement; 16-bit values bf16.
type Record struct {
	Scorer                             string // empty: page_local, whose sections the other fields describe; the others stand in scorer.go
	HeadDim, PageSize, Rank, BasisBits int
	Form                               RecordForm

	QuarterBytes   int // one quarter of a row of V, padded
	MuQuarterBytes int // the same of the centroid
	RankPad        int // codes a token row of C: 1, 2, 4, 8 or 16
	ColumnGroups   int // scales of one column of V
	MuGroups       int // scales of the centroid
	V, Mu, C       int // offsets of the sections, bytes
	TokenScales    int
	ColumnScales   int
	MuScale        int
	Bytes          int // whole record
}

// NewRecord lays out a record of the paper's form. The arguments are validated by the spec.
func NewRecord(headDim, pageSize, rank, basisBits int) Record {
	return NewFormRecord(headDim, pageSize, rank, basisBits, RecordForm{})
}

// NewFormRecord lays out a record.
func NewFormRecord(headDim, pageSize, rank, basisBits int, form RecordForm) Record {
	r := Record{HeadDim: headDim, PageSize: pageSize, Rank: rank, BasisBits: basisBits, Form: form, ColumnGroups: 1, MuGroups: 1}
	r.QuarterBytes = roundUp((headDim/4*basisBits+7)/8, 4)
	r.MuQuarterBytes = headDim / 4
	if form.Grouped {
		r.ColumnGroups = headDim / ScaleDims
	}
	if form.Centroid4 {
		r.MuQuarterBytes, r.MuGroups = roundUp(headDim/8, 4), headDim/ScaleDims
	}
	r.RankPad = 1
	for r.RankPad < rank {
		r.RankPad *= 2
	}
	r.V = 0
	r.Mu = r.V + rank*4*r.QuarterBytes
	r.C = r.Mu + 4*r.MuQuarterBytes
	r.TokenScales = roundUp(r.C+pageSize*r.RankPad*form.CoefficientBits()/8, 4)
	r.ColumnScales = roundUp(r.TokenScales+2*pageSize, 4)
	r.MuScale = r.ColumnScales
	if basisBits != 16 {
		r.MuScale = roundUp(r.ColumnScales+2*rank*r.ColumnGroups, 4)
	}
	r.Bytes = roundUp(r.MuScale+2*r.MuGroups, 16)
	return r
}

// PayloadBytes is the summary without padding. In the paper's form its figure: d*r*bits/8 + page*r + d + 2*(1 + r + page), and at 16
// bits 2r fewer, for bf16 columns need no scales.
func (r Record) PayloadBytes() int {
	if r.Scorer != "" {
		return r.scorerPayload()
	}
	scales := r.MuGroups + r.Rank*r.ColumnGroups + r.PageSize
	if r.BasisBits == 16 {
		scales -= r.Rank * r.ColumnGroups
	}
	codes := r.HeadDim*r.Rank*r.BasisBits + r.PageSize*r.Rank*r.Form.CoefficientBits() + r.HeadDim*r.Form.CentroidBits()
	return (codes+7)/8 + 2*scales
}

func roundUp(n, to int) int { return (n + to - 1) / to * to }
