package cli

import (
	"testing"

	"github.com/kvloom/kvloom/internal/bench"
)

// TestFamilyNames: lines of one table that measure other work have other names.
func TestFamilyNames(t *testing.T) {
	for _, c := range []struct {
		want  string
		shape bench.Shape
	}{
		{"page_score r4", bench.Shape{Rank: 4, Page: 16, CoefficientBits: 8, Basis: "svd", Scorer: "page_local"}},
		{"page_score r1c4m4 query_weighted", bench.Shape{Rank: 1, Page: 16, CoefficientBits: 4, CentroidBits: 4, Basis: "query_weighted", Scorer: "page_local"}},
		{"page_score r2s16g2 x2", bench.Shape{Rank: 2, Page: 16, ScaleGroup: "16", SummaryTokens: 32, Rerank: 2, Scorer: "page_local"}},
		{"page_score exact_lse warm", bench.Shape{Rank: 4, Page: 16, Scorer: "exact_lse", L2: "warm"}},
	} {
		if got := family(bench.Result{Family: "page_score", Shape: c.shape}); got != c.want {
			t.Errorf("%+v is called %q, want %q", c.shape, got, c.want)
		}
	}
}
