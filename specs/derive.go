package specs

import "math"

// Derived are the figures that follow from a spec. Bytes are of one layer unless they say otherwise.
type Derived struct {
	Group        int              `json:"group"`          // query heads a KV head
	Slots        int              `json:"slots"`          // k, pages a list
	KVPageBytes  int              `json:"kv_page_bytes"`  // keys and values of one page and KV head
	KVTokenBytes int              `json:"kv_token_bytes"` // keys and values of one token, all KV heads
	Summary      SummaryFigures   `json:"summary"`
	Ranks        []SummaryFigures `json:"ranks"` // the same cache at other ranks, the spec's own among them
	Contexts     []ContextFigures `json:"contexts"`
	Parallel     []TensorParallel `json:"tensor_parallel"`
	DropKV       DropKVFigures    `json:"dropkv"`
}

// SummaryFigures is the size of one summary of one KV head, and its part of the keys and values that it serves.
type SummaryFigures struct {
	Scorer       string  `json:"scorer,omitempty"` // other than page_local, which has ranks
	Rank         int     `json:"rank"`
	BasisBits    int     `json:"basis_bits"`
	PayloadBytes int     `json:"payload_bytes"` // the paper's figure
	RecordBytes  int     `json:"record_bytes"`  // as stored, with padding
	Percent      float64 `json:"percent"`       // payload of KV bytes
	StoredPart   float64 `json:"stored_percent"`
}

// ContextFigures is one workload.
type ContextFigures struct {
	Context      int     `json:"context"`
	Batch        int     `json:"batch"`
	Pages        int     `json:"pages"`         // a request, the one that is filling included
	Selected     int     `json:"selected"`      // pages attended: k, or all where there are fewer
	Percent      float64 `json:"percent"`       // selected of pages
	KVBytes      int64   `json:"kv_bytes"`      // the batch's cache
	SummaryBytes int64   `json:"summary_bytes"` // the batch's summaries, stored
	DropKVTokens int     `json:"dropkv_tokens"` // tokens a head keeps of a prompt of this length: the mean over heads and layers
	DropKVLeast  int     `json:"dropkv_least"`  // by the head that keeps the fewest, of adaptive ones what it is sure of; by the last layer of a pyramid
	DropKVMost   int     `json:"dropkv_most"`   // by the head that may keep the most, or the first layer
}

// TensorParallel is one GPU's part when a layer is divided over Ways GPUs: KV heads are split, and where there are fewer than
// GPUs, replicated.
type TensorParallel struct {
	Ways         int    `json:"ways"`
	Reason       string `json:"reason,omitempty"` // why it is not possible; the other figures are then zero
	QueryHeads   int    `json:"query_heads"`
	KVHeads      int    `json:"kv_heads"`
	Group        int    `json:"group"`
	Replicas     int    `json:"replicas"`           // GPUs that hold the same KV head
	KVTokenBytes int    `json:"kv_token_bytes"`     // of one GPU
	SummaryBytes int    `json:"summary_page_bytes"` // stored, one page, all KV heads of one GPU
}

// DropKVFigures are DropKV's.
type DropKVFigures struct {
	Passes int `json:"passes"` // times that K and V are read from memory: ceil(window x group / 128)
}

