package specs

import (
	"fmt"
	"slices"
)

// The cache types whose pages are quantised as KIVI does (paper, section 5.4): keys per channel over the tokens of a page, values per token
// over groups of 32 channels. The page that is still filling stays in bf16, which queries and outputs are too.
const (
	KIVI4 = "kivi4"
	KIVI2 = "kivi2"
)

// PreSummaries is locks.summaries of summaries that are built from quantised keys; the default, post, builds them from the keys in bf16.
const PreSummaries = "pre"

// KiviBits is the width of a code of a KIVI cache, 0 of any other.
func (c Cache) KiviBits() int { return map[string]int{KIVI4: 4, KIVI2: 2}[c.DType] }

// RowType is the type of the rows of keys and values that a kernel other than page_attend reads: the cache's own, and bf16 in a KIVI cache.
func (c Cache) RowType() string {
	if c.KiviBits() > 0 {
		return "bf16"
	}
	return c.DType
}

// Compute is the type of queries and outputs beside the cache.
func (c Cache) Compute() string {
	if c.DType == FP8 {
		return "bf16"
	}
	return c.RowType()
}

// Evicts reports whether kernels exist that evict tokens from such a cache.
func (c Cache) Evicts() bool { return c.KiviBits() == 0 }

// KiviRecord is the layout of one quantised page of one KV head in memory: what kv_quantize writes and page_attend reads. The header
// quant/kivi.cuh describes the order of codes. All offsets are multiples of 16.
//
//	scales of K  [dim] f16, over what a code's place in its word multiplies it by
//	zeros of K   [dim] f16
//	tiles        of min(page, 16) tokens: codes of K, codes of V, scales of V, zeros of V (bf16, one for each token and group)
type KiviRecord struct {
	HeadDim, PageSize, Bits int

	Groups int // of 32 channels, the last perhaps of 16
	Tokens int // of a tile
	Tiles  int
	Words  int // 32-bit words of codes of a lane: of a token and quarter of K's channels, of two tokens and an eighth of V's
	Params int // bytes of a tile's scales of V, padded; its zeros take the same
	Codes  int // bytes of a tile's codes of K; V's take the same
	Head   int // bytes of what all tokens of K share, before the first tile
	Tile   int // bytes
	Bytes  int // whole record
}

// NewKiviRecord lays out a record. The arguments are validated by the spec.
func NewKiviRecord(headDim, pageSize, bits int) KiviRecord {
	r := KiviRecord{HeadDim: headDim, PageSize: pageSize, Bits: bits, Groups: (headDim + 31) / 32, Tokens: min(pageSize, 16)}
	chunks := 4 / bits // groups that a word covers
	r.Tiles = pageSize / r.Tokens
	r.Words = (r.Groups + chunks - 1) / chunks
	r.Params = roundUp(4*r.Tokens/2*r.Groups, 16)
	r.Codes = 16 * r.Tokens * r.Words
	r.Head = 4 * headDim
	r.Tile = 2*r.Codes + 2*r.Params
	r.Bytes = r.Head + r.Tiles*r.Tile
	return r
}

// PayloadBytes is a record without padding: codes of K and V, a scale and a zero of 16 bits for each channel of K, and for each token and
// group of V's channels.
func (r KiviRecord) PayloadBytes() int {
	return 2*r.PageSize*r.HeadDim*r.Bits/8 + 4*r.HeadDim + 4*r.PageSize*r.Groups
}

// Kivi is the record of a page of a KIVI cache.
func (s *Spec) Kivi() KiviRecord {
	return NewKiviRecord(s.Attention.HeadDim, s.Cache.PageSize, s.Cache.KiviBits())
}

// StoreBytes is a quantised page and KV head of a KIVI cache, 0 of any other.
func (s *Spec) StoreBytes() int {
	if s.Cache.KiviBits() == 0 {
		return 0
	}
	return s.Kivi().Bytes
}

// pageBytes is what a page of K and V of one KV head takes.
func (s *Spec) pageBytes() int {
	if s.Cache.KiviBits() > 0 {
		return s.Kivi().Bytes
	}
	return 2 * s.Cache.PageSize * s.Attention.HeadDim * s.Cache.ElementBytes()
}

// faultSummaries refuses locks.summaries beside a cache whose keys are not quantised.
func faultSummaries(s *Spec, d *decoder) string {
	if s.Cache.KiviBits() > 0 || !d.written("locks.summaries") {
		return ""
	}
	return fmt.Sprintf("locks.summaries %s belongs to cache.dtype kivi4 or kivi2, not %s, whose keys are what they were; remove it", s.Locks.Summaries, s.Cache.DType)
}

// quantised reports whether a cache's pages hold codes of any kind.
func (c Cache) quantised() bool { return slices.Contains([]string{FP8, KIVI4, KIVI2}, c.DType) }
