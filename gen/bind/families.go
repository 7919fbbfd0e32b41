package bind

import (
	"github.com/dave/jennifer/jen"

	"github.com/kvloom/kvloom/gen/plan"
)

// family is what is written for one kernel family.
type family struct {
	stem     plan.Family
	function string // PageScore
	doc      string // of the launch function, after its name
	args     string // of the constructor, after its name
	params   []jen.Code
	fill     func(p pkg) jen.Dict
	newPages bool // the launch function takes newPages
}

// ptrs declares device pointers as parameters.
func ptrs(names ...string) jen.Code {
	ids := make([]jen.Code, len(names))
	for i, n := range names {
		ids[i] = jen.Id(n)
	}
	return jen.List(ids...).Qual(devicePath, "Ptr")
}

func cacheParam() jen.Code { return jen.Id("cache").Qual(kernelPath, "KVCache") }

// strides of dense tensors, from what the arguments hold.
func qHeads() *jen.Statement {
	return jen.Int64().Call(jen.Id("cache").Dot("KVHeads")).Op("*").Id("Group")
}
func kvHeads() *jen.Statement {
	return jen.Int64().Call(jen.Id("cache").Dot("KVHeads"))
}
func maxPages() *jen.Statement { return jen.Int64().Call(jen.Id("cache").Dot("MaxPages")) }

// grouped divides a count of pages by those that share a summary, where several do.
func (p pkg) grouped(pages *jen.Statement) *jen.Statement {
	if p.spec.SummaryPages() == 1 {
		return pages
	}
	return pages.Op("/").Id("SummaryPages")
}

// scores is the length of a row of scores.
func (p pkg) scores() *jen.Statement { return p.grouped(maxPages()) }

// kept is the name of the constant of what a selection always keeps, which counts groups where pages share summaries.
func (p pkg) kept(name string) string {
	if p.spec.SummaryPages() == 1 {
		return name + "Pages"
	}
	return name + "Groups"
}

// lists is the number of page lists of a request, times Slots.
func (p pkg) lists() *jen.Statement {
	if p.spec.Locks.Combine == "per_head" {
		return qHeads()
	}
	return kvHeads()
}

// rerank is the fields of a rerank's arguments but the workspace.
func (p pkg) rerank() jen.Dict {
	return jen.Dict{
		jen.Id("Cache"): jen.Id("cache"), jen.Id("Q"): jen.Id("q"), jen.Id("Scores"): jen.Id("scores"), jen.Id("Candidates"): jen.Id("candidates"),
		jen.Id("CandidateCounts"): jen.Id("candidateCounts"), jen.Id("Pages"): jen.Id("pages"), jen.Id("Counts"): jen.Id("counts"),
		jen.Id("QBatchStride"): qHeads().Op("*").Id("HeadDim"), jen.Id("QHeadStride"): jen.Id("HeadDim"),
		jen.Id("ScoreBatchStride"): qHeads().Op("*").Add(p.scores()), jen.Id("ScoreHeadStride"): p.scores(),
		jen.Id("CandidatesBatchStride"): p.lists().Op("*").Id("Candidates"), jen.Id("CandidatesListStride"): jen.Id("Candidates"),
		jen.Id("PagesBatchStride"): p.lists().Op("*").Id("Slots"), jen.Id("PagesListStride"): jen.Id("Slots"),
		jen.Id("SoftmaxScale"): jen.Id("SoftmaxScale"), jen.Id("LogitSoftcap"): jen.Id("LogitSoftcap"),
		jen.Id("CandidateSlots"): jen.Id("Candidates"), jen.Id("Slots"): jen.Id("Slots"),
		jen.Id("SinkPages"): jen.Id("SinkPages"), jen.Id("RecentPages"): jen.Id("RecentPages"),
	}
}

