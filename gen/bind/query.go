package bind

import (
	"github.com/dave/jennifer/jen"

	"github.com/kvloom/kvloom/gen/plan"
)

// queryFamilies make the weights of a query-weighted basis.
var queryFamilies = []family{
	{
		stem: plan.QueryMoment, function: "QueryMoment",
		doc: `adds the second moments of a prompt's queries, one for each KV head over the queries of its group, to partial sums f32
[kernel.MomentSplits, kv head, dim, dim] that were zeroed before the prompt's first chunk.`,
		args:   `fills in dense q [batch, tokens, q head, dim] of kvHeads x Group heads; qLens is int32 [batch]: queries of each request.`,
		params: []jen.Code{ptrs("q", "qLens", "moments"), jen.List(jen.Id("batch"), jen.Id("tokens"), jen.Id("kvHeads")).Int32()},
		fill: func(pkg) jen.Dict {
			row := func() *jen.Statement {
				return jen.Int64().Call(jen.Id("kvHeads")).Op("*").Id("Group").Op("*").Id("HeadDim")
			}
			return jen.Dict{
				jen.Id("Q"): jen.Id("q"), jen.Id("QLens"): jen.Id("qLens"), jen.Id("Moments"): jen.Id("moments"),
				jen.Id("QBatchStride"): jen.Int64().Call(jen.Id("tokens")).Op("*").Add(row()), jen.Id("QTokenStride"): row(), jen.Id("QHeadStride"): jen.Id("HeadDim"),
				jen.Id("Batch"): jen.Id("batch"), jen.Id("KVHeads"): jen.Id("kvHeads"), jen.Id("Group"): jen.Id("Group"),
				jen.Id("Splits"): jen.Qual(kernelPath, "MomentSplits"),
			}
		},
	},
	{
		stem: plan.QueryFactor, function: "QueryFactor",
		doc: `turns the partial sums of QueryMoment into what PageSummary reads as Weights: of each KV head Cholesky's factor of the shrunk
moment, kernel.WeightBytes in all. A moment that is zero or not finite gives the identity, which is the plain SVD.`,
		args:   `fills in the arguments for kvHeads heads.`,
		params: []jen.Code{ptrs("moments", "weights"), jen.Id("kvHeads").Int32()},
		fill: func(pkg) jen.Dict {
			return jen.Dict{
				jen.Id("Moments"): jen.Id("moments"), jen.Id("Weights"): jen.Id("weights"), jen.Id("KVHeads"): jen.Id("kvHeads"),
				jen.Id("Splits"): jen.Qual(kernelPath, "MomentSplits"),
			}
		},
	},
}
