// Package specs holds the declarative description of a model's attention: types, loading, validation, and the model specs.
package specs

// Spec is one model's attention and what to build for it. Every field has its value after loading: defaults are filled in, and
// no field uses zero for "unset".
//
// The tags of Spec and its parts are the one statement of what a field may hold: the loader checks them and the JSON Schema is
// generated from them. "jsonschema" holds the values or range and the default; "built", where present, the values that kernels
// exist for today, the others being refused by name. What fields mean is in describe.go; what they may not be together in check.go.
type Spec struct {
	Name      string     `yaml:"name" json:"name" jsonschema:"required,pattern=^[A-Za-z0-9][A-Za-z0-9.-]*$"`
	Attention Attention  `yaml:"attention" json:"attention" jsonschema:"required"`
	Cache     Cache      `yaml:"cache" json:"cache"`
	Locks     Locks      `yaml:"locks" json:"locks"`
	DropKV    DropKV     `yaml:"dropkv" json:"dropkv"`
	Targets   []string   `yaml:"targets" json:"targets" jsonschema:"minItems=1,uniqueItems=true,enum=sm_80,enum=sm_86,enum=sm_89,enum=sm_90,enum=sm_90a,enum=sm_100a,enum=sm_120a,default=sm_90a" built:"sm_90a,sm_90,sm_80"`
	Workloads []Workload `yaml:"workloads" json:"workloads" jsonschema:"minItems=1"`
	// Folder is where the file lies, in which the names of other files start; empty for one that was read from memory.
	Folder string `yaml:"-" json:"-"`
}

// Attention is the shape of one attention layer. SoftmaxScale is 1/sqrt(HeadDim) by default; LogitSoftcap 0 means no cap.
type Attention struct {
	QueryHeads   int     `yaml:"query_heads" json:"query_heads" jsonschema:"required,minimum=1,maximum=1024"`
	KVHeads      int     `yaml:"kv_heads" json:"kv_heads" jsonschema:"required,minimum=1,maximum=1024"`
	HeadDim      int     `yaml:"head_dim" json:"head_dim" jsonschema:"required,enum=64,enum=80,enum=96,enum=112,enum=128,enum=192,enum=256"`
	SoftmaxScale float64 `yaml:"softmax_scale" json:"softmax_scale" jsonschema:"exclusiveMinimum=0,maximum=100"`
	LogitSoftcap float64 `yaml:"logit_softcap" json:"logit_softcap" jsonschema:"minimum=0,maximum=100000,default=0"`
}

// Group is the number of query heads that share one KV head.
func (a Attention) Group() int { return a.QueryHeads / a.KVHeads }

// Cache is how the engine keeps keys and values.
type Cache struct {
	DType    string `yaml:"dtype" json:"dtype" jsonschema:"enum=bf16,enum=fp16,enum=fp8_e4m3,enum=kivi4,enum=kivi2,default=bf16"`
	PageSize int    `yaml:"page_size" json:"page_size" jsonschema:"enum=4,enum=8,enum=16,enum=32,enum=64,enum=128,default=16"`
	Layout   string `yaml:"layout" json:"layout" jsonschema:"enum=strides,default=strides"`
}

// FP8 is the cache type whose keys and values are 8-bit codes times a scale a layer; queries and outputs are bf16 beside it.
const FP8 = "fp8_e4m3"

// ElementBytes is what an element of a row of keys or values takes: in a KIVI cache, of a page that is still filling.
func (c Cache) ElementBytes() int {
	if c.DType == FP8 {
		return 1
	}
	return 2
}

