package bind

import (
	"github.com/dave/jennifer/jen"

	"github.com/kvloom/kvloom/gen/plan"
)

// open writes the Kernels type and how to get one.
func (p pkg) open(f *jen.File) {
	f.Comment(lines("shape is what a bundle must have been made for."))
	shape := jen.Dict{
		jen.Id("QueryHeads"):   jen.Id("QueryHeads"),
		jen.Id("KVHeads"):      jen.Id("KVHeads"),
		jen.Id("HeadDim"):      jen.Id("HeadDim"),
		jen.Id("PageSize"):     jen.Id("PageSize"),
		jen.Id("DType"):        jen.Id("DType"),
		jen.Id("Rank"):         jen.Id("Rank"),
		jen.Id("BasisBits"):    jen.Id("BasisBits"),
		jen.Id("RecordBytes"):  jen.Id("RecordBytes"),
		jen.Id("Combine"):      jen.Id("Combine"),
		jen.Id("Slots"):        jen.Id("Slots"),
		jen.Id("SinkPages"):    jen.Id("SinkPages"),
		jen.Id("RecentPages"):  jen.Id("RecentPages"),
		jen.Id("SoftmaxScale"): jen.Id("SoftmaxScale"),
		jen.Id("LogitSoftcap"): jen.Id("LogitSoftcap"),
		jen.Id("Drop"): jen.Qual(kernelPath, "DropModel").Values(jen.Dict{
			jen.Id("Rule"): jen.Id("Rule"), jen.Id("Window"): jen.Id("Window"), jen.Id("Pool"): jen.Id("Pool"), jen.Id("PoolWidth"): jen.Id("PoolWidth"),
			jen.Id("Precision"): jen.Id("Precision"), jen.Id("Eps"): jen.Id("Eps"),
		}),
	}
	if p.spec.Locks.Rerank > 1 {
		shape[jen.Id("Candidates")] = jen.Id("Candidates")
	}
	if p.spec.SummaryPages() > 1 {
		shape[jen.Id("SummaryPages")] = jen.Id("SummaryPages")
	}
	if p.spec.Locks.Basis == plan.QueryWeighted {
		shape[jen.Id("Basis")] = jen.Lit(p.spec.Locks.Basis)
	}
	if form := p.record.Form; !form.Plain() {
		shape[jen.Id("Form")] = jen.Lit(form.String())
	}
	if p.spec.StoreBytes() > 0 {
		shape[jen.Id("StoreBytes")] = jen.Id("StoreBytes")
	}
	f.Var().Id("shape").Op("=").Qual(kernelPath, "Model").Values(shape)
	f.Comment(lines("keys names what the kernels of each family compute, tuned parameters left out."))
	f.Var().Id("keys").Op("=").Map(jen.String()).String().Values(jen.DictFunc(func(d jen.Dict) {
		for _, w := range p.works {
			if w.Name == string(w.Family) { // dense shares the kernels of page_attend
				d[jen.Lit(w.Name)] = jen.Lit(w.Defaults[0].Key)
			}
		}
	}))
	f.Comment(lines("Kernels are the loaded kernels of " + p.spec.Name + ". Its launch functions enqueue on the caller's stream and thread, allocate nothing, never\n" +
		"wait, and may be captured into a graph. They are safe for several goroutines."))
	f.Type().Id("Kernels").Struct(jen.Op("*").Qual(kernelPath, "Set"))

	f.Comment(lines("Open reads a bundle that 'kvloom tune' exported for this spec and loads it on a device. On another architecture than it was tuned on, the\n" +
		"portable forms are loaded; Warnings says so."))
	f.Func().Id("Open").Params(jen.Id("path").String(), jen.Id("dev").Qual(devicePath, "Device")).Params(jen.Op("*").Id("Kernels"), jen.Error()).Block(
		jen.List(jen.Id("b"), jen.Err()).Op(":=").Qual(kernelPath, "Open").Call(jen.Id("path")),
		jen.If(jen.Err().Op("!=").Nil()).Block(jen.Return(jen.Nil(), jen.Err())),
		jen.Return(jen.Id("Load").Call(jen.Id("b"), jen.Id("dev"))),
	)
	f.Comment(lines("Load loads an opened bundle. One of another spec is an error that says what differs."))
	f.Func().Id("Load").Params(jen.Id("b").Op("*").Qual(kernelPath, "Bundle"), jen.Id("dev").Qual(devicePath, "Device")).Params(jen.Op("*").Id("Kernels"), jen.Error()).Block(
		jen.If(jen.Err().Op(":=").Id("b").Dot("Expect").Call(jen.Id("Model"), jen.Id("shape"), jen.Id("keys")), jen.Err().Op("!=").Nil()).Block(
			jen.Return(jen.Nil(), jen.Err())),
		jen.List(jen.Id("s"), jen.Err()).Op(":=").Id("b").Dot("Load").Call(jen.Id("dev")),
		jen.If(jen.Err().Op("!=").Nil()).Block(jen.Return(jen.Nil(), jen.Err())),
		jen.Return(jen.Op("&").Id("Kernels").Values(jen.Id("s")), jen.Nil()),
	)
}

// sizes writes what a caller allocates.
func (p pkg) sizes(f *jen.File) {
	f.Comment(lines("SummaryBytes is the memory of the page summaries of one layer: a record for each of blocks physical blocks and kvHeads KV heads."))
	f.Func().Id("SummaryBytes").Params(jen.List(jen.Id("blocks"), jen.Id("kvHeads")).Int()).Int64().Block(
		jen.Return(jen.Int64().Call(jen.Id("blocks")).Op("*").Int64().Call(jen.Id("kvHeads")).Op("*").Id("RecordBytes")),
	)
}
