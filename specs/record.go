package specs

// Record is the layout "record" of one page summary in memory: what page_summary writes, page_score reads and the reference
// packs and unpacks. One record belongs to one (physical block, KV head). Sections follow each other in this order; every
// offset is a multiple of 4, the record's size a multiple of 16. Codes are little-endian inside a byte, the lowest first.
//
//	V     rank rows of head_dim codes of the basis (row c is column c of V)
//	mu    head_dim int8
//	C     page rows of rank int8, row t is token t, padded to RankPad codes (zeros)
//	Tok   page bf16 scales, one a token
//	Col   rank bf16 scales of V's columns (none at 16 bits)
//	Mu    one bf16 scale
//
// A row of V is stored in four quarters of head_dim/4 codes in natural order, each quarter padded with zero bytes to a multiple of
// 4 bytes, so that lane p of a quad loads its quarter in whole words. Padding is zero. 2-bit codes 0, 1, 2, 3 mean -1.5, -0.5, 0.5,
// 1.5; 4-bit codes are two's complement nibbles -7..7 stored with a bias of 8 (code + 8, so zero is 8); 8-bit codes two's complement; 16-bit values bf16.
type Record struct {
	Scorer                             string // empty: page_local, whose sections the other fields describe; the others stand in scorer.go
	HeadDim, PageSize, Rank, BasisBits int

	QuarterBytes int // one quarter of a row of V, padded
	RankPad      int // codes a token row of C: 1, 2, 4, 8 or 16
	V, Mu, C     int // offsets of the sections, bytes
	TokenScales  int
	ColumnScales int
	MuScale      int
	Bytes        int // whole record
}

// NewRecord lays out a record. The arguments are validated by the spec.
func NewRecord(headDim, pageSize, rank, basisBits int) Record {
	r := Record{HeadDim: headDim, PageSize: pageSize, Rank: rank, BasisBits: basisBits}
	r.QuarterBytes = roundUp((headDim/4*basisBits+7)/8, 4)
	r.RankPad = 1
	for r.RankPad < rank {
		r.RankPad *= 2
	}
	r.V = 0
	r.Mu = r.V + rank*4*r.QuarterBytes
	r.C = r.Mu + headDim
	r.TokenScales = roundUp(r.C+pageSize*r.RankPad, 4)
	r.ColumnScales = roundUp(r.TokenScales+2*pageSize, 4)
	r.MuScale = r.ColumnScales
	if basisBits != 16 {
		r.MuScale = roundUp(r.ColumnScales+2*rank, 4)
	}
	r.Bytes = roundUp(r.MuScale+2, 16)
	return r
}

// PayloadBytes is the summary without padding, the paper's figure: d*r*bits/8 + page*r + d + 2*(1 + r + page), and at 16 bits 2r
// fewer, for bf16 columns need no scales.
func (r Record) PayloadBytes() int {
	if r.Scorer != "" {
		return r.scorerPayload()
	}
	scales := 1 + r.Rank + r.PageSize
	if r.BasisBits == 16 {
		scales -= r.Rank
	}
	return (r.HeadDim*r.Rank*r.BasisBits+7)/8 + r.PageSize*r.Rank + r.HeadDim + 2*scales
}

func roundUp(n, to int) int { return (n + to - 1) / to * to }
