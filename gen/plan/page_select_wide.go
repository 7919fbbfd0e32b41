package plan

import (
	"fmt"

	"github.com/kvloom/kvloom/internal/launch"
	"github.com/kvloom/kvloom/specs"
)

// selectWideShape is one choice of page_select_wide: a block takes threads * pages pages of a row.
type selectWideShape struct {
	threads, pages int
}

var selectWideShapes = []selectWideShape{{512, 2}, {512, 4}, {512, 1}, {512, 8}}

const (
	selectWideBlocks     = 128   // select::kMostBlocks
	selectWideCandidates = 12288 // select::kWideCandidates
	// selectPolls is how often a block looks for the masses of the others, each look a trip to L2: some 0.2 ms in all.
	selectPolls = 256
	// selectBeside is how many pages a block is reckoned to pass on beyond those that a list takes.
	selectBeside = 48
)

// selectWide are the candidates of page_select_wide, and those that cannot be, with the reason.
func selectWide(s *specs.Spec, t Target) (candidates []Candidate, rejected []Rejected) {
	if t.Arch != "sm_90a" {
		return nil, nil
	}
	for _, shape := range selectWideShapes {
		c := selectCandidate(s, t, selectShape{Hopper, shape.threads, 1})
		pages := int64(shape.threads * shape.pages)
		c.Params = []Param{{"threads", shape.threads}, {"pages", shape.pages}, {"wide", 1}}
		c.Constants = append(c.Constants, Constant{"kPages", fmt.Sprint(shape.pages)}, Constant{"kPolls", fmt.Sprint(selectPolls)})
		c.Header, c.Kernel = "kernels/page_select_wide.cuh", "kvloom::page_select_wide"
		c.Geometry.Grid = [3]launch.Extent{{Of: []launch.Quantity{launch.MaxPages}, Times: 1, Per: pages}, launch.Each(launch.Lists), launch.Each(launch.Batch)}
		c.Geometry.DynamicShared = max(c.Geometry.DynamicShared, selectWideShared(headsPerList(s), shape))
		// A record a block: a list has as many as hold max_pages, rounded up.
		record := 256 + 8*pages
		c.Geometry.Workspace = append(c.Geometry.Workspace,
			launch.Extent{Of: []launch.Quantity{launch.Batch, launch.Lists, launch.MaxPages}, Times: record, Per: pages},
			launch.Extent{Of: []launch.Quantity{launch.Batch, launch.Lists}, Times: record, Per: 1})
		if reason := selectWideRefusal(s, t, shape, c.Geometry.DynamicShared); reason != "" {
			rejected = append(rejected, Rejected{c, reason})
			continue
		}
		candidates = append(candidates, c)
	}
	return candidates, rejected
}

// selectWideShared is the size of select::WideShared.
func selectWideShared(heads int, shape selectWideShape) int {
	width, warps := padded(heads), shape.threads/32
	n := 4*256 + 4*width*(warps+selectWideBlocks) + 8*selectWideCandidates + 2*4*selectWideCandidates/32 + 2*4*selectWideBlocks +
		4*512 + 2*4*warps + 2*4 + 12
	return (n + 15) / 16 * 16
}

func selectWideRefusal(s *specs.Spec, t Target, shape selectWideShape, dynamic int) string {
	heads, row := headsPerList(s), longestRow(s)
	blocks := (row + shape.threads*shape.pages - 1) / (shape.threads * shape.pages)
	switch {
	case s.Locks.Combine != "share_average":
		return fmt.Sprintf("%s: the wide form ranks averages of shares alone", s.Locks.Combine)
	case heads > selectMostHeads || heads*shape.pages > 48:
		return fmt.Sprintf("%d pages of %d heads a thread do not fit its registers", shape.pages, heads)
	case blocks < 2:
		return fmt.Sprintf("a block holds the longest row of %d pages: there is nothing to share out", row)
	case blocks > selectWideBlocks:
		return fmt.Sprintf("%d blocks for the longest row, %d pages: the wide form exchanges masses of at most %d", blocks, row, selectWideBlocks)
	case blocks*(s.Slots()+selectBeside) > selectWideCandidates:
		return fmt.Sprintf("%d blocks that each pass on some %d pages: the block that finishes holds %d", blocks, s.Slots()+selectBeside, selectWideCandidates)
	}
	return selectRefusal(s, t, selectShape{Hopper, shape.threads, 1}, dynamic)
}
