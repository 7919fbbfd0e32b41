package bind

import (
	"github.com/dave/jennifer/jen"

	"github.com/kvloom/kvloom/gen/plan"
)

// maxTokens is what the cache has room for.
func maxTokens() *jen.Statement { return maxPages().Op("*").Id("PageSize") }

// windowStrides are those of dense [batch, q head, window, dim], by the prefix of the fields.
func windowStrides(d jen.Dict, prefix string) {
	d[jen.Id(prefix+"BatchStride")] = qHeads().Op("*").Id("Window").Op("*").Id("HeadDim")
	d[jen.Id(prefix+"HeadStride")] = jen.Id("Window").Op("*").Id("HeadDim")
	d[jen.Id(prefix+"RowStride")] = jen.Id("HeadDim")
}

// tokenStrides are those of dense [batch, kv head, max tokens].
func tokenStrides(d jen.Dict, prefix string) {
	d[jen.Id(prefix+"BatchStride")] = kvHeads().Op("*").Add(maxTokens())
	d[jen.Id(prefix+"HeadStride")] = maxTokens()
}

// shapeOf fills in batch, heads and tokens.
func shapeOf(d jen.Dict) jen.Dict {
	d[jen.Id("Batch")] = jen.Id("cache").Dot("Batch")
	d[jen.Id("KVHeads")] = jen.Id("cache").Dot("KVHeads")
	d[jen.Id("MaxTokens")] = jen.Id("cache").Dot("MaxPages").Op("*").Id("PageSize")
	return d
}

// selectParams and selectArgs are those of a selection among one value a token.
func selectParams(values string) []jen.Code {
	return []jen.Code{cacheParam(), ptrs(values, "budgets", "indices", "counts"), jen.Id("slots").Int()}
}

func selectArgs(values string) jen.Dict {
	d := jen.Dict{
		jen.Id("SeqLens"): jen.Id("cache").Dot("SeqLens"), jen.Id("Budget"): jen.Id("Budget").Call(), jen.Id("BudgetBatchStride"): kvHeads(),
		jen.Id("IndexBatchStride"): kvHeads().Op("*").Int64().Call(jen.Id("slots")), jen.Id("IndexHeadStride"): jen.Int64().Call(jen.Id("slots")),
		jen.Id("Slots"): jen.Int32().Call(jen.Id("slots")),
	}
	same(d, [2]string{"Values", values}, [2]string{"Budgets", "budgets"}, [2]string{"Indices", "indices"}, [2]string{"Counts", "counts"})
	tokenStrides(d, "Value")
	return shapeOf(d)
}

func logits(d jen.Dict) jen.Dict {
	d[jen.Id("SoftmaxScale")] = jen.Id("SoftmaxScale")
	d[jen.Id("LogitSoftcap")] = jen.Id("LogitSoftcap")
	return d
}

// same fills in fields from parameters of the same name, first letter lower case.
func same(d jen.Dict, fields ...[2]string) {
	for _, f := range fields {
		d[jen.Id(f[0])] = jen.Id(f[1])
	}
}

