package quality

import (
	"fmt"
	"strings"

	"github.com/kvloom/kvloom/internal/reference"
)

// CacheForm is how the measured cache holds keys and values: empty as the file has them, else KIVI's quantisation (section 5.4 of the
// paper), kivi4 or kivi2, with page summaries of the keys in 16 bits (post, the default) or of the quantised keys (pre). Attention reads
// whole pages quantised either way.
type CacheForm string

// CacheForms are those that can be asked for. Plain is "bf16" on the command line.
var CacheForms = []CacheForm{Plain, "kivi4", "kivi4 pre", "kivi2", "kivi2 pre"}

// Plain is a cache that holds keys and values as the file has them.
const Plain CacheForm = ""

// ParseCacheForm reads "bf16", "kivi4", "kivi4-pre", "kivi2", "kivi2-pre".
func ParseCacheForm(text string) (CacheForm, error) {
	if text == "bf16" {
		return Plain, nil
	}
	for _, c := range CacheForms[1:] {
		if strings.ReplaceAll(string(c), " ", "-") == text {
			return c, nil
		}
	}
	return "", fmt.Errorf("cache %q; use bf16, kivi4, kivi4-pre, kivi2 or kivi2-pre", text)
}

// bits of a code, 0 of a plain cache.
func (c CacheForm) bits() int {
	switch {
	case strings.HasPrefix(string(c), "kivi4"):
		return 4
	case strings.HasPrefix(string(c), "kivi2"):
		return 2
	}
	return 0
}

// pre reports whether summaries see the quantised keys.
func (c CacheForm) pre() bool { return strings.HasSuffix(string(c), "pre") }

// caches are what is measured, Plain without any being asked for.
func (o Options) caches() []CacheForm {
	if len(o.Caches) == 0 {
		return []CacheForm{Plain}
	}
	return o.Caches
}

// store holds one KV head's keys and values [token, dim] as attention reads them: whole pages of a quantised cache by their codes.
type store struct {
	keys, values       []float64
	rowKeys, rowValues []float64 // as the file has them: a page that is still filling is not quantised
	page, dim          int
}

// stores are a head's caches of every width that is measured.
func (l *layer) stores(o Options, head, page int) map[int]store {
	from, to := head*l.tokens*l.dim, (head+1)*l.tokens*l.dim
	plain := store{keys: l.keys[from:to], values: l.values[from:to], rowKeys: l.keys[from:to], rowValues: l.values[from:to], page: page, dim: l.dim}
	out := map[int]store{0: plain}
	for _, c := range o.caches() {
		bits := c.bits()
		if _, ok := out[bits]; ok {
			continue
		}
		s := plain
		s.keys, s.values = append([]float64{}, plain.keys...), append([]float64{}, plain.values...)
		k := reference.NewKivi(l.dim, page, bits)
		for at := 0; at+page*l.dim <= len(s.keys); at += page * l.dim {
			keys, values := k.Decode(k.Quantise(s.keys[at:at+page*l.dim], s.values[at:at+page*l.dim]))
			copy(s.keys[at:], keys)
			copy(s.values[at:], values)
		}
		out[bits] = s
	}
	return out
}

// of are the keys and values of a page of which a position sees so many tokens.
func (s store) of(page, tokens int) (keys, values []float64) {
	from, to := page*s.page*s.dim, (page*s.page+tokens)*s.dim
	if tokens < s.page {
		return s.rowKeys[from:to], s.rowValues[from:to]
	}
	return s.keys[from:to], s.values[from:to]
}

// codesOf is an exact score of quantised keys: it reads their half of the records.
type codesOf struct {
	reference.PageScorer
	kivi reference.Kivi
}

// Bytes are the codes, scales and zeros of a page's keys.
func (c codesOf) Bytes() float64 { return float64(c.kivi.Head + c.kivi.Tiles*c.kivi.Codes) }
