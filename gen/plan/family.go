package plan

import (
	"fmt"

	"github.com/kvloom/kvloom/specs"
)

// ForFamily plans one family alone.
func ForFamily(f Family, s *specs.Spec, t Target) FamilyPlan {
	switch f {
	case PageSummary:
		return planPageSummary(s, t)
	case PageScore:
		return planPageScore(s, t)
	case PageSelect:
		return planPageSelect(s, t)
	case KVQuantize:
		return planKVQuantize(s, t)
	case QueryMoment:
		return planQueryMoment(s, t)
	case QueryFactor:
		return planQueryFactor(s, t)
	case PageSelectRerankAttend:
		return planPageSelectRerankAttend(s, t)
	case PageRerankAttend:
		return planPageRerankAttend(s, t)
	case PageRerank:
		return planPageRerank(s, t)
	case PageAttend:
		return planPageAttend(s, t)
	case PageSelectAttend:
		return planPageSelectAttend(s, t)
	case DropObserve:
		return planDropObserve(s, t)
	case DropScore:
		return planDropScore(s, t)
	case DropObserveScore:
		return planDropObserveScore(s, t)
	case DropPool:
		return planDropPool(s, t)
	case DropPoolSelect:
		return planDropPoolSelect(s, t)
	case DropAllot:
		return planDropAllot(s, t)
	case DropSelect:
		return planDropSelect(s, t)
	case DropCompact:
		return planDropCompact(s, t)
	}
	panic(fmt.Sprintf("BUG: plan: no family %q", f))
}
