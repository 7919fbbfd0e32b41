package kernel

import (
	"strings"
	"testing"
)

func TestPath(t *testing.T) {
	set := func(change func(*Bundle)) *Set {
		t.Helper()
		b := testBundle() // budget 2048 tokens
		if change != nil {
			change(b)
		}
		s, err := b.Load(&fakeDevice{info: h200})
		if err != nil {
			t.Fatal(err)
		}
		return s
	}
	tuned := func(us map[string]float64) func(*Bundle) {
		return func(b *Bundle) {
			for i := range b.Works {
				if t := us[b.Works[i].Name]; t > 0 {
					b.Works[i].Points = []Point{{Workload: Workload{131072, 1}, Kernel: b.Works[i].Default, Evidence: Evidence{MedianUS: t}}}
				}
			}
		}
	}
	crossed := func(cs ...Crossover) func(*Bundle) { return func(b *Bundle) { b.Crossovers = cs } }
	one, eight := Crossover{Batch: 1, From: 12000, Least: 4096, Most: 131072}, Crossover{Batch: 8, From: 5000, Least: 4096, Most: 131072}
	never := Crossover{Batch: 1, Least: 4096, Most: 8192}
	for _, c := range []struct {
		reason string
		set    *Set
		w      Workload
		dense  bool
		says   string
	}{
		{"a budget that holds everything selects nothing", set(crossed(one)), Workload{2048, 1}, true, "2048 tokens fit into the budget of 2048"},
		{"below the crossover", set(crossed(one)), Workload{11999, 1}, true, "fewer than the 12000"},
		{"at the crossover", set(crossed(one)), Workload{12000, 1}, false, "faster from 12000 tokens on NVIDIA H200 with batch 1"},
		{"each batch has its own", set(crossed(one, eight)), Workload{6000, 8}, false, "faster from 5000 tokens"},
		{"the nearest batch speaks for others, and says so", set(crossed(one, eight)), Workload{6000, 16}, false, "with batch 8, the nearest to 16"},
		{"never faster where it was measured", set(crossed(never)), Workload{100000, 1}, true, "slower at all lengths from 4096 to 8192"},
		{"a batch too far away is no evidence", set(crossed(one)), Workload{4096, 64}, false, "nothing was measured"},
		{"tuned points without a crossover", set(tuned(map[string]float64{PageScore: 12, PageSelect: 5, PageAttend: 6, Dense: 137})), Workload{100000, 1}, false, "add up to 23.0 us, dense attention takes 137.0 us"},
		{"tuned points that favour dense", set(tuned(map[string]float64{PageScore: 12, PageSelect: 5, PageAttend: 6, Dense: 20})), Workload{100000, 1}, true, "dense attention takes 20.0 us"},
		{"times of three works of four are none", set(tuned(map[string]float64{PageScore: 12, PageSelect: 5, Dense: 20})), Workload{100000, 1}, false, "nothing was measured"},
		{"an untuned bundle", set(nil), Workload{4096, 1}, false, "nothing was measured"},
	} {
		got := c.set.Path(c.w)
		if got.Dense != c.dense || !strings.Contains(got.Reason, c.says) {
			t.Errorf("%s: %s; want dense %t and %q", c.reason, got, c.dense, c.says)
		}
	}
}

func TestCrossoversInAFile(t *testing.T) {
	b := testBundle()
	b.Crossovers = []Crossover{{Batch: 1, From: 12000, Least: 4096, Most: 131072}}
	data, err := b.Encode()
	if err != nil {
		t.Fatal(err)
	}
	back, err := decode(data)
	if err != nil || len(back.Crossovers) != 1 || back.Crossovers[0] != b.Crossovers[0] {
		t.Errorf("%+v, %v", back, err)
	}
	for _, c := range []Crossover{{Batch: 0, From: 1, Least: 1, Most: 2}, {Batch: 1, From: 9, Least: 1, Most: 8}, {Batch: 1, From: -1, Least: 1, Most: 8}, {Batch: 1, Least: 8, Most: 1}} {
		b.Crossovers[0] = c
		if _, err := b.Encode(); err == nil || !strings.Contains(err.Error(), "impossible") {
			t.Errorf("%+v: %v, want a refusal", c, err)
		}
	}
}
