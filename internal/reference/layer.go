package reference

import "math"

// Queries are one query token a request: [batch, query head, dim] bit patterns of the cache's dtype.
type Queries struct {
	DType          DType
	Heads, HeadDim int
	Bits           []uint16
}

// Of decodes one query head's vector.
func (q Queries) Of(request, head int) []float64 {
	out := make([]float64, q.HeadDim)
	at := (request*q.Heads + head) * q.HeadDim
	q.DType.Values(out, q.Bits[at:at+q.HeadDim])
	return out
}

// Summaries holds the packed record of every (stored block, KV head) that was summarised.
type Summaries struct {
	Shape
	Records map[RecordKey][]byte
}

// RecordKey names one record.
type RecordKey struct {
	Block int32
	Head  int
}

// Build summarises every complete page of every request: what page_summary must produce up to the freedom of the contract.
func (c *Cache) Build(shape Shape) Summaries {
	s := Summaries{Shape: shape, Records: map[RecordKey][]byte{}}
	type job struct {
		RecordKey
		request, page int
	}
	var jobs []job
	for request, length := range c.SeqLens {
		for page := range int(length) / c.SummaryTokens() {
			for head := range c.KVHeads {
				key := RecordKey{c.GroupBlock(request, page), head}
				if _, seen := s.Records[key]; key.Block < 0 || seen {
					continue
				}
				s.Records[key] = nil
				jobs = append(jobs, job{key, request, page})
			}
		}
	}
	records := make([][]byte, len(jobs))
	parallel(len(jobs), func(i int) {
		j := jobs[i]
		records[i] = c.record(c.GroupKeys(j.request, j.page, j.Head, c.SummaryTokens()), shape, j.Head)
	})
	for i, j := range jobs {
		s.Records[j.RecordKey] = records[i]
	}
	return s
}

// Scores are page scores of every request and query head, ragged: [batch][query head][live pages]; where pages share summaries, of groups.
type Scores struct {
	Score [][][]float64
	// Largest is the largest finite |logit| of each row, which the error bound grows with: [batch][query head].
	Largest [][]float64
}

// Score evaluates equation 2 on the records for complete pages and equation 1 for the page that is still filling. A complete page
// without a block has no tokens: -inf.
func (c *Cache) Score(s Summaries, q Queries, l Logits) Scores {
	batch, group := c.Batch(), q.Heads/c.KVHeads
	out := Scores{Score: make([][][]float64, batch), Largest: make([][]float64, batch)}
	for b := range batch {
		out.Score[b], out.Largest[b] = make([][]float64, q.Heads), make([]float64, q.Heads)
	}
	parallel(batch*c.KVHeads, func(i int) {
		request, head := i/c.KVHeads, i%c.KVHeads
		length := int(c.SeqLens[request])
		queries := make([][]float64, group)
		for g := range queries {
			queries[g] = q.Of(request, head*group+g)
			out.Score[request][head*group+g] = make([]float64, c.Groups(length))
		}
		for page := range c.Groups(length) {
			score := c.pageScorer(s, request, page, head, l)
			for g, query := range queries {
				value, largest := score(query)
				out.Score[request][head*group+g][page] = value
				if at := &out.Largest[request][head*group+g]; largest > *at && !math.IsInf(largest, 0) {
					*at = largest
				}
			}
		}
	})
	return out
}

// pageScorer decodes a page, or a group of pages that share a summary, once for all queries of the group.
func (c *Cache) pageScorer(s Summaries, request, page, head int, l Logits) func(q []float64) (score, largest float64) {
	tokens := min(int(c.SeqLens[request])-page*c.SummaryTokens(), c.SummaryTokens())
	complete := tokens == c.SummaryTokens()
	id := int32(-1)
	if complete || c.summaryPages() == 1 {
		id = c.GroupBlock(request, page)
	}
	keys := c.GroupKeys(request, page, head, tokens)
	if complete && id < 0 || len(keys) == 0 {
		return func([]float64) (float64, float64) { return math.Inf(-1), 0 }
	}
	if !complete {
		tokens := len(keys) / c.HeadDim
		return func(q []float64) (float64, float64) {
			var largest float64
			for t := range tokens {
				largest = max(largest, math.Abs(l.Of(dot(q, keys[t*c.HeadDim:(t+1)*c.HeadDim]))))
			}
			return PageLSE(q, keys, l), largest
		}
	}
	record, ok := s.Records[RecordKey{id, head}]
	if !ok {
		panic("BUG: reference: a complete page has no record")
	}
	if s.Scorer != "" {
		return c.plainScorer(s.Shape, record, keys, l)
	}
	codes, err := Unpack(s.Shape, record)
	if err != nil {
		panic("BUG: reference: " + err.Error())
	}
	d := codes.DequantiseAround(c.centre(head))
	return func(q []float64) (float64, float64) { return d.Score(q, l) }
}

// Lists are chosen pages: [batch][list][at most slots]; a list is a KV head, or a query head for per_head.
type Lists [][][]int32

// Select combines and chooses for every request.
func (s Scores) Select(rule Combine, group int, budget Budget) Lists {
	lists := make(Lists, len(s.Score))
	for b, rows := range s.Score {
		for _, list := range rule.Rows(rows, group) {
			lists[b] = append(lists[b], budget.Choose(rule.Values(list)))
		}
	}
	return lists
}

// Rows divides one request's score rows [query head][pages] into what each list is chosen from: the rows of a group, or one row
// for per_head.
func (c Combine) Rows(rows [][]float64, group int) [][][]float64 {
	if c == PerHead {
		group = 1
	}
	var lists [][][]float64
	for at := 0; at < len(rows); at += group {
		lists = append(lists, rows[at:at+group])
	}
	return lists
}

// AttendAll is Attend for every request and query head: [batch, query head]. lists nil means all pages; otherwise it has one list a
// KV head or one a query head.
func (c *Cache) AttendAll(q Queries, lists Lists, l Logits) []Attention {
	out := make([]Attention, c.Batch()*q.Heads)
	group := q.Heads / c.KVHeads
	parallel(len(out), func(i int) {
		request, head := i/q.Heads, i%q.Heads
		var pages []int32
		if lists != nil {
			pages = append([]int32{}, lists[request][head*len(lists[request])/q.Heads]...)
		}
		out[i] = c.Attend(request, head/group, q.Of(request, head), pages, l)
	})
	return out
}