// selection is the fields of a selection's arguments.
func (p pkg) selection(pages, counts string) jen.Dict {
	return jen.Dict{
		jen.Id("Scores"): jen.Id("scores"), jen.Id("SeqLens"): jen.Id("cache").Dot("SeqLens"), jen.Id("Pages"): jen.Id(pages),
		jen.Id("Counts"): jen.Id(counts), jen.Id("Workspace"): jen.Id("workspace"),
		jen.Id("ScoreBatchStride"): qHeads().Op("*").Add(p.scores()), jen.Id("ScoreHeadStride"): p.scores(),
		jen.Id("PagesBatchStride"): p.lists().Op("*").Id(p.slots()), jen.Id("PagesListStride"): jen.Id(p.slots()),
		jen.Id("Batch"): jen.Id("cache").Dot("Batch"), jen.Id("KVHeads"): jen.Id("cache").Dot("KVHeads"), jen.Id("MaxPages"): p.grouped(jen.Id("cache").Dot("MaxPages")),
		jen.Id("Slots"): jen.Id(p.slots()), jen.Id("SinkPages"): jen.Id(p.kept("Sink")), jen.Id("RecentPages"): jen.Id(p.kept("Recent")),
	}
}

// attention is the fields of an attention's arguments but the workspace.
func (p pkg) attention() jen.Dict {
	return jen.Dict{
		jen.Id("Cache"): jen.Id("cache"), jen.Id("Q"): jen.Id("q"), jen.Id("Pages"): jen.Id("pages"), jen.Id("Counts"): jen.Id("counts"),
		jen.Id("Out"): jen.Id("out"), jen.Id("LSE"): jen.Id("lse"),
		jen.Id("QBatchStride"): qHeads().Op("*").Id("HeadDim"), jen.Id("QHeadStride"): jen.Id("HeadDim"),
		jen.Id("OutBatchStride"): qHeads().Op("*").Id("HeadDim"), jen.Id("OutHeadStride"): jen.Id("HeadDim"),
		jen.Id("PagesBatchStride"): p.lists().Op("*").Id("Slots"), jen.Id("PagesListStride"): jen.Id("Slots"),
		jen.Id("SoftmaxScale"): jen.Id("SoftmaxScale"), jen.Id("LogitSoftcap"): jen.Id("LogitSoftcap"), jen.Id("Slots"): jen.Id("Slots"),
	}
}

