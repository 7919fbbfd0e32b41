package verify

import (
	"github.com/kvloom/kvloom/specs"
)

// Layout is how a case places K and V in memory.
type Layout string

// The layouts.
const (
	TokenMajor  Layout = "token_major" // [block, token, head, dim], K and V apart
	HeadMajor   Layout = "head_major"  // [block, head, token, dim], K and V apart
	Interleaved Layout = "interleaved" // K and V in one block of one buffer, block stride larger than both (M2)
	Padded      Layout = "padded"      // K and V with different odd strides for every axis (M4)
	FarApart    Layout = "far_apart"   // block ids whose offsets pass 2^32 elements (M1)
	Contiguous  Layout = "contiguous"  // a request's pages in order, [batch, token, head, dim]: the DropKV families take no table
)

// Data is how a case fills keys and queries.
type Data string

// The kinds.
const (
	Random     Data = "random"     // keys around a page centre, low-rank plus noise, as real keys are
	Wide       Data = "wide"       // logits up to 64 and somewhat more
	Extreme    Data = "extreme"    // keys up to 3e4 (bf16; 3e4 is within fp16 too)
	LowRank    Data = "low_rank"   // pages of exact rank 2
	NearEqual  Data = "near_equal" // all directions of a page alike: no good basis exists
	Degenerate Data = "degenerate" // constant pages, repeated keys, zeros, one outlier key 1e4 times the rest
	Dominant   Data = "dominant"   // one token of a prompt holds nearly all attention (DropKV)
	Alike      Data = "alike"      // all keys of a head are the same (DropKV)
	Rising     Data = "rising"     // logits that rise along the prompt, far above those of its first tokens (DropKV)
	NotFinite  Data = "not_finite" // as random; some values are NaN or infinite (DropKV)
	Real       Data = "real"       // the SmolLM2 sample (head dim 64); other dims repeat and cut it
)

// Case is one input of the families that read a cache.
type Case struct {
	Name, Reason string
	KVHeads      int   // 0: the spec's own
	Lens         []int // tokens of each request at the first launch
	// Replays are the lengths of further launches of the graph that was captured with Lens. The table is laid out for the
	// longest of them; no request of a replay is longer than any in Lens allows a row of the table.
	Replays  [][]int
	HeadLens bool // per-head lengths, shorter than the request's (attend)
	Holes    bool // some pages in the middle have block id -1
	Shared   int  // leading pages that all requests share
	Spare    int  // columns of the table beyond the longest request
	Layout   Layout
	Data     Data
	Long     bool // only with full workloads
	// Alone marks a case for which a family may leave out all but one KV head of the reference, because it is long.
	Alone bool
}

