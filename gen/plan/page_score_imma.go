package plan

import (
	"fmt"

	"github.com/kvloom/kvloom/internal/launch"
	"github.com/kvloom/kvloom/specs"
)

// immaTile is kImmaTile of page_score_imma.cuh: pages of a tile.
const immaTile = 8

// immaRing is how many bytes a ring of two tiles for each group of warps may take.
const immaRing = 128 << 10

// immaRowFloats is ImmaShape::kRowFloats: a query head's row of scores on its way out.
const immaRowFloats = 40

// immaChoice is one choice of the tuner for page_score_imma.
type immaChoice struct {
	heads    int  // kv heads that are copied together
	warps    int  // that compute, in a block
	split    int  // warps that share a tile of one kv head
	stages   int  // tiles in the block's ring
	blocks   int  // an SM
	run      int  // tiles in a row that a block takes; 4: their scores leave as whole lines
	together int  // products of 16 columns of V that a warp has in flight
	ones     bool // tokens are summed by a product with ones
	pad      bool // pages meet different banks, at the price of slower copies
	hint     bool // records leave L2 first
	fill     int  // warps that fill the ring
}

// immaFirst are the guesses that come first, the default before all, for 8 kv heads of rank 4. Stages count what a tile of those takes
// (31 KiB); for smaller tiles a ring of the same bytes has more.
var immaFirst = []immaChoice{
	{8, 8, 1, 3, 1, 1, 1, true, false, true, 1},
	{8, 8, 1, 3, 1, 1, 4, true, false, true, 1},
	{8, 8, 1, 3, 1, 1, 1, false, false, true, 1},
	{8, 8, 1, 3, 1, 1, 1, true, false, true, 2},
	{8, 12, 1, 3, 1, 1, 1, true, false, true, 1},
}

// immaShares are the ways to share a block's work: kv heads copied together (as parts of the most), warps, warps to a tile, rings, blocks
// an SM.
var immaShares = []struct {
	part, warps, split int
	stages             []int
	blocks             int
}{
	{1, 8, 1, []int{2, 3, 4, 5, 6, 7}, 1},
	{1, 12, 1, []int{3, 4}, 1},
	{1, 16, 1, []int{4, 6}, 1},
	{1, 16, 2, []int{2, 3, 4, 5}, 1},
	{1, 4, 1, []int{2, 3}, 2},
	{2, 4, 1, []int{2, 3}, 2},
	{2, 8, 1, []int{2, 3, 4}, 1},
	{2, 12, 1, []int{3}, 1},
	{2, 16, 1, []int{4}, 1},
}

// immaChoices are all choices for a spec, the first guesses first and the others by how far they are from the default.
func immaChoices(s *specs.Spec) []immaChoice {
	most := immaHeads(s)
	var list []immaChoice
	if s.Attention.Group() > 8 && s.Locks.Rank == 4 && most <= 2 && s.Cache.DType != "fp16" { // arithmetic bounds it: a third warp a scheduler fills waits
		list = append(list, immaChoice{most, 12, 1, 3, 1, 1, 1, true, false, true, 3})
	}
	for _, c := range immaFirst {
		c.heads = most
		if most <= 4 { // many small tiles: one warp does not fill the ring fast enough
			c.fill = 3 - c.fill
		}
		if most <= 4 && 4*immaTileBytes(s, c) > immaRing { // few large ones: two warps share a tile
			c.split = 2
		}
		list = append(list, c)
	}
	var byDistance [16][]immaChoice // from the default
	for _, at := range immaShares {
		for _, stages := range at.stages {
			ways := 48
			if most <= 4 {
				ways = 64 // three warps that fill
			}
			for bits := range ways {
				c := immaChoice{max(most/at.part, 1), at.warps, at.split, stages, at.blocks, 1, 1, bits&1 == 0, bits&2 != 0, true, max(bits/16, 1)}
				if bits&4 != 0 {
					c.run = 4
				}
				if bits&8 != 0 {
					c.together = 4
				}
				if bits < 32 {
					c.hint = bits&16 == 0 // with one warp that fills
				}
				n := c.from(list[0])
				byDistance[n] = append(byDistance[n], c)
			}
		}
	}
	for _, choices := range byDistance {
		list = append(list, choices...)
	}
	return list
}