// families in the order of a decode step.
var families = []family{
	{
		stem: plan.PageSummary, function: "PageSummary", newPages: true,
		doc: `summarises every page that became complete since built_lens [batch] and advances built_lens: the centroid mu of its keys, the
top-r right singular vectors V of the centred keys D (through the page x page Gram matrix) and the coefficients C = D V, quantised
(section 3 of the paper). Records lie at [block, kv head]. newPages sizes the grid: how many pages a request gains; any number
stays right.`,
		args:   `fills in dense records [block, kv head] of RecordBytes. built_lens is int32 [batch], zero at first; workspace is zeroed once.`,
		params: []jen.Code{cacheParam(), ptrs("summaries", "builtLens", "workspace")},
		fill: func(pkg) jen.Dict {
			return jen.Dict{
				jen.Id("Cache"): jen.Id("cache"), jen.Id("Summaries"): jen.Id("summaries"), jen.Id("BuiltLens"): jen.Id("builtLens"),
				jen.Id("Workspace"):          jen.Id("workspace"),
				jen.Id("SummaryBlockStride"): kvHeads().Op("*").Id("RecordBytes"), jen.Id("SummaryHeadStride"): jen.Id("RecordBytes"),
			}
		},
	},
	{
		stem: plan.PageScore, function: "PageScore",
		doc: `writes the natural-log score of every page for every query head, f32 [batch, q head, page]: equation 2 of the paper for complete
pages, s_j(q) = log sum_i exp(scale * (mu_j . q + C_j[i] . V_j^T q)), and equation 1, the exact log-sum-exp of scale * k_i . q, for the
page that is still filling.`,
		args:   `fills in dense q [batch, q head, dim], records [block, kv head] and scores [batch, q head, max pages].`,
		params: []jen.Code{cacheParam(), ptrs("q", "summaries", "scores", "workspace")},
		fill: func(p pkg) jen.Dict {
			return jen.Dict{
				jen.Id("Cache"): jen.Id("cache"), jen.Id("Q"): jen.Id("q"), jen.Id("Summaries"): jen.Id("summaries"), jen.Id("Scores"): jen.Id("scores"),
				jen.Id("Workspace"):    jen.Id("workspace"),
				jen.Id("QBatchStride"): qHeads().Op("*").Id("HeadDim"), jen.Id("QHeadStride"): jen.Id("HeadDim"),
				jen.Id("SummaryBlockStride"): kvHeads().Op("*").Id("RecordBytes"), jen.Id("SummaryHeadStride"): jen.Id("RecordBytes"),
				jen.Id("ScoreBatchStride"): qHeads().Op("*").Add(p.scores()), jen.Id("ScoreHeadStride"): p.scores(),
				jen.Id("SoftmaxScale"): jen.Id("SoftmaxScale"), jen.Id("LogitSoftcap"): jen.Id("LogitSoftcap"),
			}
		},
	},
	{
		stem: plan.PageSelect, function: "PageSelect",
		doc: `combines the scores of a list's heads (Combine) and picks exactly min(Slots, pages) pages: the sink and most recent ones, and the rest
by combined value, ties to the lower index. It writes ascending page indices int32 [batch, list, Slots], -1 after them, and their
count int32 [batch, list].`,
		args:   `fills in dense scores [batch, q head, max pages], pages [batch, list, Slots] and counts [batch, list].`,
		params: []jen.Code{cacheParam(), ptrs("scores", "pages", "counts", "workspace")},
		fill: func(p pkg) jen.Dict {
			return p.selection("pages", "counts")
		},
	},
	{
		stem: plan.PageRerank, function: "PageRerank",
		doc: `scores the candidates that PageSelect proposed [batch, list, Candidates] exactly, from their keys and for every head of a list; the
exact scores take the place of the estimates inside the shares, and the best Slots of the candidates are written: ascending page indices
int32 [batch, list, Slots], -1 after them, and their count int32 [batch, list].`,
		args:   `fills in dense q [batch, q head, dim], scores [batch, q head, max pages], candidates [batch, list, Candidates] and pages [batch, list, Slots].`,
		params: []jen.Code{cacheParam(), ptrs("q", "scores", "candidates", "candidateCounts", "pages", "counts", "workspace")},
		fill: func(p pkg) jen.Dict {
			d := p.rerank()
			d[jen.Id("Workspace")] = jen.Id("workspace")
			return d
		},
	},
	{
		stem: plan.PageRerankAttend, function: "PageRerankAttend",
		doc: `does what PageRerank and PageAttend do, in one launch: keys of the pages that it keeps are not read again. out is in DType
[batch, q head, dim], the natural-log normaliser f32 [batch, q head] where lse is not null.`,
		args: `fills in dense q and out [batch, q head, dim], scores [batch, q head, max pages], candidates [batch, list, Candidates] and pages
[batch, list, Slots]. lse may be null.`,
		params: []jen.Code{cacheParam(), ptrs("q", "scores", "candidates", "candidateCounts", "pages", "counts", "out", "lse")},
		fill: func(p pkg) jen.Dict {
			return jen.Dict{
				jen.Id("Rerank"): jen.Qual(kernelPath, "PageRerankArgs").Values(p.rerank()), jen.Id("Out"): jen.Id("out"), jen.Id("LSE"): jen.Id("lse"),
				jen.Id("OutBatchStride"): qHeads().Op("*").Id("HeadDim"), jen.Id("OutHeadStride"): jen.Id("HeadDim"),
			}
		},
	},
	{
		stem: plan.PageSelectRerankAttend, function: "PageSelectRerankAttend",
		doc: `does what PageSelect, PageRerank and PageAttend do, in one launch: the blocks that propose a list's candidates rerank them and attend
to what they keep. DecodeLayer uses it where all of its blocks run at once.`,
		args: `fills in dense scores [batch, q head, max pages], q and out [batch, q head, dim], candidates [batch, list, Candidates] and
pages [batch, list, Slots], which are written too. lse may be null.`,
		params: []jen.Code{cacheParam(), ptrs("scores", "q", "candidates", "candidateCounts", "pages", "counts", "out", "lse", "workspace")},
		fill: func(p pkg) jen.Dict {
			return jen.Dict{jen.Id("Select"): jen.Qual(kernelPath, "PageSelectArgs").Values(p.selection("candidates", "candidateCounts")),
				jen.Id("Both"): jen.Qual(kernelPath, "PageRerankAttendArgs").Values(jen.Dict{
					jen.Id("Rerank"): jen.Qual(kernelPath, "PageRerankArgs").Values(p.rerank()), jen.Id("Out"): jen.Id("out"), jen.Id("LSE"): jen.Id("lse"),
					jen.Id("OutBatchStride"): qHeads().Op("*").Id("HeadDim"), jen.Id("OutHeadStride"): jen.Id("HeadDim"),
				})}
		},
	},
	{
		stem: plan.PageAttend, function: "PageAttend",
		doc: `attends to the tokens of the listed pages alone, renormalised: out = softmax(scale * K_S q) V_S, in DType [batch, q head, dim], and the
natural-log normaliser f32 [batch, q head] where lse is not null. With null pages and counts it attends to all pages: dense attention,
looked up as work "dense". Tokens past seq_len are masked; without a token the output is 0 and the normaliser -inf.`,
		args:   `fills in dense q and out [batch, q head, dim] and pages [batch, list, Slots]; pages and counts null: all pages. lse may be null.`,
		params: []jen.Code{cacheParam(), ptrs("q", "pages", "counts", "out", "lse", "workspace")},
		fill: func(p pkg) jen.Dict {
			d := p.attention()
			d[jen.Id("Workspace")] = jen.Id("workspace")
			return d
		},
	},
	{
		stem: plan.PageSelectAttend, function: "PageSelectAttend",
		doc: `does what PageSelect and PageAttend do, in one launch: the blocks that choose the pages of a list attend to them. DecodeLayer uses it
where all of its blocks run at once.`,
		args: `fills in dense scores [batch, q head, max pages], q and out [batch, q head, dim], pages [batch, list, Slots] and counts
[batch, list], which are written too. lse may be null.`,
		params: []jen.Code{cacheParam(), ptrs("scores", "q", "pages", "counts", "out", "lse", "workspace")},
		fill: func(p pkg) jen.Dict {
			return jen.Dict{jen.Id("Select"): jen.Qual(kernelPath, "PageSelectArgs").Values(p.selection("pages", "counts")),
				jen.Id("Attend"): jen.Qual(kernelPath, "PageAttendArgs").Values(p.attention())}
		},
	},
}