// Derive computes the figures of a valid spec.
func Derive(s *Spec) Derived {
	page := s.Cache.PageSize
	d := Derived{
		Group:        s.Attention.Group(),
		Slots:        s.Slots(),
		KVPageBytes:  s.pageBytes(),
		KVTokenBytes: s.Attention.KVHeads * s.pageBytes() / page,
		DropKV:       DropKVFigures{Passes: (s.DropKV.Window*s.Attention.Group() + 127) / 128},
	}
	figures := func(rank int) SummaryFigures {
		r := NewFormRecord(s.Attention.HeadDim, s.SummaryTokens(), rank, s.Locks.BasisBits, s.Locks.RecordForm())
		kv := s.SummaryPages() * d.KVPageBytes
		return SummaryFigures{Rank: rank, BasisBits: s.Locks.BasisBits, PayloadBytes: r.PayloadBytes(), RecordBytes: r.Bytes,
			Percent: percent(r.PayloadBytes(), kv), StoredPart: percent(r.Bytes, kv)}
	}
	d.Summary = figures(s.Locks.Rank)
	ranks := []int{16, 8, 4, 2, 1}
	if r := s.Record(); r.Scorer != "" {
		ranks = nil
		d.Summary = SummaryFigures{Scorer: r.Scorer, PayloadBytes: r.PayloadBytes(), RecordBytes: r.Bytes,
			Percent: percent(r.PayloadBytes(), d.KVPageBytes), StoredPart: percent(r.Bytes, d.KVPageBytes)}
		d.Ranks = append(d.Ranks, d.Summary)
	}
	for _, rank := range ranks {
		if s.Locks.Rank > rank && (len(d.Ranks) == 0 || d.Ranks[len(d.Ranks)-1].Rank > s.Locks.Rank) {
			d.Ranks = append(d.Ranks, d.Summary)
		}
		if rank < s.SummaryTokens() {
			d.Ranks = append(d.Ranks, figures(rank))
		}
	}
	for _, w := range s.Workloads {
		pages := (w.Context + page - 1) / page
		selected := min(d.Slots, pages)
		lists := int64(w.Batch) * int64(s.Attention.KVHeads)
		mean, least, most := s.DropKV.kept(w.Context, s.Attention.KVHeads)
		d.Contexts = append(d.Contexts, ContextFigures{
			Context: w.Context, Batch: w.Batch, Pages: pages, Selected: selected, Percent: percent(selected, pages),
			KVBytes:      int64(w.Batch) * int64(w.Context) * int64(d.KVTokenBytes),
			SummaryBytes: lists * int64(w.Context/s.SummaryTokens()) * int64(d.Summary.RecordBytes),
			DropKVTokens: mean, DropKVLeast: least, DropKVMost: most,
		})
	}
	for _, ways := range []int{1, 2, 4, 8} {
		d.Parallel = append(d.Parallel, s.parallel(ways, d))
	}
	return d
}

// parallel divides a layer over GPUs.
func (s *Spec) parallel(ways int, d Derived) TensorParallel {
	a := s.Attention
	t := TensorParallel{Ways: ways}
	switch {
	case a.QueryHeads%ways != 0:
		t.Reason = "query heads do not divide"
		return t
	case a.KVHeads%ways == 0:
		t.KVHeads, t.Replicas = a.KVHeads/ways, 1
	case ways%a.KVHeads == 0:
		t.KVHeads, t.Replicas = 1, ways/a.KVHeads
	default:
		t.Reason = "KV heads neither divide nor repeat"
		return t
	}
	t.QueryHeads = a.QueryHeads / ways
	t.Group = t.QueryHeads / t.KVHeads
	t.KVTokenBytes = d.KVTokenBytes / a.KVHeads * t.KVHeads
	t.SummaryBytes = d.Summary.RecordBytes * t.KVHeads
	return t
}

// Keep is how many tokens of a prompt of n a head keeps under a uniform budget: max(ceil(ratio*n), window, 1), or the number of
// tokens given, but never more than there are.
func (k DropKV) Keep(n int) int {
	keep := k.Budget.Tokens
	if k.Budget.Ratio > 0 {
		// 0.07*100 is 7.000000000000001 in binary, and has to keep 7.
		keep = int(math.Ceil(k.Budget.Ratio * float64(n) * (1 - 1e-12)))
	}
	return min(n, max(keep, k.Window, 1))
}

// pyramidShare is what the smallest layer of a pyramid gets of the mean beside the window: a twentieth.
const pyramidShare = 20

// kept is what heads keep of a prompt of n tokens: the mean, and the least and most of any head, or of any layer where a pyramid has two or more.
func (k DropKV) kept(n, heads int) (mean, least, most int) {
	mean = k.Keep(n)
	switch h := k.HeadBudgets; h.Kind {
	case "explicit":
		sum := 0
		least = n
		for _, tokens := range h.List {
			tokens = min(n, max(tokens, k.Window, 1))
			sum, least, most = sum+tokens, min(least, tokens), max(most, tokens)
		}
		return (sum + heads/2) / heads, least, most
	case "adaptive":
		pinned := min(mean, k.Window+k.SinkTokens)
		sure := pinned + int(math.Floor(h.Floor*float64(mean-pinned)*(1+1e-12)))
		return mean, sure, min(n, sure+heads*(mean-sure))
	case "pyramid":
		window, open := min(n, k.Window), max(mean-k.Window, 0)
		low := open / pyramidShare
		if all := max(n-k.Window, 0); 2*open-low >= all {
			low = 2*open - all
		}
		return mean, window + low, window + 2*open - low
	}
	return mean, mean, mean
}

func percent(part, whole int) float64 { return 100 * float64(part) / float64(whole) }
