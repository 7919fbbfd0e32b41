// Package specs holds the declarative description of a model's attention: types, loading, validation, and the model specs.
package specs

// Spec is one model's attention and what to build for it. Every field has its value after loading: defaults are filled in, and
// no field uses zero for "unset".
type Spec struct {
	Name      string     `yaml:"name" json:"name"`
	Attention Attention  `yaml:"attention" json:"attention"`
	Cache     Cache      `yaml:"cache" json:"cache"`
	Locks     Locks      `yaml:"locks" json:"locks"`
	DropKV    DropKV     `yaml:"dropkv" json:"dropkv"`
	Targets   []string   `yaml:"targets" json:"targets"`
	Workloads []Workload `yaml:"workloads" json:"workloads"`
}

// Attention is the shape of one attention layer.
type Attention struct {
	QueryHeads   int     `yaml:"query_heads" json:"query_heads"`
	KVHeads      int     `yaml:"kv_heads" json:"kv_heads"`
	HeadDim      int     `yaml:"head_dim" json:"head_dim"`
	SoftmaxScale float64 `yaml:"softmax_scale" json:"softmax_scale"` // default 1/sqrt(head_dim)
	LogitSoftcap float64 `yaml:"logit_softcap" json:"logit_softcap"` // 0: no cap
}

// Group is the number of query heads that share one KV head.
func (a Attention) Group() int { return a.QueryHeads / a.KVHeads }

// Cache is how the engine keeps keys and values.
type Cache struct {
	DType    string `yaml:"dtype" json:"dtype"` // bf16, fp16 (fp8_e4m3, kivi4, kivi2: refused by name until built)
	PageSize int    `yaml:"page_size" json:"page_size"`
	Layout   string `yaml:"layout" json:"layout"` // "strides"
}

// Locks is page selection: summaries, scoring, selection, sparse attention.
type Locks struct {
	Rank            int     `yaml:"rank" json:"rank"`
	BasisBits       int     `yaml:"basis_bits" json:"basis_bits"`
	CoefficientBits int     `yaml:"coefficient_bits" json:"coefficient_bits"`
	CentroidBits    int     `yaml:"centroid_bits" json:"centroid_bits"`
	ScaleGroup      string  `yaml:"scale_group" json:"scale_group"` // column, 16
	Basis           string  `yaml:"basis" json:"basis"`             // svd, query_weighted
	Scorer          string  `yaml:"scorer" json:"scorer"`           // page_local, quest, mean_key, exact_lse
	Scan            string  `yaml:"scan" json:"scan"`               // full, two_level, previous_step
	Rerank          float64 `yaml:"rerank" json:"rerank"`           // 1 to 4
	SummaryTokens   int     `yaml:"summary_tokens" json:"summary_tokens"`
	BudgetTokens    int     `yaml:"budget_tokens" json:"budget_tokens"`
	Combine         string  `yaml:"combine" json:"combine"`
	AlwaysKeep      Keep    `yaml:"always_keep" json:"always_keep"`
}

// Keep counts the pages that are always selected, inside the budget.
type Keep struct {
	SinkPages   int `yaml:"sink_pages" json:"sink_pages"`
	RecentPages int `yaml:"recent_pages" json:"recent_pages"`
}

// DropKV is token eviction after prefill.
type DropKV struct {
	Rule        string      `yaml:"rule" json:"rule"`
	Window      int         `yaml:"window" json:"window"`
	Pool        Pool        `yaml:"pool" json:"pool"`
	Budget      Budget      `yaml:"budget" json:"budget"`
	HeadBudgets HeadBudgets `yaml:"head_budgets" json:"head_budgets"`
	SinkTokens  int         `yaml:"sink_tokens" json:"sink_tokens"`
	Precision   string      `yaml:"precision" json:"precision"`
	Eps         float64     `yaml:"eps" json:"eps"`
}

// Pool smooths token scores along the sequence.
type Pool struct {
	Kind  string `yaml:"kind" json:"kind"` // max, avg, none
	Width int    `yaml:"width" json:"width"`
}

// Budget is how many tokens a head keeps: Ratio of the prompt, or Tokens. Exactly one is positive.
type Budget struct {
	Ratio  float64 `yaml:"ratio" json:"ratio"`
	Tokens int     `yaml:"tokens" json:"tokens"`
}

// HeadBudgets divides a layer's budget over heads.
type HeadBudgets struct {
	Kind  string  `yaml:"kind" json:"kind"` // uniform, adaptive, pyramid, explicit
	Floor float64 `yaml:"floor" json:"floor"`
	List  []int   `yaml:"list" json:"list"`
}

// Workload is one point to tune for.
type Workload struct {
	Context int `yaml:"context" json:"context"` // tokens
	Batch   int `yaml:"batch" json:"batch"`
}

// Slots is k of the paper: pages a list that the token budget holds, ceil(budget / page).
func (s *Spec) Slots() int {
	return (s.Locks.BudgetTokens + s.Cache.PageSize - 1) / s.Cache.PageSize
}
