package plan

import (
	"fmt"

	"github.com/kvloom/kvloom/specs"
)

// The DropKV families, in the order in which a prompt passes through them.
const (
	DropObserve Family = "drop_observe"
	DropScore   Family = "drop_score"
	// DropObserveScore is both in one launch, where DropKV is fast.
	DropObserveScore Family = "drop_observe_score"
	DropPool         Family = "drop_pool"
	DropAllot        Family = "drop_allot"
	DropSelect       Family = "drop_select"
	// DropPoolSelect is drop_pool and drop_select in one launch, where heads have budgets of their own.
	DropPoolSelect Family = "drop_pool_select"
	DropCompact    Family = "drop_compact"
)

// dropFamilies are those that a spec's eviction needs: streaming scores nothing, snapkv and value_norm use the log-sum-exp of
// drop_observe alone, and only adaptive budgets are allotted. drop_observe_score is an alternative to the two before it, and
// drop_pool_select to drop_pool and drop_select.
func dropFamilies(s *specs.Spec, t Target) []Family {
	var list []Family
	if s.DropKV.Rule != "streaming" {
		list = append(list, DropObserve, DropScore)
		if dropFuses(s, t) {
			list = append(list, DropObserveScore)
		}
		list = append(list, DropPool)
		if s.DropKV.HeadBudgets.Kind == "adaptive" {
			list = append(list, DropAllot) // which reads pooled scores
		} else if s.DropKV.Pool.Kind != "none" && s.DropKV.Pool.Width > 1 {
			list = append(list, DropPoolSelect)
		}
	}
	return append(list, DropSelect, DropCompact)
}

// dropRules maps the spec's rules to the C++ enumerators. streaming has none: it scores nothing.
var dropRules = map[string]string{"dropkv": "kDropKV", "snapkv": "kSnapKV", "value_norm": "kValueNorm", "keydiff": "kKeyDiff"}

// outputType is the C++ type of attention outputs between drop_observe and drop_score.
func outputType(s *specs.Spec) string {
	if s.DropKV.Precision == "fast" && s.DropKV.Rule != "keydiff" {
		return "kvloom::" + s.Cache.Compute()
	}
	return "float"
}

// dropConstants are what every kernel over K and V and a window is instantiated with, then its own. output names the type of attention
// outputs, where the kernel reads or writes them.
func dropConstants(s *specs.Spec, output string, own []Constant) []Constant {
	list := []Constant{
		{"HEAD_DIM", fmt.Sprint(s.Attention.HeadDim)},
		{"PAGE", fmt.Sprint(s.Cache.PageSize)},
		{"WINDOW", fmt.Sprint(s.DropKV.Window)},
		{"GROUP", fmt.Sprint(s.Attention.Group())},
		{"T", "kvloom::" + s.Cache.DType},
	}
	if output != "" {
		list = append(list, Constant{output, outputType(s)})
	}
	return append(append(list, Constant{"SOFTCAP", fmt.Sprint(s.Attention.LogitSoftcap > 0)}), own...)
}

// dropRuleConstants begin with the rule.
func dropRuleConstants(s *specs.Spec, output string, own []Constant) []Constant {
	rule := Constant{"RULE", "kvloom::drop::Rule::" + dropRules[s.DropKV.Rule]}
	return append([]Constant{rule}, dropConstants(s, output, own)...)
}

// dropRows is the rows of a KV head's window: group x window.
func dropRows(s *specs.Spec) int { return s.DropKV.Window * s.Attention.Group() }

// dropKey names what the kernels over K and V compute.
func dropKey(s *specs.Spec) string {
	key := fmt.Sprintf("d%d p%d", s.Attention.HeadDim, s.Cache.PageSize)
	if s.DropKV.Rule != "keydiff" {
		key += fmt.Sprintf(" w%d g%d", s.DropKV.Window, s.Attention.Group())
	}
	key += fmt.Sprintf(" %s %s", s.Cache.DType, s.DropKV.Rule)
	if s.DropKV.Precision == "fast" {
		key += " fast"
	}
	if s.Attention.LogitSoftcap > 0 {
		key += " cap"
	}
	return key
}

// dropArch is the architecture that a form is compiled for.
func dropArch(form Form, t Target) string {
	if form == Portable {
		return PortableArch
	}
	return t.Arch
}

// dropShared is the shared memory that a block of a form may have, and who has it.
func dropShared(form Form, t Target) (limit int, who string) {
	if form == Portable {
		return portableShared, "a portable kernel"
	}
	return t.SharedPerBlock, t.Arch
}