// Cases are the inputs that every family reading a cache is checked on, for one spec.
func Cases(s *specs.Spec, o Options) []Case {
	p := s.Cache.PageSize
	few := min(s.Attention.KVHeads, 2)
	half := 33*p - p/2
	cases := []Case{
		{Name: "one page", Reason: "the smallest whole page", KVHeads: few, Lens: []int{p}, Layout: TokenMajor, Data: Random},
		{Name: "no pages", Reason: "seq_len 0 alone and in a padded row (T9)", KVHeads: few, Lens: []int{0, 2*p + 1, 0}, Spare: 3, Layout: TokenMajor, Data: Random},
		{Name: "one token", Reason: "a page that only begins", KVHeads: few, Lens: []int{1, p - 1, p + 1}, Layout: HeadMajor, Data: Random},
		{Name: "33 pages", Reason: "no multiple of any tile; all KV heads of the spec", Lens: []int{33 * p}, Layout: TokenMajor, Data: Random},
		{Name: "half-full last page", Reason: "stale keys behind seq_len are NaN (M3)", KVHeads: few, Lens: []int{half, 17*p + 1}, Spare: 5, Layout: HeadMajor, Data: Random},
		{Name: "mixed lengths", Reason: "0, short and long requests in one batch", KVHeads: few, Lens: []int{0, 3, 33 * p, p, 5*p - 1}, Spare: 2, Layout: Padded, Data: Random},
		{Name: "interleaved", Reason: "K and V in one block, block stride 1,039,680 B (M2)", KVHeads: few, Lens: []int{9*p + p/2, 4 * p}, Layout: Interleaved, Data: Random},
		{Name: "one kv head", Reason: "an arbitrary head stride must not matter (M2)", KVHeads: 1, Lens: []int{7*p + 1}, Layout: Padded, Data: Random},
		{Name: "holes", Reason: "block id -1 in a live page is never followed", KVHeads: few, Lens: []int{12 * p, 6*p + 2}, Holes: true, Layout: TokenMajor, Data: Random},
		{Name: "shared prefix", Reason: "two requests share physical blocks", KVHeads: few, Lens: []int{6*p + 1, 4 * p}, Shared: 3, Layout: TokenMajor, Data: Random},
		{Name: "far apart", Reason: "offsets beyond 2^32 elements (M1)", KVHeads: few, Lens: []int{5*p + 1}, Layout: FarApart, Data: Random},
		{Name: "head lengths", Reason: "a cache compacted per head", KVHeads: few, Lens: []int{8 * p, 3*p + 1, 0}, HeadLens: true, Layout: HeadMajor, Data: Random},
		{Name: "wide logits", Reason: "|logit| up to 64 and more", KVHeads: few, Lens: []int{20*p + p/2}, Layout: TokenMajor, Data: Wide},
		{Name: "extreme keys", Reason: "|key| up to 3e4", KVHeads: few, Lens: []int{9 * p}, Layout: TokenMajor, Data: Extreme},
		{Name: "low rank", Reason: "pages of rank 2", KVHeads: few, Lens: []int{9 * p}, Layout: TokenMajor, Data: LowRank},
		{Name: "near-equal spectrum", Reason: "no direction stands out", KVHeads: few, Lens: []int{9 * p}, Layout: TokenMajor, Data: NearEqual},
		{Name: "degenerate pages", Reason: "constant, repeated and zero keys, one outlier", KVHeads: few, Lens: []int{10 * p}, Layout: TokenMajor, Data: Degenerate},
		{Name: "real keys", Reason: "keys of a real model", KVHeads: min(s.Attention.KVHeads, 3), Lens: []int{1024 - p/2}, Layout: HeadMajor, Data: Real},
		{Name: "replayed at other lengths", Reason: "a graph's lengths come from device memory (G2)", KVHeads: few, Lens: []int{9 * p, 4*p + 1},
			Replays: [][]int{{p, 20*p - 1}, {33 * p, 0}, {9*p + 1, 4*p + 1}}, Spare: 1, Layout: TokenMajor, Data: Random},
		{Name: "fewer live requests", Reason: "captured at batch 8, replayed with 3 (G1)", KVHeads: few, Lens: []int{2 * p, p, 3 * p, 4*p + 1, 1, 2*p + 1, 6 * p, p},
			Replays: [][]int{{2*p + 1, 0, p + 3, 0, 0, 0, 5, 0}, {0, 0, 0, 0, 0, 0, 0, 0}}, Layout: TokenMajor, Data: Random},
	}
	cases = append(cases,
		Case{Name: "crosses 1024 tokens", Reason: "a split count of another length is stale (G2)", KVHeads: 1, Lens: []int{1023},
			Replays: [][]int{{1024}, {1025}, {1024 + 3*p}}, Layout: TokenMajor, Data: Random},
		Case{Name: "32K tokens", Reason: "every template at long lengths (S2)", KVHeads: 1, Lens: []int{32768 - p/2}, Layout: TokenMajor, Data: Random, Long: true, Alone: true},
		Case{Name: "128K beside 4K", Reason: "long and short rows in one batch (T5)", KVHeads: 1, Lens: []int{131072, 4096, 8191}, Layout: HeadMajor, Data: Random, Long: true, Alone: true},
	)
	kept := cases[:0]
	for _, c := range cases {
		if o.Wants(c.Name) && (o.Full() || !c.Long) {
			if c.KVHeads == 0 {
				c.KVHeads = s.Attention.KVHeads
			}
			kept = append(kept, c)
		}
	}
	return kept
}

// Launches are the lengths of every launch, the first included.
func (c Case) Launches() [][]int { return append([][]int{c.Lens}, c.Replays...) }

// longest is the longest length of each request over all launches.
func (c Case) longest() []int {
	out := make([]int, len(c.Lens))
	for _, lens := range c.Launches() {
		for i, n := range lens {
			out[i] = max(out[i], n)
		}
	}
	return out
}
