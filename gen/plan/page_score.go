package plan

import (
	"fmt"
	"slices"

	"github.com/kvloom/kvloom/internal/launch"
	"github.com/kvloom/kvloom/specs"
)

// scoreTile is kScoreTile of page_score.cuh: pages that a warp scores at once.
const scoreTile = 16

// scoreParams is one choice of the tuner. Stages 0 reads records straight into registers; otherwise each warp has a ring of so
// many tiles in shared memory, filled by bulk copies (sm_90) or by 16-byte copies of all lanes.
type scoreParams struct {
	form                  Form
	warps, blocks, stages int // warps a block, blocks an SM
	bulk                  bool
}

// scoreChoices, the default of each form first.
var scoreChoices = []scoreParams{
	{Hopper, 4, 3, 0, false},
	{Hopper, 4, 2, 2, false},
	{Hopper, 8, 1, 2, false},
	{Hopper, 4, 3, 2, false},
	{Hopper, 4, 2, 3, false},
	{Hopper, 4, 3, 1, false},
	{Hopper, 8, 1, 3, false},
	{Hopper, 8, 1, 2, true},
	{Hopper, 4, 2, 2, true},
	{Hopper, 4, 2, 3, true},
	{Hopper, 4, 3, 2, true},
	{Hopper, 4, 1, 2, false},
	{Hopper, 2, 1, 2, false},
	{Hopper, 4, 4, 0, false},
	{Hopper, 8, 2, 0, false},
	{Hopper, 4, 2, 0, false},
	{Portable, 4, 3, 0, false},
	{Portable, 4, 4, 0, false},
	{Portable, 4, 2, 0, false},
	{Portable, 8, 2, 0, false},
	{Portable, 4, 2, 2, false},
	{Portable, 4, 1, 2, false},
	{Portable, 4, 3, 1, false},
}

func planPageScore(s *specs.Spec, t Target) FamilyPlan {
	if s.Record().Scorer != "" {
		return planPlainScore(s, t)
	}
	p := FamilyPlan{Family: PageScore, Cost: scoreCost(s)}
	p.Candidates, p.Rejected = planPageScoreImma(s, t)
	pages, refused := planPageScorePages(s, t)
	// Was faster there with the query as columns too: 8.9 and 42.7 us against 9.2 and 47.4 at rank 1.
	if s.Locks.Rank == 1 || s.Locks.Rank == 2 && s.SummaryTokens() > 16 {
		p.Candidates = append(pages, p.Candidates...)
	} else {
		p.Candidates = append(p.Candidates, pages...)
	}
	p.Rejected = append(p.Rejected, refused...)
	integer := p.Candidates
	p.Candidates = nil
	var tight []Candidate // may spill: after those that surely do not, most registers first
	for _, choice := range scoreChoices {
		if choice.form == Hopper && t.Arch != "sm_90a" {
			continue
		}
		c := scoreCandidate(s, t, choice)
		if reason := scoreRefusal(t, choice, c.Geometry.DynamicShared); reason != "" {
			p.Rejected = append(p.Rejected, Rejected{c, reason})
			continue
		}
		switch have := scoreRegistersLeft(choice); {
		case have < scoreRegisters(s):
			p.Rejected = append(p.Rejected, Rejected{c, fmt.Sprintf("about %d registers a thread are live and %d warps x %d blocks an SM leave %d",
				scoreRegisters(s), choice.warps, choice.blocks, have)})
		case have < scoreRegisters(s)+scoreSlack(s, choice):
			tight = append(tight, c)
		default:
			p.Candidates = append(p.Candidates, c)
		}
	}
	slices.SortStableFunc(tight, func(a, b Candidate) int { return a.MinBlocks*a.Geometry.Block - b.MinBlocks*b.Geometry.Block })
	p.Candidates = append(p.Candidates, tight...)
	if scoreDirectFirst(s) {
		p.Candidates = append(p.Candidates, integer...)
	} else {
		p.Candidates = append(integer, p.Candidates...)
	}
	return p
}

