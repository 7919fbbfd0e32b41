package kernel

import (
	"fmt"

	"github.com/kvloom/kvloom/internal/launch"
	"github.com/kvloom/kvloom/runtime/device"
)

// Bundle is everything that one spec needs at run time on one kind of GPU: code, what was tuned for which workload, and why. Writers
// fill it with plain data; Write and Open move it to and from a file.
type Bundle struct {
	Spec      string      `json:"spec"`      // "llama-3.1-8b"
	SpecHash  string      `json:"spec_hash"` // of the spec's content
	Generator string      `json:"generator"` // version and commit of kvloom
	Compiler  string      `json:"compiler"`  // "NVRTC 13.0 build 65be0db342ad"
	Device    device.Info `json:"device"`    // what it was tuned on
	Model     Model       `json:"model"`
	Kernels   []Kernel    `json:"kernels"`
	Works     []Work      `json:"works"`
	// Crossovers are where selecting pages begins to be faster than dense attention, by batch; empty where that was not measured.
	Crossovers []Crossover `json:"crossovers,omitempty"`
	// Calibrations are of single layers, in the order of the spec's locks.calibration; empty where it has none.
	Calibrations []Calibration `json:"-"`
	Warnings     []string      `json:"warnings"` // of the tuner, for a person: "all candidates of page_select tie"
}

// Calibration is what one layer's page summaries need to know of its queries and keys, as bytes to upload once.
type Calibration struct {
	Weights []byte // of PageSummaryArgs.Weights, all KV heads: WeightBytes; nil where the basis is the plain SVD
	MeanKey []byte // f32 [kv head, dim], of Centre; nil where centroids are not centred
}

// Model holds what the kernels were specialised for, and what callers need to size their memory.
type Model struct {
	QueryHeads   int     `json:"query_heads"` // of the whole model; a tensor-parallel rank has fewer, in the same groups
	KVHeads      int     `json:"kv_heads"`
	HeadDim      int     `json:"head_dim"`
	PageSize     int     `json:"page_size"`             // tokens
	DType        string  `json:"dtype"`                 // bf16, fp16, fp8_e4m3, kivi4, kivi2
	StoreBytes   int     `json:"store_bytes,omitempty"` // of a quantised page and KV head of a KIVI cache; 0: the cache is none
	Rank         int     `json:"rank"`
	BasisBits    int     `json:"basis_bits"`
	Basis        string  `json:"basis,omitempty"` // query_weighted: page_summary reads weights; empty: svd
	Form         string  `json:"form,omitempty"`  // of a record: c4, 4-bit coefficients; m4, 4-bit centroids, which are stored less Centre; s16, basis scales of 16 dims; empty: none
	RecordBytes  int     `json:"record_bytes"`
	Combine      string  `json:"combine"`
	Slots        int     `json:"slots"`                   // k of the paper: pages a list
	Candidates   int     `json:"candidates,omitempty"`    // what page_select proposes a list to an exact rerank: pages, or groups; 0: there is none
	SummaryPages int     `json:"summary_pages,omitempty"` // neighbouring pages, a group, that share a summary; 0: each has its own
	SinkPages    int     `json:"sink_pages"`
	RecentPages  int     `json:"recent_pages"`
	SoftmaxScale float64 `json:"softmax_scale"`
	LogitSoftcap float64 `json:"logit_softcap"` // 0: none

	Drop DropModel `json:"drop"` // zero without DropKV kernels
}

// DropModel is what the DropKV kernels were specialised for.
type DropModel struct {
	Rule      string  `json:"rule"`       // dropkv, snapkv, value_norm, keydiff, streaming
	Window    int     `json:"window"`     // queries
	Pool      string  `json:"pool"`       // max, avg, none
	PoolWidth int     `json:"pool_width"` // tokens
	Precision string  `json:"precision"`  // exact: outputs in f32; fast: in the cache's dtype
	Eps       float64 `json:"eps"`
}

// Queries tells whether the rule looks at the window's queries.
func (d DropModel) Queries() bool {
	return d.Rule == "dropkv" || d.Rule == "snapkv" || d.Rule == "value_norm"
}

// Group is the number of query heads that share a KV head.
func (m Model) Group() int { return m.QueryHeads / m.KVHeads }

// PerHead tells whether a page list belongs to a query head instead of a KV head.
func (m Model) PerHead() bool { return m.Combine == "per_head" }

