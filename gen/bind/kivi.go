package bind

import (
	"github.com/dave/jennifer/jen"

	"github.com/kvloom/kvloom/gen/plan"
)

// kiviFamilies quantise caches.
var kiviFamilies = []family{
	{
		stem: plan.KVQuantize, function: "KVQuantize", newPages: true,
		doc: `quantises every page that became complete since quantized_lens [batch] into the cache's Store and advances quantized_lens: keys per
channel over the page's tokens, values per token over groups of 32 channels (section 5.4 of the paper). PageAttend reads complete
pages from the Store, by the block table, and the one that is filling from its rows, by the row table. newPages sizes the grid: how many
pages a request gains; any number stays right.`,
		args:   `takes a cache whose Store holds records [block, kv head] of StoreBytes. quantizedLens is int32 [batch], zero at first; workspace is zeroed once.`,
		params: []jen.Code{cacheParam(), ptrs("quantizedLens", "workspace")},
		fill: func(pkg) jen.Dict {
			return jen.Dict{jen.Id("Cache"): jen.Id("cache"), jen.Id("QuantizedLens"): jen.Id("quantizedLens"), jen.Id("Workspace"): jen.Id("workspace")}
		},
	},
}

// storeBytes is the constant of a model whose cache is quantised.
func (p pkg) storeBytes(def func(string, any, string) jen.Code) jen.Code {
	if p.spec.StoreBytes() == 0 {
		return jen.Null()
	}
	return def("StoreBytes", p.spec.StoreBytes(), "of a quantised page of K and V of one KV head")
}