// scoreDirectFirst is where 16-bit products were measured to be faster than integer ones, of 512K tokens of 8 KV heads of group 4: 256 us
// against 1061 at rank 16 and pages of 32, 69 against 91 at a basis of 8 bits. Their work grows with the group, that of integers does not.
func scoreDirectFirst(s *specs.Spec) bool {
	return s.Locks.Rank > 8 || s.Locks.BasisBits == 8 && s.Attention.Group() <= 4
}

func scoreCandidate(s *specs.Spec, t Target, choice scoreParams) Candidate {
	a := s.Attention
	c := Candidate{
		Family: PageScore, Form: choice.form, Arch: t.Arch,
		Key: fmt.Sprintf("d%d p%d r%d b%d g%d %s softcap=%t record", a.HeadDim, s.SummaryTokens(), s.Locks.Rank, s.Locks.BasisBits,
			a.Group(), s.Cache.DType, a.LogitSoftcap > 0) + formKey(s),
		Params: []Param{{"warps", choice.warps}, {"blocks", choice.blocks}, {"stages", choice.stages}, {"bulk", boolParam(choice.bulk)}},
		Constants: []Constant{
			{"T", "kvloom::" + s.Cache.RowType()},
			{"HEAD_DIM", fmt.Sprint(a.HeadDim)},
			{"PAGE", fmt.Sprint(s.SummaryTokens())},
			{"RANK", fmt.Sprint(s.Locks.Rank)},
			{"BITS", fmt.Sprint(s.Locks.BasisBits)},
			{"GROUP", fmt.Sprint(a.Group())},
			{"SOFTCAP", fmt.Sprint(a.LogitSoftcap > 0)},
			{"WARPS", fmt.Sprint(choice.warps)},
		},
		Header: "kernels/page_score_direct.cuh", Kernel: "kvloom::page_score_direct", Entry: string(PageScore),
		// Warps take tiles from a list that is sized by the lengths in device memory; any grid is right.
		Geometry: launch.Geometry{
			Grid:  [3]launch.Extent{{Of: []launch.Quantity{launch.SMs}, Times: int64(choice.blocks), Per: 1}, launch.Const(1), launch.Const(1)},
			Block: 32 * choice.warps, Cluster: 1,
		},
		MinBlocks: choice.blocks,
	}
	if choice.form == Portable {
		c.Arch = PortableArch
	}
	if choice.stages > 0 {
		c.Header, c.Kernel = "kernels/page_score_ring.cuh", "kvloom::page_score_lane_ring"
		if choice.bulk {
			c.Kernel = "kvloom::page_score_ring"
		}
		c.Constants = append(c.Constants, Constant{"STAGES", fmt.Sprint(choice.stages)})
		c.Geometry.DynamicShared = choice.warps * choice.stages * ringTileBytes(s)
	}
	c.Constants = append(c.Constants, formConstants(s)...)
	return c
}

// formKey is what a key says of a record's form; nothing of the plain one of a page.
func formKey(s *specs.Spec) (key string) {
	if form := s.Record().Form; !form.Plain() {
		key = " " + form.String()
	}
	return key + groupKey(s)
}

// groupKey is what a key says of the pages that share a summary; nothing where each has its own.
func groupKey(s *specs.Spec) string {
	if s.SummaryPages() == 1 {
		return ""
	}
	return fmt.Sprintf(" groups of %d", s.SummaryPages())
}

// formConstants is a template's last argument, the record's form; none for the plain one of a page, its default.
func formConstants(s *specs.Spec) []Constant {
	form := s.Record().Form
	if form.Plain() && s.SummaryPages() == 1 {
		return nil
	}
	if pages := s.SummaryPages(); pages > 1 {
		return []Constant{{"FORM", fmt.Sprintf("kvloom::RecordForm<%d, %d, %t, %d>", form.CoefficientBits(), form.CentroidBits(), form.Grouped, pages)}}
	}
	return []Constant{{"FORM", fmt.Sprintf("kvloom::RecordForm<%d, %d, %t>", form.CoefficientBits(), form.CentroidBits(), form.Grouped)}}
}

