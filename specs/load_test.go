package specs

import (
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// full writes every field of the language at a value other than its default, where one is built.
const full = `name: full
attention:
  query_heads: 24
  kv_heads: 1
  head_dim: 80
  softmax_scale: 0.25
  logit_softcap: 30
cache:
  dtype: fp16
  page_size: &page 32
  layout: strides
locks:
  rank: 16
  basis_bits: 2
  coefficient_bits: 8
  centroid_bits: 8
  scale_group: column
  basis: svd
  scorer: page_local
  scan: full
  rerank: 1
  summary_tokens: *page
  budget_tokens: 4096
  combine: per_head
  always_keep: {sink_pages: 2, recent_pages: 3}
dropkv:
  rule: snapkv
  window: 32
  pool: {kind: avg, width: 7}
  budget: {tokens: 512}
  head_budgets: {kind: explicit, list: [512]}
  sink_tokens: 4
  precision: fast
  eps: 1e-5
targets: [sm_90, sm_80]
workloads:
  - {context: 4096, batch: 2}
  - context: 100
`

var fullSpec = Spec{
	Name:      "full",
	Attention: Attention{QueryHeads: 24, KVHeads: 1, HeadDim: 80, SoftmaxScale: 0.25, LogitSoftcap: 30},
	Cache:     Cache{DType: "fp16", PageSize: 32, Layout: "strides"},
	Locks: Locks{Rank: 16, BasisBits: 2, CoefficientBits: 8, CentroidBits: 8, ScaleGroup: "column", Basis: "svd", Scorer: "page_local",
		Summaries: "post", Scan: "full", Rerank: 1, SummaryTokens: 32, BudgetTokens: 4096, Combine: "per_head", AlwaysKeep: Keep{2, 3}},
	DropKV: DropKV{Rule: "snapkv", Window: 32, Pool: Pool{"avg", 7}, Budget: Budget{Tokens: 512},
		HeadBudgets: HeadBudgets{Kind: "explicit", List: []int{512}}, SinkTokens: 4, Precision: "fast", Eps: 1e-5},
	Targets:   []string{"sm_90", "sm_80"},
	Workloads: []Workload{{4096, 2}, {100, 1}},
}

var defaultSpec = Spec{
	Name:      "x",
	Attention: Attention{QueryHeads: 32, KVHeads: 8, HeadDim: 128, SoftmaxScale: 1 / math.Sqrt(128)},
	Cache:     Cache{DType: "bf16", PageSize: 16, Layout: "strides"},
	Locks: Locks{Rank: 4, BasisBits: 4, CoefficientBits: 8, CentroidBits: 8, ScaleGroup: "column", Basis: "svd", Scorer: "page_local",
		Summaries: "post", Scan: "full", Rerank: 1, SummaryTokens: 16, BudgetTokens: 2048, Combine: "share_average", AlwaysKeep: Keep{1, 1}},
	DropKV: DropKV{Rule: "dropkv", Window: 8, Pool: Pool{"max", 11}, Budget: Budget{Ratio: 0.05}, HeadBudgets: HeadBudgets{Kind: "uniform"},
		Precision: "exact", Eps: 1e-6},
	Targets:   []string{"sm_90a"},
	Workloads: []Workload{{32768, 1}, {131072, 1}},
}

func TestParse(t *testing.T) {
	tests := []struct {
		name, reason, text string
		want               func(*Spec)
	}{
		{"defaults", "the design's table", head, func(*Spec) {}},
		{"every field", "nothing is dropped; anchors and aliases are read", full, func(s *Spec) { *s = fullSpec }},
		{"flow style", "JSON is YAML", `{"name":"x","attention":{"query_heads":32,"kv_heads":8,"head_dim":128}}`, func(*Spec) {}},
		{"summary of the page", "the default follows the page", head + "cache: {page_size: 64}\n", func(s *Spec) { s.Cache.PageSize, s.Locks.SummaryTokens = 64, 64 }},
		{"scale of the head", "the default follows head_dim", strings.Replace(head, "128", "64", 1), func(s *Spec) { s.Attention.HeadDim, s.Attention.SoftmaxScale = 64, 0.125 }},
		{"no pooling", "its width is 1", head + "dropkv: {pool: {kind: none}}\n", func(s *Spec) { s.DropKV.Pool = Pool{"none", 1} }},
		{"adaptive heads", "they have a floor", head + "dropkv: {head_budgets: {kind: adaptive}}\n", func(s *Spec) { s.DropKV.HeadBudgets = HeadBudgets{Kind: "adaptive", Floor: 0.2} }},
		{"a later scorer of DropKV", "the section is kept: Locks kernels do not depend on it", head + "dropkv: {rule: keydiff}\n", func(s *Spec) { s.DropKV.Rule = "keydiff" }},
		{"group 1", "phi-3", strings.Replace(head, "kv_heads: 8", "kv_heads: 32", 1), func(s *Spec) { s.Attention.KVHeads = 32 }},
		{"group 64", "the largest (S1)", strings.Replace(strings.Replace(head, "query_heads: 32", "query_heads: 64", 1), "kv_heads: 8", "kv_heads: 1", 1),
			func(s *Spec) { s.Attention.QueryHeads, s.Attention.KVHeads = 64, 1 }},
		{"k equal to the kept pages", "17 tokens are 2 pages", head + "locks: {budget_tokens: 17}\n", func(s *Spec) { s.Locks.BudgetTokens = 17 }},
		{"nothing kept", "", head + "locks: {budget_tokens: 1, always_keep: {sink_pages: 0, recent_pages: 0}}\n", func(s *Spec) { s.Locks.BudgetTokens, s.Locks.AlwaysKeep = 1, Keep{} }},
		{"numbers that exponents write", "", head + "  softmax_scale: 1.25e-1\n", func(s *Spec) { s.Attention.SoftmaxScale = 0.125 }},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			want := defaultSpec
			tt.want(&want)
			got, err := Parse("<test>", []byte(tt.text))
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(&want, got); diff != "" {
				t.Errorf("%s (-want +got)\n%s", tt.reason, diff)
			}
			again, err := Parse("<marshalled>", Marshal(got))
			if err != nil {
				t.Fatalf("%v\n%s", err, Marshal(got))
			}
			if diff := cmp.Diff(got, again); diff != "" {
				t.Errorf("Marshal does not keep the spec (-want +got)\n%s\n%s", diff, Marshal(got))
			}
		})
	}
}

