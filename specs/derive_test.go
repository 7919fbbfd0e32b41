package specs

import (
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestDeriveSummaries(t *testing.T) {
	tests := []struct {
		name, reason          string
		dim, page, rank, bits int
		payload               int
		percent               float64 // rounded to a hundredth
	}{
		{"r8", "the paper's figure", 128, 16, 8, 4, 818, 9.99},
		{"r4", "the paper's figure", 128, 16, 4, 4, 490, 5.98},
		{"r2", "the paper's figure", 128, 16, 2, 4, 326, 3.98},
		{"r1", "quality.md", 128, 16, 1, 4, 244, 2.98},
		{"16 bits", "columns in bf16 have no scales: 2*128*4 + 16*4 + 128 + 2*(1+16)", 128, 16, 4, 16, 1250, 15.26},
		{"page 32", "128*4*4/8 + 32*4 + 128 + 2*(1+4+32)", 128, 32, 4, 4, 586, 3.58},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			s := New("x", 32, 8, tt.dim)
			s.Cache.PageSize, s.Locks.Rank, s.Locks.BasisBits, s.Locks.SummaryTokens = tt.page, tt.rank, tt.bits, tt.page
			got := Derive(s).Summary
			if got.PayloadBytes != tt.payload || float64(int(got.Percent*100+0.5))/100 != tt.percent {
				t.Errorf("%d B, %.2f %%; want %d B, %.2f %%: %s", got.PayloadBytes, got.Percent, tt.payload, tt.percent, tt.reason)
			}
			if got.RecordBytes < got.PayloadBytes || got.RecordBytes%16 != 0 {
				t.Errorf("record of %d B cannot hold %d B at 16 B alignment", got.RecordBytes, got.PayloadBytes)
			}
		})
	}
}

func TestDeriveRanks(t *testing.T) {
	tests := []struct {
		name       string
		page, rank int
		want       []int
	}{
		{"the paper's", 16, 4, []int{8, 4, 2, 1}},
		{"one of its own between", 16, 5, []int{8, 5, 4, 2, 1}},
		{"above the rest", 16, 15, []int{15, 8, 4, 2, 1}},
		{"large page", 32, 16, []int{16, 8, 4, 2, 1}},
		{"small page", 4, 3, []int{3, 2, 1}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			s := New("x", 32, 8, 128)
			s.Cache.PageSize, s.Locks.SummaryTokens, s.Locks.Rank = tt.page, tt.page, tt.rank
			var got []int
			for _, r := range Derive(s).Ranks {
				got = append(got, r.Rank)
			}
			if diff := cmp.Diff(tt.want, got); diff != "" {
				t.Errorf("(-want +got)\n%s", diff)
			}
		})
	}
}

func TestDeriveParallel(t *testing.T) {
	type part struct{ Ways, Q, KV, Group, Replicas int }
	const no = "query heads do not divide"
	tests := []struct {
		name, reason string
		q, kv        int
		want         []part
		reasons      []string
	}{
		{"split", "llama-3.1-8b", 32, 8, []part{{1, 32, 8, 4, 1}, {2, 16, 4, 4, 1}, {4, 8, 2, 4, 1}, {8, 4, 1, 4, 1}}, []string{"", "", "", ""}},
		{"replicated", "glm-4-9b-chat: 2 KV heads on 8 GPUs are 4 copies, and the group shrinks", 32, 2,
			[]part{{1, 32, 2, 16, 1}, {2, 16, 1, 16, 1}, {4, 8, 1, 8, 2}, {8, 4, 1, 4, 4}}, []string{"", "", "", ""}},
		{"seven heads", "qwen2.5-7b-1m: 28 heads do not divide by 8", 28, 4, []part{{1, 28, 4, 7, 1}, {2, 14, 2, 7, 1}, {4, 7, 1, 7, 1}, {Ways: 8}}, []string{"", "", "", no}},
		{"nine heads", "smollm2-135m", 9, 3, []part{{1, 9, 3, 3, 1}, {Ways: 2}, {Ways: 4}, {Ways: 8}}, []string{"", no, no, no}},
		{"three KV heads", "24 query heads divide, 3 KV heads neither split nor repeat", 24, 3, []part{{1, 24, 3, 8, 1}, {Ways: 2}, {Ways: 4}, {Ways: 8}},
			[]string{"", "KV heads neither divide nor repeat", "KV heads neither divide nor repeat", "KV heads neither divide nor repeat"}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			var got []part
			var reasons []string
			for _, p := range Derive(New("x", tt.q, tt.kv, 128)).Parallel {
				got = append(got, part{p.Ways, p.QueryHeads, p.KVHeads, p.Group, p.Replicas})
				reasons = append(reasons, p.Reason)
				if p.Reason == "" && (p.KVTokenBytes != p.KVHeads*512 || p.SummaryBytes != p.KVHeads*496) {
					t.Errorf("%d GPUs: %d B a token, %d B a page; want 512 and 496 for each of %d KV heads", p.Ways, p.KVTokenBytes, p.SummaryBytes, p.KVHeads)
				}
			}
			if diff := cmp.Diff(tt.want, got); diff != "" {
				t.Errorf("%s (-want +got)\n%s", tt.reason, diff)
			}
			if diff := cmp.Diff(tt.reasons, reasons); diff != "" {
				t.Errorf("%s (-want +got)\n%s", tt.reason, diff)
			}
		})
	}
}