// from is in how many ways a choice differs from another.
func (c immaChoice) from(o immaChoice) (n int) {
	for _, differs := range []bool{c.heads != o.heads, c.warps != o.warps, c.split != o.split, c.stages != o.stages, c.blocks != o.blocks,
		c.run != o.run, c.together != o.together, c.ones != o.ones, c.pad != o.pad, c.hint != o.hint, c.fill != o.fill} {
		if differs {
			n++
		}
	}
	return n
}

// immaPasses are ImmaShape::kPasses: units of at most 16 query heads of a kv head, each with its own warps.
func immaPasses(s *specs.Spec) int { return (s.Attention.Group() + 15) / 16 }

// immaPassHeads are ImmaShape::kPassHeads.
func immaPassHeads(s *specs.Spec) int {
	return (s.Attention.Group() + immaPasses(s) - 1) / immaPasses(s)
}

// immaHeads is how many kv heads are copied together: the most that divide them evenly, have at most 8 units among them, and leave room
// for two tiles and more. A kernel is right for any number of kv heads.
func immaHeads(s *specs.Spec) int {
	for n := min(8/immaPasses(s), s.Attention.KVHeads); n > 1; n-- {
		if s.Attention.KVHeads%n == 0 && immaTile*n*scoreRecord(s).Bytes <= 64<<10 {
			return n
		}
	}
	return 1
}

func scoreRecord(s *specs.Spec) specs.Record { return s.Record() }

// immaRefusal says why a spec has no integer form; empty where it has one.
func immaRefusal(s *specs.Spec) string {
	a, l := s.Attention, s.Locks
	rows := a.Group() > 4 // the query is the rows of the product, not its columns
	switch {
	case !s.Record().Form.Plain():
		return "integer tensor cores: scales of 16 dims and 4-bit coefficients and centroids are read as f16, by the form with pages as rows"
	case l.BasisBits > 8:
		return fmt.Sprintf("integer tensor cores: a product takes bytes, not values of %d bits", l.BasisBits)
	case l.Rank&(l.Rank-1) != 0, rows && l.Rank != 4 && l.Rank != 8:
		return fmt.Sprintf("integer tensor cores: a k step does not hold whole pages of rank %d", l.Rank)
	case s.SummaryTokens() < 16 && (rows || l.Rank == 1):
		return fmt.Sprintf("integer tensor cores: codes of %d query heads and rank %d are laid out for pages of 16 tokens and more, not %d",
			a.Group(), l.Rank, s.SummaryTokens())
	case a.LogitSoftcap > 0:
		return "integer tensor cores: a cap bends each logit before the centroid's part can be taken out of the sum"
	}
	return ""
}

// planPageScoreImma is the candidates of page_score_imma, best guess first. A spec that has no integer form yields one rejection.
func planPageScoreImma(s *specs.Spec, t Target) (candidates []Candidate, rejected []Rejected) {
	if t.Arch != "sm_90a" {
		return nil, nil
	}
	if reason := immaRefusal(s); reason != "" {
		first := immaFirst[0]
		first.heads = immaHeads(s)
		return nil, []Rejected{{immaCandidate(s, t, immaFit(s, first)), reason}}
	}
	seen, refused := map[immaChoice]bool{}, map[immaChoice]bool{}
	for _, choice := range immaChoices(s) {
		choice = immaFit(s, choice)
		if seen[choice] {
			continue
		}
		seen[choice] = true
		c := immaCandidate(s, t, choice)
		reason := immaMisfit(s, t, choice, c.Geometry, immaRegisters(s, choice), immaExchange(s, choice))
		if reason == "" {
			candidates = append(candidates, c)
			continue
		}
		choice.together, choice.ones, choice.pad, choice.hint, choice.fill = 0, false, false, false, 0 // what matters little
		if !refused[choice] {
			rejected = append(rejected, Rejected{c, reason})
		}
		refused[choice] = true
	}
	return candidates, rejected
}

