package specs

import (
	"errors"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// head is a spec with nothing wrong, five lines; cases append to it.
const head = `name: x
attention:
  query_heads: 32
  kv_heads: 8
  head_dim: 128
`

func TestParseFaults(t *testing.T) {
	const list = "name, attention, cache, locks, dropkv, targets, workloads"
	tests := []struct {
		name, reason, text string
		want               []string
	}{
		{"unknown key", "the nearest known key is named, and its absence not reported again", "name: x\nattention:\n  query_head: 32\n  kv_heads: 8\n  head_dim: 128\n",
			[]string{`x.yaml:3:3: unknown key "query_head" in attention; did you mean "query_heads"?`}},
		{"unknown key of other case", "keys are lower case", "Name: x\nattention: {query_heads: 32, kv_heads: 8, head_dim: 128}\n",
			[]string{`x.yaml:1:1: unknown key "Name"; did you mean "name"?`}},
		{"unknown key, nothing near", "then all keys are named", head + "quantisation: 4\n",
			[]string{`x.yaml:6:1: unknown key "quantisation"; known keys: ` + list}},
		{"unknown nested key", "the section is named", head + "locks:\n  always_keep:\n    sink: 1\n",
			[]string{`x.yaml:8:5: unknown key "sink" in locks.always_keep; known keys: sink_pages, recent_pages`}},
		{"unknown key in a list", "an element is a section too", head + "workloads:\n  - {contxt: 1024, batch: 1}\n",
			[]string{`x.yaml:7:6: unknown key "contxt" in workloads; did you mean "context"?`}},
		{"missing keys", "a required key is reported where its section begins", "attention:\n  kv_heads: 8\n",
			[]string{`x.yaml:1:1: attention.query_heads is missing; allowed: 1 to 1024`,
				`x.yaml:1:1: attention.head_dim is missing; allowed: 64, 80, 96, 112, 128, 192, 256`, `x.yaml:1:1: name is missing`}},
		{"missing section", "no check may trust what is not there", "name: x\n", []string{`x.yaml:1:1: attention is missing`}},
		{"empty required section", "", "name: x\nattention:\n", []string{`x.yaml:2:1: attention has no value; want a section with query_heads, kv_heads, head_dim, softmax_scale, logit_softcap`}},
		{"missing in a list", "", head + "workloads:\n  - batch: 2\n", []string{`x.yaml:7:5: workloads.context is missing; allowed: 1 to 16777216`}},
		{"duplicate key", "YAML readers differ on which one wins", head + "  head_dim: 64\n",
			[]string{`x.yaml:6:3: attention.head_dim is given twice; first on line 5: keep one`}},
		{"text for a number", "", "name: x\nattention: {query_heads: many, kv_heads: 8, head_dim: 128}\n",
			[]string{`x.yaml:2:26: attention.query_heads is the text "many"; want a whole number, 1 to 1024`}},
		{"fraction for a whole number", "", head + "locks: {rank: 4.0}\n", []string{`x.yaml:6:15: locks.rank is 4.0; want a whole number, 1 to 16`}},
		{"true for a number", "", head + "locks: {rank: true}\n", []string{`x.yaml:6:15: locks.rank is true; want a whole number, 1 to 16`}},
		{"formula for a scale", "a scale is a number; formulas are not evaluated", head + "  softmax_scale: 1/sqrt(128)\n",
			[]string{`x.yaml:6:18: attention.softmax_scale is the text "1/sqrt(128)"; want a number, above 0, at most 100`}},
		{"infinite scale", "", head + "  softmax_scale: .inf\n", []string{`x.yaml:6:18: attention.softmax_scale is .inf; want a number, above 0, at most 100`}},
		{"NaN cap", "a NaN passes every comparison that is written the wrong way round", head + "  logit_softcap: .nan\n",
			[]string{`x.yaml:6:18: attention.logit_softcap is .nan; want a number, 0 to 100000`}},
		{"zero scale", "", head + "  softmax_scale: 0\n", []string{`x.yaml:6:18: attention.softmax_scale is 0; allowed: above 0, at most 100`}},
		{"number for text", "", "name: 405\nattention: {query_heads: 32, kv_heads: 8, head_dim: 128}\n", []string{`x.yaml:1:7: name is 405; want text`}},
		{"section for a value", "", head + "cache: {page_size: {a: 1}}\n", []string{`x.yaml:6:20: cache.page_size is a section; want 4, 8, 16, 32, 64 or 128`}},
		{"list for a value", "", head + "cache: {page_size: [16]}\n", []string{`x.yaml:6:20: cache.page_size is a list; want 4, 8, 16, 32, 64 or 128`}},
		{"value for a section", "", head + "cache: bf16\n", []string{`x.yaml:6:8: cache is the text "bf16"; want a section with dtype, page_size, layout`}},
		{"value for a list", "", head + "targets: sm_90a\n",
			[]string{`x.yaml:6:10: targets is the text "sm_90a"; want a list of sm_80, sm_86, sm_89, sm_90, sm_90a, sm_100a or sm_120a`}},
		{"value for a list element", "", head + "workloads: [1024]\n", []string{`x.yaml:6:13: workloads holds 1024; want a section with context, batch`}},
		{"empty section", "a section that was meant to be filled", head + "locks:\n",
			[]string{`x.yaml:6:1: locks has no value; want a section with rank, basis_bits, coefficient_bits, centroid_bits, scale_group, basis, scorer, summaries, calibration, scan, rerank, summary_tokens, budget_tokens, combine, always_keep, or leave the key out for the default`}},
		{"empty list", "", head + "targets: []\n", []string{`x.yaml:6:1: targets is an empty list; give at least one, or leave the key out for the default`}},
		{"empty element", "", head + "targets: [sm_90a, ~]\n", []string{`x.yaml:6:19: targets holds an empty element; want sm_80, sm_86, sm_89, sm_90, sm_90a, sm_100a or sm_120a`}},
		{"tag", "a tag could change a type behind our back", head + "cache: {page_size: !!int \"16\"}\n",
			[]string{`x.yaml:6:20: cache.page_size is tagged !!int (tags are not read); want 4, 8, 16, 32, 64 or 128`}},
		{"merge key", "", head + "<<: {locks: {rank: 2}}\n", []string{`x.yaml:6:1: unknown key "<<"; known keys: ` + list}},
		{"out of range", "", head + "locks: {rank: 17, budget_tokens: 0}\ndropkv: {window: 65}\n",
			[]string{`x.yaml:6:15: locks.rank is 17; allowed: 1 to 16`, `x.yaml:6:34: locks.budget_tokens is 0; allowed: 1 to 1048576`, `x.yaml:7:18: dropkv.window is 65; allowed: 1 to 64`}},
		{"negative", "", head + "locks: {rank: -1}\n", []string{`x.yaml:6:15: locks.rank is -1; allowed: 1 to 16`}},
		{"beyond 64 bits", "", head + "locks: {budget_tokens: 18446744073709551615}\n", []string{`x.yaml:6:24: locks.budget_tokens is 9223372036854775807; allowed: 1 to 1048576`}},
		{"page size 512 (S5)", "accepted silently elsewhere", head + "cache: {page_size: 512}\n", []string{`x.yaml:6:20: cache.page_size is 512; allowed: 4, 8, 16, 32, 64, 128`}},
		{"head_dim 72", "", "name: x\nattention: {query_heads: 32, kv_heads: 8, head_dim: 72}\n",
			[]string{`x.yaml:2:53: attention.head_dim is 72; allowed: 64, 80, 96, 112, 128, 192, 256`}},
		{"misspelt value", "", head + "locks: {combine: share_avrage}\n",
			[]string{`x.yaml:6:18: locks.combine is share_avrage; allowed: share_average, group_max, group_mass, peak_normalised, per_head; did you mean share_average?`}},

		{"7 heads over 4 (D3)", "heads must divide", "name: x\nattention:\n  query_heads: 7\n  kv_heads: 4\n  head_dim: 128\n",
			[]string{`x.yaml:4:13: attention.kv_heads 4 does not divide query_heads 7; every KV head serves the same whole number of query heads, 1 to 64`}},
		{"group 65", "", "name: x\nattention:\n  query_heads: 65\n  kv_heads: 1\n  head_dim: 128\n",
			[]string{`x.yaml:4:13: attention.kv_heads 1 makes groups of 65 query heads of 65; allowed: groups of 1 to 64`}},
		{"rank of the page", "", head + "cache: {page_size: 8}\nlocks: {rank: 8}\n",
			[]string{`x.yaml:7:15: locks.rank 8 must be below cache.page_size 8, for a page of n tokens centred on its mean has rank n-1 at most; allowed: 1 to 7`}},
		{"default rank, page 4", "the message must not name what the file does not hold without saying so", head + "cache: {page_size: 4}\n",
			[]string{`x.yaml:6:20: locks.rank 4 (the default) must be below cache.page_size 4, for a page of n tokens centred on its mean has rank n-1 at most; allowed: 1 to 3`}},
		{"k below the kept pages", "T10: sink and recent pages are inside the budget", head + "locks: {budget_tokens: 16}\n",
			[]string{`x.yaml:6:24: locks.budget_tokens 16 holds k = 1 pages of 16 tokens, fewer than the 2 always kept (1 sink + 1 recent); raise it to 17 or more, or keep fewer`}},
		{"k below the kept pages, page 32 (S4)", "slots are counted in the spec's pages, not in 16s", head + "cache: {page_size: 32}\nlocks: {budget_tokens: 96, always_keep: {sink_pages: 2, recent_pages: 2}}\n",
			[]string{`x.yaml:7:24: locks.budget_tokens 96 holds k = 3 pages of 32 tokens, fewer than the 4 always kept (2 sink + 2 recent); raise it to 97 or more, or keep fewer`}},
		{"default budget too small", "points at what the file does say", head + "locks: {always_keep: {recent_pages: 200}}\n",
			[]string{`x.yaml:6:37: locks.budget_tokens 2048 (the default) holds k = 128 pages of 16 tokens, fewer than the 201 always kept (1 sink + 200 recent); raise it to 3201 or more, or keep fewer`}},
		{"summary of half a page", "", head + "locks: {summary_tokens: 24}\n", []string{`x.yaml:6:25: locks.summary_tokens is 24; allowed: 16, 32, 48 or 64, which is 1 to 4 pages of 16 tokens`}},
		{"even pool", "", head + "dropkv: {pool: {width: 10}}\n", []string{`x.yaml:6:24: dropkv.pool.width is 10; allowed: odd numbers from 1 to 63`}},
		{"width without a pool", "", head + "dropkv: {pool: {kind: none, width: 3}}\n", []string{`x.yaml:6:36: dropkv.pool.width 3 does nothing with kind none; remove it, or choose kind max or avg`}},
		{"two budgets", "", head + "dropkv: {budget: {ratio: 0.1, tokens: 512}}\n", []string{`x.yaml:6:39: dropkv.budget has both ratio and tokens; keep one`}},
		{"ratio 0", "", head + "dropkv: {budget: {ratio: 0}}\n", []string{`x.yaml:6:26: dropkv.budget.ratio is 0; allowed: above 0, at most 1`}},
		{"ratio above 1", "", head + "dropkv: {budget: {ratio: 1.5}}\n", []string{`x.yaml:6:26: dropkv.budget.ratio is 1.5; allowed: above 0, at most 1`}},
		{"floor without adaptive", "", head + "dropkv: {head_budgets: {floor: 0.5}}\n", []string{`x.yaml:6:32: dropkv.head_budgets.floor belongs to kind adaptive, not uniform; remove it`}},
		{"list without explicit", "", head + "dropkv: {head_budgets: {list: [1, 2]}}\n", []string{`x.yaml:6:25: dropkv.head_budgets.list belongs to kind explicit, not uniform; remove it`}},
		{"list that does not add up", "", head + "dropkv: {budget: {tokens: 100}, head_budgets: {kind: explicit, list: [100, 100, 100, 100, 100, 100, 100, 99]}}\n", []string{`x.yaml:6:64: dropkv.head_budgets.list adds up to 799 tokens; budget.tokens 100 for 8 KV heads makes 800`}},
		{"explicit without list", "", head + "dropkv: {head_budgets: {kind: explicit}}\n", []string{`x.yaml:6:31: dropkv.head_budgets.list has 0 entries; kind explicit needs 8, tokens for each KV head`}},
		{"target twice", "", head + "targets: [sm_90a, sm_90a]\n", []string{`x.yaml:6:19: targets holds sm_90a twice; keep one`}},
		{"workload twice", "the batch is 1 by default", head + "workloads:\n  - {context: 1024}\n  - {context: 1024, batch: 1}\n",
			[]string{`x.yaml:6:1: workloads holds context 1024 x batch 1 twice; keep one`}},
		{"name of the file", "verbs find a spec by either", strings.Replace(head, "name: x", "name: y", 1), []string{`x.yaml:1:7: name is "y"; the file is x.yaml, so it has to be "x", or rename the file`}},
		{"illegal name", "it becomes a folder and a package", strings.Replace(head, "name: x", "name: a/b", 1),
			[]string{`x.yaml:1:7: name is "a/b"; allowed: letters, digits, dots and dashes, at most 64, a letter or digit first`,
				`x.yaml:1:7: name is "a/b"; the file is x.yaml, so it has to be "x", or rename the file`}},

		{"features of later issues", "they are fields of the design, refused by name until they exist", head + `cache: {dtype: bf16}
locks:
  basis: query_weighted
  scan: two_level
  summary_tokens: 32
targets: [sm_90a, sm_100a]
`, []string{
			`x.yaml:9:9: locks.scan two_level is not built; use full (docs/rationale.md says why; kvloom quality --scan measures it)`,
			`x.yaml:10:19: locks.summary_tokens 32 proposes 2 pages at once, of which an exact rerank chooses; set locks.rerank above 1, or use 16, the page size`,
			`x.yaml:11:19: targets sm_100a is not built; use sm_90a, sm_90 or sm_80`,
		}},
		{"summary of three pages", "shifts and masks take powers of two", head + "locks: {rerank: 2, summary_tokens: 48}\n",
			[]string{`x.yaml:6:36: locks.summary_tokens 48 is not built; use 32, 64 or 128, or 16, the page size`}},
		{"summary of two pages beside quest", "a bound of several pages proposes nothing", head + "locks: {rerank: 2, summary_tokens: 32, scorer: quest}\n",
			[]string{`x.yaml:6:36: locks.summary_tokens 32 is not built with locks.scorer quest; use 16, the page size`}},
		{"small records of two pages", "the build of 32 tokens makes plain ones", head + "locks: {rerank: 2, summary_tokens: 32, coefficient_bits: 4}\n",
			[]string{`x.yaml:6:36: locks.summary_tokens 32 is not built with 4-bit coefficients, 4-bit centroids or scale_group 16; use 16, the page size`}},
		{"weighted basis of small pages", "no build has one", head + "cache: {page_size: 8}\nlocks: {rank: 4, basis: query_weighted}\n",
			[]string{`x.yaml:7:25: locks.basis query_weighted is built for summaries of 16 tokens and ranks up to 8, and of 32, 64 and 128, not of 8 at rank 4; use svd`}},
		{"weighted basis of the largest pages and wide heads", "rows and products do not fit a block's memory everywhere", strings.Replace(head, "head_dim: 128", "head_dim: 256", 1) + "cache: {page_size: 128}\nlocks: {basis: query_weighted}\n",
			[]string{`x.yaml:7:16: locks.basis query_weighted of 128 tokens is built for head dims up to 128, not 256; use svd`}},
		{"small records of large pages", "only the direct build makes them", head + "cache: {page_size: 32}\nlocks: {centroid_bits: 4}\n",
			[]string{`x.yaml:7:24: locks.coefficient_bits 4, centroid_bits 4 and scale_group 16 are built for pages of 16 tokens and ranks up to 8, not for pages of 32 at rank 4; use 8, 8 and column`}},
		{"scales of groups of wide codes", "f16 does not hold their products", head + "locks: {scale_group: 16, basis_bits: 8}\n",
			[]string{`x.yaml:6:22: locks.scale_group 16 is built for bases of 2 and 4 bits, not 8; use column`}},
		{"small records over 8 bits", "no build", head + "cache: {dtype: fp8_e4m3}\nlocks: {coefficient_bits: 4}\n",
			[]string{`x.yaml:7:27: cache.dtype fp8_e4m3 is not built with 4-bit coefficients, 4-bit centroids or scale_group 16; use bf16 or fp16`}},
		{"rank beside quest", "a field of one scorer must not be ignored beside another", head + "locks: {scorer: quest, rank: 4}\n",
			[]string{`x.yaml:6:17: locks.rank belongs to scorer page_local, not quest; remove it`}},
		{"rerank over KIVI", "no kernel reads quantised keys for it", head + "cache: {dtype: kivi4}\nlocks: {rerank: 2}\n",
			[]string{`x.yaml:6:16: cache.dtype kivi4 is not built with locks.rerank 2; use bf16 or fp16, or leave that out`}},
		{"summaries of keys in bf16", "there is no other kind of key to build them of", head + "locks: {summaries: pre}\n",
			[]string{`x.yaml:6:20: locks.summaries pre belongs to cache.dtype kivi4 or kivi2, not bf16, whose keys are what they were; remove it`}},
		{"quest over 8 bits", "no kernel reads such a cache for it", head + "cache: {dtype: fp8_e4m3}\nlocks: {scorer: quest}\n",
			[]string{`x.yaml:6:16: cache.dtype fp8_e4m3 is not built with locks.scorer quest; use bf16 or fp16, or leave that out`}},
		{"eviction of KIVI", "no kernel reads quantised keys for it", head + "cache: {dtype: kivi2}\ndropkv: {window: 4}\n",
			[]string{`x.yaml:6:16: cache.dtype kivi2 is not built with dropkv; use bf16 or fp16, or leave that out`}},
		{"sliding window", "refused by name", head + "  sliding_window: 4096\n", []string{`x.yaml:6:3: sliding_window: ` + noSliding}},
		{"MLA", "refused by name", head + "  kv_lora_rank: 512\n", []string{`x.yaml:6:3: kv_lora_rank: ` + noMLA}},
		{"q_len", "refused by name", head + "q_len: 4\n", []string{`x.yaml:6:1: q_len: ` + noQLen}},

		{"all at once", "one run shows every fault, in the file's order", "name: x\nattention:\n  query_heads: 0\n  kv_head: 8\n  head_dim: 100\ncache:\n  page_size: 24\nlocks: {rank: 17, scan: ful}\n",
			[]string{`x.yaml:3:16: attention.query_heads is 0; allowed: 1 to 1024`,
				`x.yaml:4:3: unknown key "kv_head" in attention; did you mean "kv_heads"?`,
				`x.yaml:5:13: attention.head_dim is 100; allowed: 64, 80, 96, 112, 128, 192, 256`,
				`x.yaml:7:14: cache.page_size is 24; allowed: 4, 8, 16, 32, 64, 128`,
				`x.yaml:8:15: locks.rank is 17; allowed: 1 to 16`,
				`x.yaml:8:25: locks.scan is ful; allowed: full, two_level, previous_step; did you mean full?`}},
		{"not YAML", "", "a: [1\nb: 2\n", []string{`x.yaml:2:1: not YAML: ',' or ']' must be specified`}},
		{"empty file", "", "", []string{`x.yaml:1:1: the file is empty; want a spec with name and attention`}},
		{"comment alone", "", "# later\n", []string{`x.yaml:1:1: the file is empty; want a spec with name and attention`}},
		{"a list", "", "- name: x\n", []string{`x.yaml:1:1: the file is a list; want a spec with name and attention`}},
		{"text", "", "hello\n", []string{`x.yaml:1:1: the file is the text "hello"; want a spec with name and attention`}},
		{"two documents", "", head + "---\n" + head, []string{`x.yaml:7:1: a second document begins here; a file holds one spec`}},
		{"nothing but brackets", "the parser would take minutes", strings.Repeat("[", 60000), []string{`x.yaml:1:1: the file has 60000 brackets; a spec has a few dozen`}},
		{"alias of nothing", "", head + "cache: {page_size: *p}\n", []string{`x.yaml:6:20: cache.page_size is an alias of nothing or of itself; want 4, 8, 16, 32, 64 or 128`}},
		{"Windows lines and a mark", "columns and lines are as an editor counts them", "\ufeff" + strings.ReplaceAll(head+"cache: {page_size: 24}\n", "\n", "\r\n"),
			[]string{`x.yaml:6:20: cache.page_size is 24; allowed: 4, 8, 16, 32, 64, 128`}},
		{"wide characters before", "columns count characters, not bytes", head + "cache: {\"größe\": 1, page_size: 24}\n",
			[]string{`x.yaml:6:9: unknown key "größe" in cache; known keys: dtype, page_size, layout`, `x.yaml:6:32: cache.page_size is 24; allowed: 4, 8, 16, 32, 64, 128`}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			s, err := Parse("x.yaml", []byte(tt.text))
			var faults Errors
			if !errors.As(err, &faults) {
				t.Fatalf("Parse = %+v, %v; want Errors: %s", s, err, tt.reason)
			}
			if diff := cmp.Diff(strings.Join(tt.want, "\n"), err.Error()); diff != "" {
				t.Errorf("%s (-want +got)\n%s", tt.reason, diff)
			}
		})
	}
}