// dropFamilies in the order in which a prompt passes through them.
var dropFamilies = []family{
	{
		stem: plan.DropObserve, function: "DropObserve",
		doc: `writes full log-sum-exp f32 [batch, q head, Window] and attention output [batch, q head, Window, dim] of the last Window queries of
each request, causal inside the window; for the rule keydiff the mean of the keys' directions, f32 [batch, kv head, dim]. A prefill
that hands both over needs no DropObserve.`,
		args:   `fills in dense q and out [batch, q head, Window, dim] and lse [batch, q head, Window]. workspace is zeroed once.`,
		params: []jen.Code{cacheParam(), ptrs("q", "out", "lse", "workspace")},
		fill: func(pkg) jen.Dict {
			d := jen.Dict{}
			same(d, [2]string{"Cache", "cache"}, [2]string{"Q", "q"}, [2]string{"Out", "out"}, [2]string{"LSE", "lse"}, [2]string{"Workspace", "workspace"})
			windowStrides(d, "Q")
			return logits(d)
		},
	},
	{
		stem: plan.DropScore, function: "DropScore",
		doc: `scores every token by the spec's rule, f32 [batch, kv head, token]; for dropkv, by the paper's residual form: the mean over the
group of the sum over the window of (p/(1-p+eps))^2 ||a - v||^2, p from the full log-sum-exp, a the attention output. K and V are
read once while the window's rows fit shared memory.`,
		args:   `fills in dense q and a [batch, q head, Window, dim], lse [batch, q head, Window] and scores [batch, kv head, max tokens].`,
		params: []jen.Code{cacheParam(), ptrs("q", "a", "lse", "scores")},
		fill: func(p pkg) jen.Dict {
			d := jen.Dict{}
			same(d, [2]string{"Cache", "cache"}, [2]string{"Q", "q"}, [2]string{"A", "a"}, [2]string{"LSE", "lse"}, [2]string{"Scores", "scores"}, [2]string{"Eps", "Eps"})
			windowStrides(d, "Q")
			windowStrides(d, "A")
			if p.spec.DropKV.Rule == "keydiff" {
				d[jen.Id("ABatchStride")], d[jen.Id("AHeadStride")] = kvHeads().Op("*").Id("HeadDim"), jen.Id("HeadDim")
			}
			d[jen.Id("LSEBatchStride")], d[jen.Id("LSEHeadStride")] = qHeads().Op("*").Id("Window"), jen.Id("Window")
			tokenStrides(d, "Score")
			return logits(d)
		},
	},
	{
		stem: plan.DropObserveScore, function: "DropObserveScore",
		doc: `scores every token as DropObserve and DropScore do, in one launch, for prompts of which neither log-sum-exps nor outputs are at
hand. Sums meet in no fixed order: scores differ in last bits from run to run.`,
		args:   `fills in dense q [batch, q head, Window, dim] and scores [batch, kv head, max tokens]. workspace is zeroed once.`,
		params: []jen.Code{cacheParam(), ptrs("q", "scores", "workspace")},
		fill: func(pkg) jen.Dict {
			d := jen.Dict{}
			same(d, [2]string{"Cache", "cache"}, [2]string{"Q", "q"}, [2]string{"Scores", "scores"}, [2]string{"Workspace", "workspace"}, [2]string{"Eps", "Eps"})
			windowStrides(d, "Q")
			tokenStrides(d, "Score")
			return logits(d)
		},
	},
	{
		stem: plan.DropPool, function: "DropPool",
		doc: `smooths scores along the sequence, over the tokens before the window, and sets pinned tokens to +inf: the window and the first
SinkTokens.`,
		args:   `fills in dense scores and pooled [batch, kv head, max tokens].`,
		params: []jen.Code{cacheParam(), ptrs("scores", "pooled")},
		fill: func(pkg) jen.Dict {
			d := jen.Dict{jen.Id("SeqLens"): jen.Id("cache").Dot("SeqLens"), jen.Id("Sinks"): jen.Id("SinkTokens")}
			same(d, [2]string{"Scores", "scores"}, [2]string{"Pooled", "pooled"})
			tokenStrides(d, "Score")
			tokenStrides(d, "Pooled")
			return shapeOf(d)
		},
	},
	{
		stem: plan.DropAllot, function: "DropAllot",
		doc: `divides a layer's budget over its heads, int32 [batch, kv head]: each head's own best are sure of a share (the floor), the rest goes
to the best of all heads.`,
		args:   `fills in dense values [batch, kv head, max tokens] and budgets [batch, kv head]. workspace is zeroed once.`,
		params: []jen.Code{cacheParam(), ptrs("values", "budgets", "workspace")},
		fill: func(pkg) jen.Dict {
			d := jen.Dict{jen.Id("SeqLens"): jen.Id("cache").Dot("SeqLens"), jen.Id("Budget"): jen.Id("Budget").Call()}
			same(d, [2]string{"Values", "values"}, [2]string{"Budgets", "budgets"}, [2]string{"Workspace", "workspace"})
			tokenStrides(d, "Value")
			return shapeOf(d)
		},
	},
	{
		stem: plan.DropSelect, function: "DropSelect",
		doc: `picks the tokens that each head keeps: pinned ones, then the best by value, ties to the lower token. It writes ascending token indices
int32 [batch, kv head, slots], -1 after them, and their count int32 [batch, kv head]. Null budgets: every head keeps what Budget says.`,
		args: `fills in dense values [batch, kv head, max tokens], budgets and counts [batch, kv head] and indices [batch, kv head, slots]. budgets may
be null, and values for the rule streaming. slots is at least Budget().Slots(max tokens, 1); with budgets, Slots(max tokens, kv heads).`,
		params: selectParams("values"),
		fill:   func(pkg) jen.Dict { return selectArgs("values") },
	},
	{
		stem: plan.DropPoolSelect, function: "DropPoolSelect",
		doc: `picks the tokens that each head keeps as DropPool and DropSelect do, in one launch, from the scores themselves; pooled scores go to no
memory.`,
		args: `fills in dense scores [batch, kv head, max tokens], budgets and counts [batch, kv head] and indices [batch, kv head, slots]. budgets may
be null. slots is at least Budget().Slots(max tokens, 1).`,
		params: selectParams("scores"),
		fill:   func(pkg) jen.Dict { return selectArgs("scores") },
	},
	{
		stem: plan.DropCompact, function: "DropCompact",
		doc: `gathers the kept tokens of each head to the front of a cache, which PageAttend then reads by its head_lens. In place (InPlace 1), a
target page is the source's own block or a fresh one: kernel.PlacePages.`,
		args: `fills in dense indices [batch, kv head, slots], counts and headLens [batch, kv head], seqLens [batch] and table [batch, max pages]. The
last three are outputs; table may be null.`,
		params: []jen.Code{jen.List(jen.Id("source"), jen.Id("target")).Qual(kernelPath, "KVCache"), ptrs("indices", "counts", "headLens", "seqLens", "table"), jen.Id("slots").Int()},
		fill: func(pkg) jen.Dict {
			d := jen.Dict{
				jen.Id("IndexBatchStride"): jen.Int64().Call(jen.Id("source").Dot("KVHeads")).Op("*").Int64().Call(jen.Id("slots")),
				jen.Id("IndexHeadStride"):  jen.Int64().Call(jen.Id("slots")),
				jen.Id("TableStride"):      jen.Int64().Call(jen.Id("target").Dot("MaxPages")), jen.Id("Slots"): jen.Int32().Call(jen.Id("slots")),
			}
			same(d, [2]string{"Source", "source"}, [2]string{"Target", "target"}, [2]string{"Indices", "indices"}, [2]string{"Counts", "counts"},
				[2]string{"HeadLens", "headLens"}, [2]string{"SeqLens", "seqLens"}, [2]string{"Table", "table"})
			return d
		},
	},
}