func TestModels(t *testing.T) {
	// Shapes of the design and contexts of the models' configs.
	want := map[string]struct{ q, kv, d, context, budget int }{
		"llama-3.1-8b":                 {32, 8, 128, 131072, 2048},
		"llama-3.1-405b":               {128, 8, 128, 131072, 2048},
		"glm-4-9b-chat":                {32, 2, 128, 131072, 2048},
		"glm-4-9b-chat-1m":             {32, 4, 128, 1048576, 2048},
		"qwen3-4b":                     {32, 8, 128, 40960, 2048},
		"qwen3-235b":                   {64, 4, 128, 40960, 2048},
		"qwen2.5-7b-1m":                {28, 4, 128, 1010000, 2048},
		"mistral-7b-512k":              {32, 8, 128, 524288, 2048},
		"phi-3-mini-128k":              {32, 32, 96, 131072, 2048},
		"smollm2-135m":                 {9, 3, 64, 8192, 256},
		"deepseek-r1-distill-qwen-32b": {40, 8, 128, 131072, 2048},
		"ernie-4.5-21b":                {20, 4, 128, 131072, 2048},
	}
	if got := len(Names()); got != len(want) {
		t.Errorf("%d models are embedded, want %d: %v", got, len(want), Names())
	}
	for name, w := range want {
		t.Run(name, func(t *testing.T) {
			s, err := Model(name)
			if err != nil {
				t.Fatal(err)
			}
			a := s.Attention
			if a.QueryHeads != w.q || a.KVHeads != w.kv || a.HeadDim != w.d || s.Locks.BudgetTokens != w.budget {
				t.Errorf("%d/%d heads, d %d, budget %d; want %+v", a.QueryHeads, a.KVHeads, a.HeadDim, s.Locks.BudgetTokens, w)
			}
			for _, p := range s.Workloads {
				if p.Context > w.context {
					t.Errorf("workload of %d tokens is longer than the model's context %d", p.Context, w.context)
				}
			}
			text, err := models.ReadFile(name + ".yaml")
			if err != nil {
				t.Fatal(err)
			}
			if !strings.HasPrefix(string(text), schemaLine) {
				t.Errorf("the first line does not name the schema, so editors do not complete the file")
			}
		})
	}
}

