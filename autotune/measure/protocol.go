package measure

import (
	"github.com/kvloom/kvloom/autotune/store"
	"github.com/kvloom/kvloom/gen/plan"
	"github.com/kvloom/kvloom/runtime/device"
	"github.com/kvloom/kvloom/specs"
)

// Work names what is timed: a family's stem, or page_attend over all pages.
type Work string

// Dense is page_attend over all pages, the kernel that sparse decoding is compared with.
const Dense Work = "dense"

// Family is the kernel family that does the work.
func (w Work) Family() plan.Family {
	if w == Dense {
		return plan.PageAttend
	}
	return plan.Family(w)
}

// Works are what tune measures, in the order of a decode step, then of eviction after a prompt. A spec has no use for some of the
// latter: plan.Plan.Has.
var Works = []Work{Work(plan.PageSummary), Work(plan.PageScore), Work(plan.PageSelect), Work(plan.PageAttend), Dense, Work(plan.PageSelectAttend), Work(plan.PageRerank), Work(plan.PageRerankAttend), Work(plan.PageSelectRerankAttend),
	Work(plan.KVQuantize), Work(plan.QueryMoment), Work(plan.QueryFactor),
	Work(plan.DropObserve), Work(plan.DropScore), Work(plan.DropObserveScore), Work(plan.DropPool), Work(plan.DropAllot), Work(plan.DropSelect),
	Work(plan.DropPoolSelect), Work(plan.DropCompact)}

// Request asks the measuring child for one trial. It is one line of JSON on the child's standard input.
type Request struct {
	Spec      specs.Spec     `json:"spec"`
	Work      Work           `json:"work"`
	Workload  specs.Workload `json:"workload"`
	Candidate plan.Candidate `json:"candidate"`
	Image     []byte         `json:"image"`      // cubin or PTX
	BestUS    float64        `json:"best_us"`    // 0: none yet; a candidate over 3 times this is cut
	CheckSeed uint64         `json:"check_seed"` // fresh inputs for the check
	SkipCheck bool           `json:"skip_check"` // code that was checked already
	CheckOnly bool           `json:"check_only"` // no timing
	Siblings  int            `json:"siblings"`   // idle children of the same tuner on the GPU, which are no strangers
	Warm      bool           `json:"warm"`       // one set of buffers, so that the L2 holds it where it fits
	Thorough  bool           `json:"thorough"`   // instead of timing: every case of the check, before a leader may be chosen
	Samples   int            `json:"samples"`    // exactly so many samples; 0: until the interval is tight
	Precision float64        `json:"precision"`  // tight is within this share of the median; 0: as Usual has it
}

// Response is the child's answer, one line of JSON on its standard output. The first line after its start is a Hello.
type Response struct {
	Class    string    `json:"class"` // store.Class
	Message  string    `json:"message"`
	MaxError float64   `json:"max_error"`
	Bound    float64   `json:"bound"`
	Samples  []float64 `json:"samples"` // microseconds

	Conditions store.Conditions `json:"conditions"`
}

// Hello introduces the child.
type Hello struct {
	Info  device.Info `json:"info"`
	Error string      `json:"error"`
}