// dropConstants writes what the DropKV kernels were specialised for, and the spec's budget.
func (p pkg) dropConstants(f *jen.File) {
	k := p.spec.DropKV
	f.Comment("What the DropKV kernels were specialised for, and what the spec says of budgets, which are arguments.")
	def := func(name string, value any, comment string) jen.Code {
		return jen.Id(name).Op("=").Lit(value).Comment(comment)
	}
	f.Const().Defs(
		def("Rule", k.Rule, "what scores a token"),
		def("Window", k.Window, "last queries that vote; their tokens are always kept"),
		def("Pool", k.Pool.Kind, "how scores are smoothed"),
		def("PoolWidth", k.Pool.Width, "tokens"),
		def("Precision", k.Precision, "exact: outputs in f32; fast: in DType"),
		def("Eps", k.Eps, "of p/(1-p+eps)"),
		def("SinkTokens", k.SinkTokens, "first tokens, always kept"),
	)
	d := jen.Dict{jen.Id("Window"): jen.Id("Window"), jen.Id("Sinks"): jen.Id("SinkTokens")}
	if k.Budget.Ratio > 0 {
		d[jen.Id("Ratio")] = jen.Lit(k.Budget.Ratio)
	} else {
		d[jen.Id("Tokens")] = jen.Lit(k.Budget.Tokens)
	}
	if k.HeadBudgets.Kind == "adaptive" {
		d[jen.Id("Floor")] = jen.Lit(k.HeadBudgets.Floor)
	}
	f.Comment(lines("Budget is the spec's, " + k.HeadBudgets.Kind + " over heads. The layer of a pyramid is the caller's to set."))
	f.Func().Id("Budget").Params().Qual(kernelPath, "DropBudget").Block(jen.Return(jen.Qual(kernelPath, "DropBudget").Values(d)))
}
