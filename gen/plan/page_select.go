package plan

import "github.com/kvloom/kvloom/specs"

func planPageSelect(s *specs.Spec, t Target) FamilyPlan {
	panic("BUG: not written yet")
}
