package bench

// Verdict holds a line against the last one recorded for the same work on the same card.
type Verdict struct {
	Class  string  `json:"class"` // slower, faster, same, new
	Ratio  float64 `json:"ratio"` // of the medians, now over before; 0 where nothing was recorded
	Now    Result  `json:"now"`
	Before Result  `json:"before"`
}

// The classes of a verdict.
const (
	Slower = "slower"
	Faster = "faster"
	Same   = "same"
	New    = "new"
)

// Guard compares lines with what was recorded before. A line is slower when the 95 % interval of its median lies above that of the recorded
// one and the median is larger by more than threshold (0.03: 3 %), and faster the other way round: neither noise inside a run, which the
// intervals hold, nor the difference between two runs, which they do not, is a verdict.
func Guard(recorded, now []Result, threshold float64) []Verdict {
	type key struct {
		card string
		work work
	}
	last := map[key]Result{}
	for _, r := range recorded {
		last[key{r.Card, work{r.Family, r.Shape}}] = r
	}
	verdicts := []Verdict{}
	for _, r := range now {
		before, ok := last[key{r.Card, work{r.Family, r.Shape}}]
		v := Verdict{Class: New, Now: r, Before: before}
		if ok {
			v.Class, v.Ratio = Same, r.MedianUS/before.MedianUS
			switch {
			case r.LoUS > before.HiUS && v.Ratio > 1+threshold:
				v.Class = Slower
			case r.HiUS < before.LoUS && v.Ratio < 1/(1+threshold):
				v.Class = Faster
			}
		}
		verdicts = append(verdicts, v)
	}
	return verdicts
}
