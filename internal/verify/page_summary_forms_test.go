package verify

import (
	"testing"

	"github.com/kvloom/kvloom/gen/plan"
)

// formCases are the inputs that every record form is built from on the simulator: constant, zero and repeated keys, outliers 1e4 times
// larger, keys that give |q.k| of 3e4, prompts of one token, keys that are not finite.
var formCases = []string{"one token", "one kv head", "half-full last page", "degenerate pages", "extreme keys", notFinite, hugeKeys, tinyKeys, equalSpan, farKeys}

// TestSummaryFormsOnSim builds records of other forms than the plain one: 4-bit coefficients and centroids, scales of 16 dims.
func TestSummaryFormsOnSim(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		name, reason           string
		dtype                  string
		dim, rank, bits        int
		coefficients, centroid int
		scales, basis          string
		only                   []string
	}{
		{"c4", "nibbles of four coefficients", "bf16", 64, 4, 4, 4, 8, "column", "svd", formCases},
		{"m4", "two pages a tile, four rows of lanes share the centroid", "bf16", 128, 1, 4, 8, 4, "column", "svd", formCases},
		{"s16", "one page a tile", "fp16", 64, 8, 4, 8, 8, "16", "svd", formCases},
		{"c4m4s16, rank 1", "a byte of two tokens", "bf16", 128, 1, 4, 4, 4, "16", "svd", formCases},
		{"c4m4s16, rank 3, head dim 80", "quarters that end in the middle of a tile, of V and of the centroid", "bf16", 80, 3, 2, 4, 4, "16", "svd", formCases[2:6]},
		{"c4m4, rank 5, head dim 112", "rows past the rank; bytes of V beside a 4-bit centroid", "fp16", 112, 5, 8, 4, 4, "column", "svd", formCases[2:6]},
		{"c4m4, sixteen bits", "no scales of columns", "bf16", 96, 2, 16, 4, 4, "column", "svd", formCases[2:6]},
		{"c4m4s16w", "query-weighted", "bf16", 64, 2, 4, 4, 4, "16", "query_weighted", append([]string{noQueries, oneQuery}, formCases...)},
		{"c4m4w, rank 1", "query-weighted, the smallest record", "bf16", 128, 1, 4, 4, 4, "column", "query_weighted", []string{noQueries, "half-full last page", "degenerate pages"}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			s := summarySpec(tc.dtype, tc.dim, 16, tc.rank, tc.bits, 2)
			s.Locks.CoefficientBits, s.Locks.CentroidBits, s.Locks.ScaleGroup, s.Locks.Basis = tc.coefficients, tc.centroid, tc.scales, tc.basis
			c, ok := plan.ForFamily(plan.PageSummary, s, plan.Targets["sm_90a"]).DefaultOf(plan.Portable)
			if !ok {
				t.Fatal(tc.reason, ": no candidate")
			}
			checkSummaryOnSim(t, s, c, tc.reason, tc.only)
		})
	}
}
