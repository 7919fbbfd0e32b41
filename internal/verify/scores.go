package verify

import (
	"math"
	"math/rand/v2"

	"github.com/kvloom/kvloom/internal/reference"
	"github.com/kvloom/kvloom/specs"
)

// ScoreCase is one input of page_select: scores as such, whatever made them.
type ScoreCase struct {
	Name, Reason string
	KVHeads      int
	Pages        []int   // live pages of each request at the first launch
	Replays      [][]int // and at further launches of the captured graph
	Slots        int     // 0: the spec's own
	Spare        int     // columns beyond the longest row; what they hold is stale and large
	Padded       bool    // rows with gaps
	Fill         func(r *rand.Rand, head int, row []float32)
	Long         bool
}

var (
	inf32 = float32(math.Inf(1))
	nan32 = float32(math.NaN())
)

// normalScores are what pages of a context look like, a few nats apart.
func normalScores(r *rand.Rand, _ int, row []float32) {
	for j := range row {
		row[j] = float32(4 * r.NormFloat64())
	}
}

// each fills a row from a function of the page.
func each(f func(r *rand.Rand, head, page, pages int) float32) func(*rand.Rand, int, []float32) {
	return func(r *rand.Rand, head int, row []float32) {
		for j := range row {
			row[j] = f(r, head, j, len(row))
		}
	}
}

// ScoreCases are the inputs of page_select: the contract's corners and the faults of other projects.
func ScoreCases(o Options) []ScoreCase {
	cases := []ScoreCase{
		{Name: "random", Reason: "the plain case; rows with gaps", KVHeads: 2, Pages: []int{300, 33}, Slots: 32, Spare: 5, Padded: true, Fill: normalScores},
		{Name: "spec slots", Reason: "the spec's own budget, twice as many pages and fewer", KVHeads: 2, Pages: []int{700, 20}, Fill: normalScores},
		{Name: "all equal", Reason: "k = 8 of 64 (T1, T7): ties go low", KVHeads: 1, Pages: []int{64}, Slots: 8, Fill: each(func(*rand.Rand, int, int, int) float32 { return 0 })},
		{Name: "steps", Reason: "(i%32)/32: every value many times (T1)", KVHeads: 1, Pages: []int{2048}, Slots: 100, Fill: steps},
		{Name: "one coarse bucket", Reason: "4139 candidates beside each other (T2)", KVHeads: 1, Pages: []int{6000}, Slots: 128, Fill: each(oneBucket)},
		{Name: "underflow", Reason: "most pages 88 nats and more below the best (T3)", KVHeads: 1, Pages: []int{8193}, Slots: 128, Fill: each(underflow)},
		{Name: "below the smallest share", Reason: "shares around 2^-100 count as 0, ties low", KVHeads: 1, Pages: []int{200}, Slots: 40, Fill: each(smallShares)},
		{Name: "mixed rows", Reason: "short and long rows in one batch (T5)", KVHeads: 2, Pages: []int{4, 5000, 0, 700}, Slots: 64, Fill: normalScores},
		{Name: "no pages", Reason: "seq_len 0: count 0, all -1 (T9)", KVHeads: 2, Pages: []int{0, 1, 0}, Slots: 16, Spare: 7, Fill: normalScores},
		{Name: "fewer pages than slots", Reason: "length 249 with k 2048 (T9)", KVHeads: 1, Pages: []int{249}, Slots: 2048, Fill: normalScores},
		{Name: "as many as slots", Reason: "the boundary on either side", KVHeads: 1, Pages: []int{31, 32, 33}, Slots: 32, Fill: normalScores},
		{Name: "fewer finite than slots", Reason: "the rest are -inf, and still pages (T9)", KVHeads: 1, Pages: []int{500}, Slots: 64, Fill: each(fewFinite)},
		{Name: "all NaN", Reason: "a defined choice, no hang (T8)", KVHeads: 1, Pages: []int{300}, Slots: 16, Fill: each(func(*rand.Rand, int, int, int) float32 { return nan32 })},
		{Name: "all -inf", Reason: "a defined choice, no hang (T8)", KVHeads: 1, Pages: []int{300}, Slots: 16, Fill: each(func(*rand.Rand, int, int, int) float32 { return -inf32 })},
		{Name: "+inf among finite", Reason: "shares 1 equally (T8)", KVHeads: 1, Pages: []int{300}, Slots: 16, Fill: each(someInfinite)},
		{Name: "NaN among finite", Reason: "left out of the normaliser, below -inf (T8)", KVHeads: 2, Pages: []int{300}, Slots: 290, Fill: each(someNaN)},
		{Name: "one head all NaN", Reason: "a head with no finite page contributes 0", KVHeads: 2, Pages: []int{300}, Slots: 20, Fill: oneHeadNaN},
		{Name: "sink is worst", Reason: "sink and recent are kept whatever they score (T10)", KVHeads: 1, Pages: []int{400}, Slots: 12, Fill: each(sinkWorst)},
		{Name: "sink is best", Reason: "sink and recent take part in the normaliser", KVHeads: 1, Pages: []int{400}, Slots: 12, Fill: each(sinkBest)},
		{Name: "huge scores", Reason: "s around 3e4: only differences matter", KVHeads: 1, Pages: []int{400}, Slots: 40, Fill: each(func(r *rand.Rand, _, _, _ int) float32 { return 3e4 + float32(8*r.NormFloat64()) })},
		{Name: "replayed at other lengths", Reason: "G2", KVHeads: 2, Pages: []int{100, 40}, Replays: [][]int{{700, 0}, {1, 33}, {100, 40}}, Slots: 24, Fill: normalScores},
		{Name: "fewer live requests", Reason: "captured at batch 8, replayed with 3 (G1)", KVHeads: 1, Pages: []int{9, 8, 7, 60, 50, 40, 3, 2}, Replays: [][]int{{50, 0, 9, 0, 0, 0, 1, 0}, make([]int, 8)}, Slots: 8, Fill: normalScores},

		{Name: "steps of 65536", Reason: "k 1024 (T1)", KVHeads: 1, Pages: []int{65536}, Slots: 1024, Fill: steps, Long: true},
		{Name: "256K columns", Reason: "64 rows, k 2048 (T4)", KVHeads: 8, Pages: []int{262144}, Slots: 2048, Fill: normalScores, Long: true},
		{Name: "long beside short rows", Reason: "4-8K beside 131072 (T5)", KVHeads: 2, Pages: []int{4096, 131072, 8191, 0}, Slots: 128, Fill: normalScores, Long: true},
	}
	kept := cases[:0]
	for _, c := range cases {
		if o.Wants(c.Name) && (o.Full() || !c.Long) {
			kept = append(kept, c)
		}
	}
	return kept
}