func TestResolve(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "x.yaml")
	if err := os.WriteFile(file, []byte(head), 0o644); err != nil {
		t.Fatal(err)
	}
	long := filepath.Join(dir, "long.yaml")
	if err := os.WriteFile(long, make([]byte, maxFile+1), 0o644); err != nil {
		t.Fatal(err)
	}
	tests := []struct{ name, arg, want string }{
		{"a model", "smollm2-135m", ""},
		{"a file", file, ""},
		{"a misspelt model", "smolm2-135m", `no model spec "smolm2-135m"; did you mean "smollm2-135m"? ('kvloom spec list' names all)`},
		{"a model nowhere near", "gpt-7", `no model spec "gpt-7" ('kvloom spec list' names all)`},
		{"a file that is not there", "gone.yaml", "read spec: stat gone.yaml: no such file or directory"},
		{"a disk image", long, long + ":1:1: " + tooLong},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			got := ""
			if _, err := Resolve(tt.arg); err != nil {
				got = err.Error()
			}
			if diff := cmp.Diff(tt.want, got); diff != "" {
				t.Errorf("(-want +got)\n%s", diff)
			}
		})
	}
}

func TestValidate(t *testing.T) {
	if err := Validate(New("made-in-go", 9, 3, 64)); err != nil {
		t.Errorf("a spec of defaults: %v", err)
	}
	bad := New("405", 9, 4, 64) // a name that YAML would read as a number
	bad.Cache.PageSize = 5
	got := ""
	if err := Validate(bad); err != nil {
		got = err.Error()
	}
	want := `spec:5:13: attention.kv_heads 4 does not divide query_heads 9; every KV head serves the same whole number of query heads, 1 to 64
spec:8:14: cache.page_size is 5; allowed: 4, 8, 16, 32, 64, 128`
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
}

// FuzzParse: no input makes Parse panic or hang, every fault has a place and one line, and what it accepts survives Marshal.
func FuzzParse(f *testing.F) {
	f.Add([]byte(head))
	f.Add([]byte(full))
	f.Add([]byte("a: &a *a\n<<: *b\n? [x]\n: - |\n  t\n"))
	for _, name := range Names() {
		text, err := models.ReadFile(name + ".yaml")
		if err != nil {
			f.Fatal(err)
		}
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		s, err := Parse("fuzz", data)
		if err != nil {
			faults, ok := err.(Errors)
			if !ok || len(faults) == 0 {
				t.Fatalf("Parse returned %T, want Errors", err)
			}
			for _, p := range faults {
				if p.Line < 1 || p.Col < 1 || strings.Contains(p.Message, "\n") {
					t.Fatalf("bad problem %q", p)
				}
			}
			return
		}
		again, err := Parse("marshalled", Marshal(s))
		if err != nil {
			t.Fatalf("%v\n%s", err, Marshal(s))
		}
		if diff := cmp.Diff(s, again); diff != "" {
			t.Fatalf("Marshal does not keep the spec\n%s\n%s", diff, Marshal(s))
		}
	})
}