// immaMisfit says why a choice cannot run on the target, registers being what a thread has live and exchange the bytes that warps or lanes
// exchange.
func immaMisfit(s *specs.Spec, t Target, choice immaChoice, g launch.Geometry, registers, exchange int) string {
	// Entries and barriers, vectors, counters, parts of masses; single words and what alignment takes.
	static := (16+16)*choice.stages + 320*choice.fill + (8+4*choice.heads*immaPasses(s))*choice.slots() +
		8*choice.warps*immaPassHeads(s) + 128 + exchange
	if static > staticShared {
		return fmt.Sprintf("%d B that %d warps exchange and rings of %d tiles need are more than the %d B of static shared memory", static, choice.warps, choice.stages, staticShared)
	}
	shared := g.DynamicShared + static
	if shared > t.SharedPerBlock {
		return fmt.Sprintf("a ring of %d tiles needs %d B of shared memory, %s has %d B a block", choice.stages, shared, t.Arch, t.SharedPerBlock)
	}
	// A block takes 1 KB beside its own; an SM has 1 KB more than a block may ask for.
	if sm := t.SharedPerBlock + 1<<10; choice.blocks*(shared+1<<10) > sm {
		return fmt.Sprintf("%d blocks of %d B of shared memory do not fit the %d B of an SM together", choice.blocks, shared, sm)
	}
	if reason := immaOutrun(s, choice); reason != "" {
		return reason
	}
	// Each of the 4 partitions of an SM holds whole warps.
	if have := min(65536/((g.Block+127)/128*128*choice.blocks)/8*8, 255); have < registers {
		return fmt.Sprintf("about %d registers a thread are live and %d threads leave %d", registers, g.Block*choice.blocks, have)
	}
	return ""
}

// immaOutrun refuses rings whose filling warps could lap their readers. Readers form groups that take tiles in turn, and a warp that fills
// every fill-th tile waits for the parity of its stage alone, which is the same two rounds ago: it must know by then that what was in the
// stage two rounds ago is read. What its own earlier tiles told it of the same group is enough if the least common multiple of fill and
// groups is within the ring. (A ring of three tiles that four warps filled ended in a launch failure on an H200.)
func immaOutrun(s *specs.Spec, choice immaChoice) string {
	groups := choice.warps / (choice.heads * immaPasses(s) * max(choice.split, 1))
	common := choice.fill
	for common%groups != 0 {
		common += choice.fill
	}
	if common <= choice.stages {
		return ""
	}
	return fmt.Sprintf("%d warps that fill a ring of %d tiles for %d groups of readers in turn could overwrite a tile that is still read", choice.fill, choice.stages, groups)
}

// immaFit turns a choice for tiles of 8 kv heads of rank 4 into one for this spec's: the warps a multiple of the heads, and about as
// many bytes in the ring, two stages at least for each group of warps. What changes nothing is brought to one value.
func immaFit(s *specs.Spec, choice immaChoice) immaChoice {
	wanted := choice.stages * 32 << 10
	if s.Locks.Rank <= 2 {
		choice.split = 1 // the pages of a tile fill one product
	}
	choice.ones = choice.ones || s.Locks.Rank == 16 // where lanes share the tokens of a page otherwise
	units := choice.heads * immaPasses(s) * choice.split
	choice.warps = max(choice.warps/units, 1) * units
	groups := choice.warps / units
	for groups > 1 && 2*groups*immaTileBytes(s, choice) > immaRing {
		groups--
	}
	choice.warps = groups * units
	choice.stages = max(wanted/immaTileBytes(s, choice)/groups*groups, 2*groups) // a stage belongs to one group for good
	choice.together = max(min(choice.together, immaProducts(s)/choice.split), 1)
	choice.pad = choice.pad || choice.heads*scoreRecord(s).Bytes%128 != 0
	return choice
}

