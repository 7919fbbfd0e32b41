package quality

import (
	"fmt"
	"strings"

	"github.com/kvloom/kvloom/internal/reference"
)

// Setting is what one row was measured at.
type Setting struct {
	Scorer   Method            `json:"scorer"`
	Rank     int               `json:"rank,omitempty"`
	Bits     int               `json:"basis_bits"`        // 0: unquantised, or a score without a basis
	Form     string            `json:"form,omitempty"`    // of a summary that is not the plain one, as reference.ParseForm reads it
	Weights  string            `json:"weights,omitempty"` // of a query-weighted basis: "prompt" or "file"
	PageSize int               `json:"page_size"`
	Budget   int               `json:"budget_tokens"`
	Combine  reference.Combine `json:"combine"`
	Float    bool              `json:"unquantised,omitempty"` // no stored form
	Scan     Scan              `json:"scan,omitempty"`        // other than full
	Rerank   float64           `json:"rerank,omitempty"`      // above 1
	Cache    CacheForm         `json:"cache,omitempty"`       // other than the file's own
}

// Name is the score with what distinguishes it, such as page_local r4 i4, page_local r2c4s16w x2.
func (s Setting) Name() string {
	parts := []string{s.Base()}
	if s.Scan != "" {
		parts = append(parts, string(s.Scan))
	}
	if s.Rerank > 1 {
		parts = append(parts, fmt.Sprintf("x%g", s.Rerank))
	}
	if s.Cache != Plain {
		parts = append(parts, string(s.Cache))
	}
	return strings.Join(parts, " ")
}

// Base is the score alone, without scan and rerank.
func (s Setting) Base() string {
	name := string(s.Scorer)
	switch {
	case s.Form != "":
		name += " " + s.Form
		if s.Weights == fromFile {
			name += " (file)"
		}
		return name
	case s.Rank > 0:
		name += fmt.Sprintf(" r%d", s.Rank)
	}
	if s.Float {
		return name + " float"
	}
	if s.Bits > 0 {
		name += fmt.Sprintf(" i%d", s.Bits)
	}
	return name
}

// Where the second moment of a weighted basis comes from.
const (
	fromPrompt = "prompt"
	fromFile   = "file"
)

// Row is one setting's result over queries and KV heads.
type Row struct {
	Setting
	Bytes float64 `json:"bytes_per_page"` // scanned for one page and KV head in one step; 0: no stored form, or nothing read
	// Read is Bytes and the keys that a rerank reads beyond those that attention reads anyway, spread over the pages of the context.
	Read   float64 `json:"bytes_with_rerank"`
	Mass   float64 `json:"mass"` // true softmax mass on the chosen pages, mean over query heads
	Worst  float64 `json:"worst_head_mass"`
	Recall float64 `json:"recall"` // share of the exact-LSE pages that were chosen, always-kept ones included
	Error  float64 `json:"output_error"`
	// RMS is the error of the page score against the exact one over complete pages, nats; nil for a score that estimates none.
	RMS *float64 `json:"score_rms_error,omitempty"`
}

// Report is the measurement of one file: one layer of one prompt.
type Report struct {
	File       string `json:"file"`
	Tokens     int    `json:"tokens"`
	HeadDim    int    `json:"head_dim"`
	QueryHeads int    `json:"query_heads"`
	KVHeads    int    `json:"kv_heads"`
	Queries    int    `json:"queries"` // last positions of each head that were scored
	Rows       []Row  `json:"rows"`
}
