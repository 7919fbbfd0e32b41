package specs

// descriptions say what each field means, by Go type and field: they are shown by editors through the JSON Schema.
var descriptions = map[string]string{
	"Spec.Name":      "Name of the spec: letters, digits, dots and dashes; the stem of the file.",
	"Spec.Attention": "Shape of one attention layer.",
	"Spec.Cache":     "How the engine keeps keys and values.",
	"Spec.Locks":     "Page selection: summaries, scoring, selection and sparse attention.",
	"Spec.DropKV":    "Token eviction after the prompt.",
	"Spec.Targets":   "GPU architectures to generate for; other GPUs run the portable form.",
	"Spec.Workloads": "Points to tune for. Default: context 32768 and 131072, batch 1.",

	"Attention.QueryHeads":   "Query heads of a layer; a multiple of kv_heads.",
	"Attention.KVHeads":      "KV heads of a layer. query_heads / kv_heads is the group, any whole number from 1 to 64.",
	"Attention.HeadDim":      "Elements of one head.",
	"Attention.SoftmaxScale": "Factor of q.k before the softmax. Default: 1/sqrt(head_dim).",
	"Attention.LogitSoftcap": "Cap c of logits: c*tanh(logit/c). 0: no cap.",

	"Cache.DType":    "Type of keys and values.",
	"Cache.PageSize": "Tokens of a page.",
	"Cache.Layout":   "Base pointers and strides for block, token and head; never a shape name.",

	"Locks.Rank":            "Directions kept a page; below page_size.",
	"Locks.BasisBits":       "Bits of a basis element; 16 is bf16 without scales.",
	"Locks.CoefficientBits": "Bits of a coefficient.",
	"Locks.CentroidBits":    "Bits of a centroid element.",
	"Locks.ScaleGroup":      "What shares a basis scale: a column, or 16 dims of it.",
	"Locks.Basis":           "How the basis is fitted: to the keys, or to the keys weighted by the queries.",
	"Locks.Calibration":     "Files of kvloom calibrate beside the spec, one a layer: what bundles hand to query-weighted and centred summaries.",
	"Locks.Scorer":          "What estimates a page's attention mass.",
	"Locks.Summaries":       "KIVI caches: page summaries of the keys in bf16 (post) or of the quantised keys (pre).",
	"Locks.Scan":            "Which pages a step scores.",
	"Locks.Rerank":          "Times the budget that is reranked by exact page scores.",
	"Locks.SummaryTokens":   "Tokens that share a summary, 1 to 4 pages: several are proposed to the rerank together. Default: page_size.",
	"Locks.BudgetTokens":    "Tokens attended a step and KV head; k = ceil(budget_tokens / page_size) pages.",
	"Locks.Combine":         "How the scores of a group's query heads become one ranking of pages.",
	"Locks.AlwaysKeep":      "Pages that are always selected, counted inside the budget.",

	"Keep.SinkPages":   "First pages always kept.",
	"Keep.RecentPages": "Last pages always kept.",

	"DropKV.Rule":        "What scores a token.",
	"DropKV.Window":      "Last queries that vote; their tokens are always kept.",
	"DropKV.Pool":        "Smooths token scores along the sequence.",
	"DropKV.Budget":      "Tokens that a head keeps: a ratio of the prompt, or a number. Default: ratio 0.05.",
	"DropKV.HeadBudgets": "How a layer's budget is divided over its KV heads.",
	"DropKV.SinkTokens":  "First tokens always kept.",
	"DropKV.Precision":   "exact: attention outputs in f32; fast: in the cache's type.",
	"DropKV.Eps":         "Keeps p/(1-p+eps) finite.",

	"Pool.Kind":  "Maximum or average of the neighbours, or no pooling.",
	"Pool.Width": "Tokens of the pooling window; odd. Default: 11, and 1 for kind none.",

	"Budget.Ratio":  "Share of the prompt's tokens.",
	"Budget.Tokens": "Number of tokens; instead of ratio.",

	"HeadBudgets.Kind":  "Equal, by scores with a floor, falling with depth, or a list.",
	"HeadBudgets.Floor": "Kind adaptive: the share of the uniform budget that every head gets. Default: 0.2.",
	"HeadBudgets.List":  "Kind explicit: tokens of each KV head.",

	"Workload.Context": "Tokens in the cache.",
	"Workload.Batch":   "Requests in the batch.",
}