func boolParam(b bool) int {
	if b {
		return 1
	}
	return 0
}

// ringTileBytes is RingTile::kBytes of page_score_ring.cuh: a tile's records, spaced so that their rows fall into different banks.
func ringTileBytes(s *specs.Spec) int {
	r := s.Record()
	skew := 16
	if r.QuarterBytes <= 16 {
		skew = 4 * r.QuarterBytes
	}
	return scoreTile * (r.Bytes + ((skew-r.Bytes)%128+128)%128)
}

// scoreRefusal says why a choice cannot run.
func scoreRefusal(t Target, choice scoreParams, dynamic int) string {
	static := (48 + 8) * choice.warps * choice.stages // entries and barriers
	if dynamic+static > t.SharedPerBlock {
		return fmt.Sprintf("rings of %d warps x %d stages need %d B of shared memory a block, %s has %d B",
			choice.warps, choice.stages, dynamic+static, t.Arch, t.SharedPerBlock)
	}
	// A block takes 1 KB beside its own; an SM has 1 KB more than a block may ask for.
	if sm := t.SharedPerBlock + 1<<10; choice.blocks*(dynamic+static+(1<<10)) > sm {
		return fmt.Sprintf("%d blocks of %d B of shared memory do not fit the %d B of an SM together", choice.blocks, dynamic+static, sm)
	}
	return ""
}

// scoreRegistersLeft is what a choice's blocks leave to a thread.
func scoreRegistersLeft(choice scoreParams) int {
	return min(65536/(32*choice.warps*choice.blocks)/8*8, 255)
}

// scoreRegisters is a lower estimate of the values that a lane holds at once: the query's fragments and the dot products of
// ScoreShape (page_score.cuh). What the compiler reports is the truth, and the tuner keeps it.
func scoreRegisters(s *specs.Spec) int {
	tiles, steps := scoreTiles(s)
	query := 2 * steps * tiles
	products := 4 * (s.Locks.Rank + 1) * tiles
	return 40 + query + products
}

// scoreSlack is what the compiler was seen to take beyond scoreRegisters before it spilled: loads in flight and a chunk of tokens.
func scoreSlack(s *specs.Spec, choice scoreParams) int {
	tiles, _ := scoreTiles(s)
	scaled := 2 * s.Locks.Rank * tiles // dot products of one page, scaled
	if choice.stages > 0 {
		return 40 + scaled
	}
	row := max(s.Record().QuarterBytes, s.Attention.HeadDim/4) / 4
	return 40 + scaled + 2*row
}

// scoreTiles is kTiles of ScoreShape, n tiles of 8 query heads that share the unpacking of codes, and its k steps.
func scoreTiles(s *specs.Spec) (tiles, steps int) {
	group := map[int]int{2: 16, 4: 8, 8: 4, 16: 4}[s.Locks.BasisBits] // dims that are unpacked together
	steps = (s.Attention.HeadDim/4 + group - 1) / group * group / 4
	if (s.Attention.Group()+7)/8%2 == 0 && (s.Locks.Rank+1)*8+steps*4 <= 112 {
		return 2, steps
	}
	return 1, steps
}

func scoreCost(s *specs.Spec) Cost {
	a := s.Attention
	payload := int64(s.Record().PayloadBytes())
	return func(w specs.Workload) Work {
		batch, kv, q := int64(w.Batch), int64(a.KVHeads), int64(a.QueryHeads)
		complete, tail := int64(w.Context/s.SummaryTokens()), int64(w.Context%s.SummaryTokens())
		pages := complete
		if tail > 0 {
			pages++
		}
		d, r, page := int64(a.HeadDim), int64(s.Locks.Rank), int64(s.SummaryTokens())
		return Work{
			Bytes: batch * (kv*complete*payload + kv*tail*d*2 + q*d*2 + q*pages*4 + pages*4 + 4),
			// V^T q, mu^T q, C times that, and the token's scale.
			Flops:       batch * q * (complete*(2*d*(r+1)+page*(2*r+1)) + 2*d*tail),
			Exponential: batch * q * (complete*page + tail),
		}
	}
}