func steps(_ *rand.Rand, _ int, row []float32) {
	for i := range row {
		row[i] = float32(i%32) / 32
	}
}

func oneBucket(r *rand.Rand, _, page, _ int) float32 {
	if page < 4139 {
		return 1 + float32(r.Float64()*1e-3)
	}
	return -10
}

func underflow(r *rand.Rand, _, page, _ int) float32 {
	if page == 77 {
		return 100
	}
	return float32(-r.Float64() * 30)
}

func smallShares(r *rand.Rand, _, page, _ int) float32 {
	if page == 100 {
		return 0
	}
	return float32(-100*math.Ln2 + 4*r.NormFloat64())
}

func fewFinite(r *rand.Rand, _, page, _ int) float32 {
	if page%50 == 7 {
		return float32(r.NormFloat64())
	}
	return -inf32
}

func someInfinite(r *rand.Rand, head, page, _ int) float32 {
	if page%40 == 11 && (page+head)%3 > 0 {
		return inf32
	}
	return float32(r.NormFloat64())
}

func someNaN(r *rand.Rand, head, page, _ int) float32 {
	switch {
	case page%10 == 3: // for every head
		return nan32
	case page%10 == 6:
		return -inf32
	case (page+head)%13 == 5: // for some heads
		return nan32
	}
	return float32(4 * r.NormFloat64())
}

func oneHeadNaN(r *rand.Rand, head int, row []float32) {
	normalScores(r, head, row)
	for j := range row {
		if head == 0 {
			row[j] = nan32
		}
	}
}