// Locks is page selection: summaries, scoring, selection, sparse attention.
type Locks struct {
	Rank            int      `yaml:"rank" json:"rank" jsonschema:"minimum=1,maximum=16,default=4"`
	BasisBits       int      `yaml:"basis_bits" json:"basis_bits" jsonschema:"enum=2,enum=4,enum=8,enum=16,default=4"`
	CoefficientBits int      `yaml:"coefficient_bits" json:"coefficient_bits" jsonschema:"enum=4,enum=8,default=8"`
	CentroidBits    int      `yaml:"centroid_bits" json:"centroid_bits" jsonschema:"enum=4,enum=8,default=8"`
	ScaleGroup      string   `yaml:"scale_group" json:"scale_group" jsonschema:"enum=column,enum=16,default=column"`
	Basis           string   `yaml:"basis" json:"basis" jsonschema:"enum=svd,enum=query_weighted,default=svd"`
	Scorer          string   `yaml:"scorer" json:"scorer" jsonschema:"enum=page_local,enum=quest,enum=mean_key,enum=exact_lse,default=page_local"`
	Summaries       string   `yaml:"summaries" json:"summaries" jsonschema:"enum=post,enum=pre,default=post"`
	Calibration     []string `yaml:"calibration" json:"calibration,omitempty" jsonschema:"minItems=1"`
	Scan            string   `yaml:"scan" json:"scan" jsonschema:"enum=full,enum=two_level,enum=previous_step,default=full" built:"full"`
	Rerank          float64  `yaml:"rerank" json:"rerank" jsonschema:"minimum=1,maximum=4,default=1"`
	SummaryTokens   int      `yaml:"summary_tokens" json:"summary_tokens" jsonschema:"minimum=4,maximum=512"`
	BudgetTokens    int      `yaml:"budget_tokens" json:"budget_tokens" jsonschema:"minimum=1,maximum=1048576,default=2048"`
	Combine         string   `yaml:"combine" json:"combine" jsonschema:"enum=share_average,enum=group_max,enum=group_mass,enum=peak_normalised,enum=per_head,default=share_average"`
	AlwaysKeep      Keep     `yaml:"always_keep" json:"always_keep"`
}

// Keep counts the pages that are always selected, inside the budget.
type Keep struct {
	SinkPages   int `yaml:"sink_pages" json:"sink_pages" jsonschema:"minimum=0,maximum=1024,default=1"`
	RecentPages int `yaml:"recent_pages" json:"recent_pages" jsonschema:"minimum=0,maximum=1024,default=1"`
}

// DropKV is token eviction after prefill.
type DropKV struct {
	Rule        string      `yaml:"rule" json:"rule" jsonschema:"enum=dropkv,enum=snapkv,enum=value_norm,enum=keydiff,enum=streaming,default=dropkv"`
	Window      int         `yaml:"window" json:"window" jsonschema:"minimum=1,maximum=64,default=8"`
	Pool        Pool        `yaml:"pool" json:"pool"`
	Budget      Budget      `yaml:"budget" json:"budget"`
	HeadBudgets HeadBudgets `yaml:"head_budgets" json:"head_budgets"`
	SinkTokens  int         `yaml:"sink_tokens" json:"sink_tokens" jsonschema:"minimum=0,maximum=1024,default=0"`
	Precision   string      `yaml:"precision" json:"precision" jsonschema:"enum=exact,enum=fast,default=exact"`
	Eps         float64     `yaml:"eps" json:"eps" jsonschema:"exclusiveMinimum=0,maximum=0.01,default=1e-6"`
}

// Pool smooths token scores along the sequence.
type Pool struct {
	Kind  string `yaml:"kind" json:"kind" jsonschema:"enum=max,enum=avg,enum=none,default=max"`
	Width int    `yaml:"width" json:"width" jsonschema:"minimum=1,maximum=63"`
}

// Budget is how many tokens a head keeps: Ratio of the prompt, or Tokens. Exactly one is positive.
type Budget struct {
	Ratio  float64 `yaml:"ratio" json:"ratio" jsonschema:"exclusiveMinimum=0,maximum=1"`
	Tokens int     `yaml:"tokens" json:"tokens" jsonschema:"minimum=1,maximum=16777216"`
}

// HeadBudgets divides a layer's budget over heads.
type HeadBudgets struct {
	Kind  string  `yaml:"kind" json:"kind" jsonschema:"enum=uniform,enum=adaptive,enum=pyramid,enum=explicit,default=uniform"`
	Floor float64 `yaml:"floor" json:"floor" jsonschema:"minimum=0,maximum=1"`
	List  []int   `yaml:"list" json:"list" jsonschema:"minimum=1,maximum=16777216"`
}

// Workload is one point to tune for.
type Workload struct {
	Context int `yaml:"context" json:"context" jsonschema:"required,minimum=1,maximum=16777216"`
	Batch   int `yaml:"batch" json:"batch" jsonschema:"minimum=1,maximum=4096,default=1"`
}

// Candidates is how many pages a list has for the exact rerank, at most: ceil(rerank x slots), the slots where there is none; whole groups
// where summaries are of several pages.
func (s *Spec) Candidates() int { return s.Proposals() * s.SummaryPages() }

// Slots is k of the paper: pages a list that the token budget holds, ceil(budget / page).
func (s *Spec) Slots() int {
	return (s.Locks.BudgetTokens + s.Cache.PageSize - 1) / s.Cache.PageSize
}