// immaProducts is how many products the columns of a tile make: of 16 columns as rows, of 8 as columns of the product.
func immaProducts(s *specs.Spec) int {
	if s.Attention.Group() <= 4 {
		return immaTile * s.Locks.Rank / 16
	}
	return immaTile * s.Locks.Rank / 8
}

// slots are ImmaShape::kSlots.
func (c immaChoice) slots() int {
	if c.run == 1 {
		return 0
	}
	return max(c.stages/c.run+1, 2)
}

// immaTileBytes is ImmaShape::kStageBytes.
func immaTileBytes(s *specs.Spec, choice immaChoice) int {
	n := choice.heads * scoreRecord(s).Bytes
	if n%128 == 0 && !choice.pad {
		return immaTile * n
	}
	return immaTile * ((n+31)/64*64 + 32)
}

// immaExchange is the size of ImmaRows::Exchange for all units of a block, where several warps share a unit.
func immaExchange(s *specs.Spec, choice immaChoice) int {
	units := choice.heads * immaPasses(s)
	if s.Attention.Group() <= 4 || choice.warps == units {
		return 0
	}
	parts, words := 2, (s.Attention.HeadDim+63)/64*4
	if s.Cache.DType == "fp16" {
		parts = 3
	}
	sets := (immaPassHeads(s) + 7) / 8
	return units * sets * (parts*words*128 + 64)
}

// immaRegisters is what a consumer was seen to do with: without spilling, or with spills outside of the loop over tiles alone.
func immaRegisters(s *specs.Spec, choice immaChoice) int {
	words := (s.Attention.HeadDim + 63) / 64 * 2
	switch group := s.Attention.Group() / immaPasses(s); {
	case group <= 4 && s.Cache.DType == "fp16": // a third byte of the query
		return 80 + 8*words
	case group <= 4:
		return 80 + 4*words
	case group <= 8:
		return 64 + 8*words
	default:
		return 48 + 12*words
	}
}

func immaCandidate(s *specs.Spec, t Target, choice immaChoice) Candidate {
	c := scoreCandidate(s, t, scoreParams{form: Hopper, warps: choice.warps, blocks: choice.blocks})
	c.Constants = c.Constants[:len(c.Constants)-len(formConstants(s))]
	c.Params = []Param{{"imma", 1}, {"heads", choice.heads}, {"warps", choice.warps}, {"split", choice.split}, {"stages", choice.stages},
		{"blocks", choice.blocks}, {"run", choice.run}, {"together", choice.together}, {"ones", boolParam(choice.ones)},
		{"pad", boolParam(choice.pad)}, {"hint", boolParam(choice.hint)}, {"fill", choice.fill}}
	c.Header, c.Kernel = "kernels/page_score_imma.cuh", "kvloom::page_score_imma"
	c.Constants = append(c.Constants[:len(c.Constants)-1], // all but WARPS
		Constant{"HEADS", fmt.Sprint(choice.heads)}, Constant{"CONSUMERS", fmt.Sprint(choice.warps)}, Constant{"STAGES", fmt.Sprint(choice.stages)},
		Constant{"RUN", fmt.Sprint(choice.run)}, Constant{"SPLIT", fmt.Sprint(choice.split)}, Constant{"TOGETHER", fmt.Sprint(choice.together)},
		Constant{"ONES", fmt.Sprint(choice.ones)}, Constant{"PAD", fmt.Sprint(choice.pad)}, Constant{"HINT", fmt.Sprint(choice.hint)},
		Constant{"PRODUCERS", fmt.Sprint(choice.fill)})
	if s.SummaryPages() > 1 {
		c.Constants = append(c.Constants, formConstants(s)...)
	}
	c.Geometry = launch.Geometry{
		Grid:  [3]launch.Extent{{Of: []launch.Quantity{launch.SMs}, Times: int64(choice.blocks), Per: 1}, launch.Const(1), launch.Const(1)},
		Block: 32 * (choice.warps + choice.fill + 1), Cluster: 1,
		DynamicShared: choice.stages*immaTileBytes(s, choice) + choice.slots()*choice.heads*immaPasses(s)*immaPassHeads(s)*immaRowFloats*4,
	}
	return c
}