func sinkWorst(r *rand.Rand, _, page, pages int) float32 {
	if page == 0 || page == pages-1 {
		return -60
	}
	return float32(r.NormFloat64())
}

func sinkBest(r *rand.Rand, _, page, pages int) float32 {
	if page == 0 || page == pages-1 {
		return 40
	}
	return float32(r.NormFloat64())
}

// ScoreProblem is a score case with its data.
type ScoreProblem struct {
	Case     ScoreCase
	Spec     *specs.Spec
	Rule     reference.Combine
	Budget   reference.Budget
	Group    int
	QHeads   int
	Lists    int
	MaxPages int
	Rows     Rows      // of Scores
	Scores   []float32 // by Rows; beyond the longest live page stale values above all others, in gaps NaN
}

// NewScoreProblem makes the data of a score case.
func NewScoreProblem(s *specs.Spec, c ScoreCase, seed uint64) (*ScoreProblem, error) {
	rule, err := reference.ParseCombine(s.Locks.Combine)
	if err != nil {
		return nil, err
	}
	keep := s.Locks.AlwaysKeep
	if c.Slots == 0 {
		c.Slots = s.Slots()
	}
	c.Slots = max(c.Slots, keep.SinkPages+keep.RecentPages)
	p := &ScoreProblem{Case: c, Spec: s, Rule: rule, Group: s.Attention.Group(),
		Budget: reference.Budget{Slots: c.Slots, SinkPages: keep.SinkPages, RecentPages: keep.RecentPages}}
	p.QHeads = c.KVHeads * p.Group
	p.Lists = c.KVHeads
	if rule == reference.PerHead {
		p.Lists = p.QHeads
	}
	longest := make([]int, len(c.Pages))
	for _, pages := range append([][]int{c.Pages}, c.Replays...) {
		for b, n := range pages {
			longest[b] = max(longest[b], n)
			p.MaxPages = max(p.MaxPages, n)
		}
	}
	p.MaxPages = max(p.MaxPages+c.Spare, 1)
	p.Rows = Rows{Batch: len(c.Pages), Rows: p.QHeads, Width: p.MaxPages, RowStride: int64(p.MaxPages)}
	if c.Padded {
		p.Rows.RowStride += 4
	}
	p.Rows.BatchStride = int64(p.QHeads)*p.Rows.RowStride + p.Rows.RowStride - int64(p.MaxPages)
	p.Scores = make([]float32, p.Rows.Elements())
	for i := range p.Scores {
		p.Scores[i] = nan32
	}
	r := rand.New(rand.NewPCG(seed, 0x73636f7265)) // "score"
	for b := range longest {
		for h := range p.QHeads {
			row := p.Row(b, h, p.MaxPages)
			c.Fill(r, h, row[:longest[b]])
			for j := longest[b]; j < len(row); j++ {
				row[j] = 1e30 // stale: a kernel that looks here chooses it
			}
		}
	}
	return p, nil
}

// Row is the first pages scores of a query head.
func (p *ScoreProblem) Row(request, head, pages int) []float32 {
	at := p.Rows.At(request, head)
	return p.Scores[at : at+int64(pages)]
}

// Launches are the live pages of every launch, the first included.
func (p *ScoreProblem) Launches() [][]int { return append([][]int{p.Case.Pages}, p.Case.Replays...) }

// SeqLens are token counts that have so many pages: the last page is half full, or holds one token where a page is one.
func (p *ScoreProblem) SeqLens(pages []int) []int32 {
	out := make([]int32, len(pages))
	for b, n := range pages {
		out[b] = int32(max(n*p.Spec.SummaryTokens()-p.Spec.SummaryTokens()/2, 0))
	}
	return out
}

// Float64 is the scores of a list's rows [rows of the list][pages] as the reference takes them.
func (p *ScoreProblem) Float64(request, list, pages int) [][]float64 {
	rows := p.QHeads / p.Lists
	out := make([][]float64, rows)
	for i := range out {
		out[i] = make([]float64, pages)
		for j, x := range p.Row(request, list*rows+i, pages) {
			out[i][j] = float64(x)
		}
	}
	return out
}
