package reference

import "fmt"

// DropRule is how a token of a prompt is scored before eviction; a higher score is kept longer. The window is the last w queries,
// query i of which stands at position n-w+i and sees the tokens up to itself; a sum over the window is meant where a rule has
// queries, then the mean over the group's heads.
type DropRule string

// The rules, as specs spell them.
const (
	// DropKV: DropKV, "Decoupling Residual-Output Perturbation". The squared change of the output when the token alone is dropped,
	// (p/(1-p+eps))^2 ||a - v||^2, p its attention weight and a the attention output.
	DropKV DropRule = "dropkv"
	// SnapKV: Li et al. 2024, "SnapKV: LLM Knows What You are Looking for Before Generation". The attention weight p.
	SnapKV DropRule = "snapkv"
	// ValueNorm: the bound of Feng et al. 2025, "Identify Critical KV Cache in LLM Inference from an Output Perturbation
	// Perspective" (CriticalKV): p ||v||_1. The publication projects v by the output matrix first, which a cache does not hold;
	// without it the bound is the score of Guo et al. 2024, "Attention Score is not All You Need for Token Importance Indicator".
	ValueNorm DropRule = "value_norm"
	// KeyDiff: Park et al. 2025, "KeyDiff: Key Similarity-Based KV Cache Eviction". Minus the cosine between the key and the mean
	// of all keys' directions; no queries.
	KeyDiff DropRule = "keydiff"
	// Streaming: Xiao et al. 2023, "Efficient Streaming Language Models with Attention Sinks". The position: sinks are pinned and
	// the most recent tokens score highest.
	Streaming DropRule = "streaming"
)

// DropRules are all rules, in the order of the specs.
var DropRules = []DropRule{DropKV, SnapKV, ValueNorm, KeyDiff, Streaming}

// ParseDropRule names a rule as specs do.
func ParseDropRule(name string) (DropRule, error) {
	for _, r := range DropRules {
		if string(r) == name {
			return r, nil
		}
	}
	return "", fmt.Errorf("dropkv rule %q is unknown; use dropkv, snapkv, value_norm, keydiff or streaming", name)
}

// Queries reports whether the rule looks at the window's queries.
func (r DropRule) Queries() bool { return r == DropKV || r == SnapKV || r == ValueNorm }

// DropWindow holds the last Window queries of each request: [batch, query head, Window, dim] bit patterns of the cache's dtype. Row
// i belongs to position n-Window+i; rows before position 0 do not exist, whatever they hold.
type DropWindow struct {
	DType                  DType
	Heads, Window, HeadDim int
	Bits                   []uint16
}

// Of decodes one query.
func (q DropWindow) Of(request, head, i int) []float64 {
	out := make([]float64, q.HeadDim)
	at := ((request*q.Heads+head)*q.Window + i) * q.HeadDim
	q.DType.Values(out, q.Bits[at:at+q.HeadDim])
	return out
}

// Validate reports a window that no kernel takes.
func (q DropWindow) Validate(kvHeads int) error {
	switch {
	case q.Window < 1 || q.Window > 64:
		return fmt.Errorf("window of %d queries; allowed: 1 to 64", q.Window)
	case kvHeads < 1 || q.Heads%kvHeads != 0:
		return fmt.Errorf("%d query heads over %d KV heads: every KV head serves the same whole number of query heads", q.Heads, kvHeads)
	}
	return nil
}

// DropTokens are one KV head's tokens of one request.
type DropTokens struct {
	N, Dim       int
	Keys, Values []float64 // [N, Dim]; zeros where missing
	Missing      []bool    // [N]: the token's page has no block (id -1)
}

// DropTokens decodes a request's tokens of a KV head.
func (c *Cache) DropTokens(request, kvHead int) DropTokens {
	n := int(c.SeqLens[request])
	t := DropTokens{N: n, Dim: c.HeadDim, Keys: make([]float64, n*c.HeadDim), Values: make([]float64, n*c.HeadDim), Missing: make([]bool, n)}
	for page := range c.Pages(n) {
		first, tokens := page*c.PageSize, c.TokensIn(page, n)
		if c.Block(request, page) < 0 {
			for i := range tokens {
				t.Missing[first+i] = true
			}
			continue
		}
		copy(t.Keys[first*t.Dim:], c.Keys(request, page, kvHead, tokens))
		copy(t.Values[first*t.Dim:], c.Values(request, page, kvHead, tokens))
	}
	return t
}

// Key is the key of a token.
func (t DropTokens) Key(j int) []float64 { return t.Keys[j*t.Dim : (j+1)*t.Dim] }

// Value is the value of a token.
func (t DropTokens) Value(j int) []float64 { return t.Values[j*t.Dim : (j+1)*t.Dim] }
