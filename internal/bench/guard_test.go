package bench

import "testing"

func TestGuard(t *testing.T) {
	line := func(card string, rank int, lo, median, hi float64) Result {
		return Result{Card: card, Family: score, Shape: Shape{KVHeads: 8, Rank: rank, L2: "cold"}, LoUS: lo, MedianUS: median, HiUS: hi}
	}
	recorded := []Result{line("H200", 4, 90, 100, 110), line("H200", 4, 49, 50, 51), line("other", 4, 9, 10, 11)}
	for _, c := range []struct {
		reason string
		now    Result
		class  string
	}{
		{"the newest recorded line counts, not the slow one before it", line("H200", 4, 59, 60, 61), Slower},
		{"above the interval, yet by less than the threshold", line("H200", 4, 51.1, 51.2, 51.3), Same},
		{"more than the threshold, yet the intervals meet", line("H200", 4, 50.5, 53, 56), Same},
		{"faster", line("H200", 4, 39, 40, 41), Faster},
		{"as before", line("H200", 4, 49, 50, 51), Same},
		{"another shape", line("H200", 8, 59, 60, 61), New},
		{"another card has its own record", line("other", 4, 9, 10, 11), Same},
		{"a card without a record", line("third", 4, 9, 10, 11), New},
	} {
		got := Guard(recorded, []Result{c.now}, 0.03)
		if len(got) != 1 || got[0].Class != c.class {
			t.Errorf("%s: %+v, want %s", c.reason, got, c.class)
		}
	}
	if got := Guard(recorded, nil, 0.03); len(got) != 0 {
		t.Errorf("of nothing: %+v", got)
	}
}
