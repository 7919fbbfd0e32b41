package quality

import (
	"testing"

	"github.com/kvloom/kvloom/internal/reference"
)

// TestCacheForms measures the committed sample over quantised caches: what is selected by summaries of the keys in 16 bits does not change, and the
// output is as far from the plain one as the codes are coarse.
func TestCacheForms(t *testing.T) {
	o := Options{Methods: []Method{ExactLSE, PageLocal}, Ranks: []int{4}, Bits: []int{4}, PageSizes: []int{16}, Budgets: []int{256},
		Combine: []reference.Combine{reference.ShareAverage}, Queries: 4, Sink: 1, Recent: 1, Caches: CacheForms}
	reports, err := Run(t.Context(), []string{sample}, o)
	if err != nil {
		t.Fatal(err)
	}
	rows := map[string]Row{}
	for _, r := range reports[0].Rows {
		rows[r.Name()] = r
	}
	plain := rows["page_local r4 i4"]
	for _, c := range []string{"kivi4", "kivi2"} {
		post, pre := rows["page_local r4 i4 "+c], rows["page_local r4 i4 "+c+" pre"]
		if post.Mass != plain.Mass || post.Recall != plain.Recall {
			t.Errorf("%s: mass %g and recall %g, without it %g and %g: summaries are of the same keys", c, post.Mass, post.Recall, plain.Mass, plain.Recall)
		}
		if post.Error <= plain.Error || pre.Error <= plain.Error {
			t.Errorf("%s: output errors %g and %g (pre) are not above %g", c, post.Error, pre.Error, plain.Error)
		}
		if pre.Mass < plain.Mass-0.02 {
			t.Errorf("%s pre: mass %g, without %g", c, pre.Mass, plain.Mass)
		}
	}
	if a, b := rows["page_local r4 i4 kivi4"].Error, rows["page_local r4 i4 kivi2"].Error; b < 1.5*a {
		t.Errorf("output errors %g in 4 bits, %g in 2", a, b)
	}
	if _, ok := rows["exact_lse kivi4 pre"]; ok {
		t.Error("exact scores read no summary, but stand there for both kinds")
	}
	if got, want := rows["exact_lse kivi4"].Bytes, 4.0*64+16*64/2; got != want {
		t.Errorf("an exact score of 4-bit keys reads %g bytes a page, want %g: codes, scales and zeros", got, want)
	}
}