// family writes one family's argument struct, its constructor and its launch function.
func (p pkg) family(f *jen.File, fam family) {
	args := fam.function + "Args"
	f.Comment(lines(args + " are the arguments of " + fam.function + " for this model. Strides may be changed after the constructor filled them in."))
	f.Type().Id(args).Struct(jen.Qual(kernelPath, args))

	f.Comment(lines("New" + args + " " + fam.args))
	f.Func().Id("New" + args).Params(fam.params...).Op("*").Id(args).Block(
		jen.Return(jen.Op("&").Id(args).Values(jen.Qual(kernelPath, args).Values(fam.fill(p)))),
	)

	params := []jen.Code{jen.Id("s").Qual(devicePath, "Stream"), jen.Id("a").Op("*").Id(args), jen.Id("w").Qual(kernelPath, "Workload")}
	call := []jen.Code{jen.Id("s"), jen.Op("&").Id("a").Dot(args), jen.Id("w")}
	if fam.newPages {
		params, call = append(params, jen.Id("newPages").Int()), append(call, jen.Id("newPages"))
	}
	f.Comment(lines(fam.function + " " + fam.doc))
	f.Func().Params(jen.Id("k").Op("*").Id("Kernels")).Id(fam.function).Params(params...).Error().Block(
		jen.Return(jen.Id("k").Dot("Set").Dot(fam.function).Call(call...)),
	)
}