func TestKept(t *testing.T) {
	for _, tt := range []struct {
		reason  string
		heads   HeadBudgets
		budget  Budget
		sinks   int
		n       int
		figures [3]int
	}{
		{"all alike", HeadBudgets{Kind: "uniform"}, Budget{Ratio: .05}, 0, 1000, [3]int{50, 50, 50}},
		{"a list, and no head keeps less than the window", HeadBudgets{Kind: "explicit", List: []int{2, 90}}, Budget{Tokens: 46}, 0, 1000, [3]int{49, 8, 90}},
		{"a list longer than the prompt", HeadBudgets{Kind: "explicit", List: []int{50, 90}}, Budget{Tokens: 70}, 0, 60, [3]int{55, 50, 60}},
		{"a fifth of what is free beside the window and 2 sinks is sure, one head may get what the other leaves", HeadBudgets{Kind: "adaptive", Floor: .2}, Budget{Tokens: 110}, 2, 1000, [3]int{110, 30, 190}},
		{"a pyramid about the mean", HeadBudgets{Kind: "pyramid"}, Budget{Tokens: 108}, 0, 1000, [3]int{108, 13, 203}},
		{"a pyramid whose first layer keeps all", HeadBudgets{Kind: "pyramid"}, Budget{Tokens: 108}, 0, 158, [3]int{108, 58, 158}},
		{"a prompt shorter than the window", HeadBudgets{Kind: "pyramid"}, Budget{Tokens: 108}, 0, 5, [3]int{5, 5, 5}},
	} {
		k := DropKV{Window: 8, Budget: tt.budget, HeadBudgets: tt.heads, SinkTokens: tt.sinks}
		mean, least, most := k.kept(tt.n, 2)
		if got := [3]int{mean, least, most}; got != tt.figures {
			t.Errorf("%s: mean, least and most are %v, want %v", tt.reason, got, tt.figures)
		}
	}
}

func TestDeriveContexts(t *testing.T) {
	s := New("x", 32, 8, 128)
	s.Workloads = []Workload{{131072, 8}, {100, 1}}
	want := []ContextFigures{
		{Context: 131072, Batch: 8, Pages: 8192, Selected: 128, Percent: 1.5625, KVBytes: 4 << 30, SummaryBytes: 8 * 8 * 8192 * 496, DropKVTokens: 6554, DropKVLeast: 6554, DropKVMost: 6554},
		{Context: 100, Batch: 1, Pages: 7, Selected: 7, Percent: 100, KVBytes: 100 * 4096, SummaryBytes: 8 * 6 * 496, DropKVTokens: 8, DropKVLeast: 8, DropKVMost: 8},
	}
	if diff := cmp.Diff(want, Derive(s).Contexts); diff != "" {
		t.Errorf("the page that fills has no summary (-want +got)\n%s", diff)
	}
}

func TestDropKVKeep(t *testing.T) {
	tests := []struct {
		name, reason string
		budget       Budget
		n, want      int
	}{
		{"rounds up", "ceil(0.05*101)", Budget{Ratio: 0.05}, 1010, 51},
		{"whole in decimal", "0.07*100 is above 7 in binary", Budget{Ratio: 0.07}, 100, 8},
		{"whole in decimal, above the window", "0.07*1300 is above 91 in binary", Budget{Ratio: 0.07}, 1300, 91},
		{"window", "its tokens are pinned", Budget{Ratio: 0.05}, 20, 8},
		{"shorter than the window", "keeps everything", Budget{Ratio: 0.05}, 5, 5},
		{"nothing", "", Budget{Ratio: 0.05}, 0, 0},
		{"tokens", "", Budget{Tokens: 512}, 8192, 512},
		{"tokens below the window", "", Budget{Tokens: 2}, 8192, 8},
		{"all", "", Budget{Ratio: 1}, 77, 77},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			k := New("x", 32, 8, 128).DropKV
			k.Budget = tt.budget
			if got := k.Keep(tt.n); got != tt.want {
				t.Errorf("Keep(%d) = %d, want %d: %s", tt.n, got, tt.want, tt.reason)
			}
		})
	}
}

func TestDropKVPasses(t *testing.T) {
	tests := []struct{ q, kv, window, want int }{{32, 8, 8, 1}, {32, 2, 8, 1}, {64, 1, 64, 32}, {28, 4, 32, 2}, {9, 3, 1, 1}}
	for _, tt := range tests {
		s := New("x", tt.q, tt.kv, 128)
		s.DropKV.Window = tt.window
		if got := Derive(s).DropKV.Passes; got != tt.want {
			t.Errorf("window %d x group %d: %d passes, want %d", tt.window, tt.q/tt.kv, got, tt.want)
		}
	}
}