// Lists is the number of page lists of a request with kvHeads KV heads here.
func (m Model) Lists(kvHeads int) int {
	if m.PerHead() {
		return kvHeads * m.Group()
	}
	return kvHeads
}

// Param is one tuned parameter.
type Param struct {
	Name  string `json:"name"`
	Value int    `json:"value"`
}

// Kernel is one compiled candidate. Cubin and PTX may each be missing, not both.
type Kernel struct {
	Family     string          `json:"family"` // page_score
	Form       string          `json:"form"`   // hopper, portable
	Arch       string          `json:"arch"`   // what the source was compiled for: sm_90a, compute_80
	Key        string          `json:"key"`    // what it was specialised for
	Params     []Param         `json:"params"`
	Geometry   launch.Geometry `json:"geometry"`
	Entry      string          `json:"entry"` // extern "C" name
	SourceHash string          `json:"source_hash"`
	CubinArch  string          `json:"cubin_arch"` // "" without cubin
	Registers  int             `json:"registers"`  // a thread; 0 where unknown
	SpillBytes int             `json:"spill_bytes"`
	Cubin      []byte          `json:"-"`
	PTX        []byte          `json:"-"`
}

// ID names the kernel on one line: "page_score portable warps=8 stages=2".
func (k *Kernel) ID() string {
	s := k.Family + " " + k.Form
	for _, p := range k.Params {
		s += fmt.Sprintf(" %s=%d", p.Name, p.Value)
	}
	return s
}

// The works: the families, and page_attend over all pages, which is tuned apart.
const (
	PageSummary = "page_summary"
	PageScore   = "page_score"
	PageSelect  = "page_select"
	PageAttend  = "page_attend"
	Dense       = "dense"

	DropObserve = "drop_observe"
	DropScore   = "drop_score"
	// DropObserveScore does both, where the spec is fast; see Set.Fuses.
	DropObserveScore = "drop_observe_score"
	DropPool         = "drop_pool"
	DropAllot        = "drop_allot"
	DropSelect       = "drop_select"
	// DropPoolSelect does both, where heads have budgets of their own; see Set.Pools.
	DropPoolSelect = "drop_pool_select"
	DropCompact    = "drop_compact"
)

// Work is what one launch function does, with its kernel for each tuned workload. Kernels are indices into Bundle.Kernels.
type Work struct {
	Name     string  `json:"name"`     // page_score, dense
	Points   []Point `json:"points"`   // tuned; may be empty
	Default  int     `json:"default"`  // where no tuned point is near
	Portable int     `json:"portable"` // for another architecture; its PTX is present; -1: none (Optional)
	// Defaults are what single workloads that were not tuned begin with; empty where that is Default for all of them.
	Defaults []Default `json:"defaults,omitempty"`
}

// Default is an untuned kernel for one workload: what is best for a spec as a whole may not be for each of its workloads.
type Default struct {
	Workload Workload `json:"workload"`
	Kernel   int      `json:"kernel"`
}

// Point is the choice for one workload.
type Point struct {
	Workload Workload `json:"workload"`
	Kernel   int      `json:"kernel"`
	Evidence Evidence `json:"evidence"`
}

// Workload is what a kernel is tuned for.
type Workload struct {
	Context int `json:"context"` // tokens a request
	Batch   int `json:"batch"`   // requests
}

// Evidence is why a kernel was chosen. Times are microseconds with cold L2; Lo and Hi are the 95 % interval of the median.
type Evidence struct {
	MedianUS   float64 `json:"median_us"`
	LoUS       float64 `json:"lo_us"`
	HiUS       float64 `json:"hi_us"`
	Samples    int     `json:"samples"`
	DefaultUS  float64 `json:"default_us"` // median of the default; 0 when it was not measured
	RunnerUp   string  `json:"runner_up"`  // ID of the next best; "" when there is none
	RunnerUpUS float64 `json:"runner_up_us"`
	Tied       int     `json:"tied"`      // right candidates within noise of the best, itself included
	Trials     int     `json:"trials"`    // measured for this point
	MaxError   float64 `json:"max_error"` // against the float64 reference
	Bound      float64 `json:"bound"`     // that the error must keep
}

// work finds a work by name.
func (b *Bundle) work(name string) *Work {
	for i := range b.Works {
		if b.Works[i].Name == name {
			return &b.Works[i]
		}
	}
	return nil
}
