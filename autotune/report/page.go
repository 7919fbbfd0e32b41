package report

import (
	"bytes"
	"cmp"
	_ "embed"
	"fmt"
	"html/template"
	"math"
	"path/filepath"
	"slices"
	"strings"

	"github.com/kvloom/kvloom/autotune"
	"github.com/kvloom/kvloom/autotune/compare"
	"github.com/kvloom/kvloom/autotune/measure"
	"github.com/kvloom/kvloom/autotune/store"
	"github.com/kvloom/kvloom/gen/plan"
	"github.com/kvloom/kvloom/internal/wholefile"
	"github.com/kvloom/kvloom/runtime/device"
	"github.com/kvloom/kvloom/specs"
)

// Tuning is the trials of one model on one kind of device, all of the plan's present kernels.
type Tuning struct {
	Plan   *plan.Plan
	Trials []store.Trial
	Stale  int // trials of kernels that have changed since, left out
	Device device.Info
	Driver string
	NVRTC  string
}

// Page is everything that a report shows.
type Page struct {
	Title     string
	Source    string // the database
	Generator string
	Sections  []section
	Baseline  string // what is compared with; empty: nothing
	Rule      string
	Lines     []compare.Line
	Notes     []string
}

// section is one tuning.
type section struct {
	Model       string
	Environment [][2]string
	Rows        []leader
	Against     string // the defaults
	Charts      []chart
	Importance  []importance
	Classes     []string
	Failures    []failureRow
	Examples    []Failure
	Rejected    []familyReasons
	Warnings    []string
}

type leader struct {
	Explanation
	Gain    float64 // default / tuned
	Percent float64 // of the roof
	Bar     float64 // percent of the longest bar
	Tied    int
}

type chart struct {
	Title, Caption string
	SVG            template.HTML
	Legend         []swatch // below the chart: there are more families than a chart has empty corners
}

// swatch is a line of a legend.
type swatch struct {
	SVG  template.HTML
	Name string
}

type importance struct {
	Family, Param string
	Percent       float64
	Best          string // value that was best, by workload
}

type failureRow struct {
	Family string
	Counts []int
}

type familyReasons struct {
	Family  string
	Reasons []Reason
}

// New makes a page of tunings.
func New(source, generator string, tunings []Tuning) (*Page, error) {
	p := &Page{Title: "kvloom tuning report", Source: filepath.Base(source), Generator: generator}
	for _, t := range tunings {
		s, err := sectionOf(t)
		if err != nil {
			return nil, fmt.Errorf("report of %s: %w", t.Plan.Spec.Name, err)
		}
		p.Sections = append(p.Sections, s)
	}
	return p, nil
}

func sectionOf(t Tuning) (section, error) {
	choices := autotune.Choose(t.Trials)
	s := section{Model: t.Plan.Spec.Name + warmth(t.Trials), Warnings: autotune.Warnings(choices), Environment: environment(t), Against: autotune.AgainstDefaults(choices)}
	for _, c := range choices {
		e, err := Explain(t.Plan, measure.Work(c.Family), specs.Workload{Context: c.Context, Batch: c.Batch}, t.Trials, t.Device, t.Driver)
		if err != nil {
			return s, err
		}
		l := leader{Explanation: *e, Tied: c.Tied}
		if e.DefaultUS > 0 {
			l.Gain = e.DefaultUS / e.MedianUS
		}
		if e.RoofTBPerS > 0 {
			l.Percent = 100 * e.TBPerS / e.RoofTBPerS
		}
		s.Rows = append(s.Rows, l)
	}
	longest := 1.0
	for _, l := range s.Rows {
		longest = max(longest, l.Gain)
	}
	for i := range s.Rows {
		s.Rows[i].Bar = 100 * s.Rows[i].Gain / longest
	}
	s.Importance = importances(s.Rows)
	s.failures(t.Trials)
	for _, fp := range t.Plan.Families {
		if r := reasons(fp.Rejected); len(r) > 0 {
			s.Rejected = append(s.Rejected, familyReasons{string(fp.Family), r})
		}
	}
	var err error
	s.Charts, err = charts(s.Rows, t)
	return s, err
}

// warmth says where trials were measured with a warm L2; cold is the rule.
func warmth(trials []store.Trial) string {
	if len(trials) > 0 && trials[0].L2 == "warm" {
		return ", warm L2"
	}
	return ""
}

func environment(t Tuning) [][2]string {
	d := t.Device
	clock := func(mhz int) string { return fmt.Sprintf("%d MHz", mhz) }
	first, last, seconds := "", "", 0.0
	for _, tr := range t.Trials {
		at := tr.Started.UTC().Format("2006-01-02 15:04")
		if first == "" || at < first {
			first = at
		}
		last = max(last, at)
		seconds += tr.Seconds
		for _, w := range tr.Windows {
			seconds += w.Seconds
		}
	}
	rows := [][2]string{{"device", d.Name}, {"SMs", fmt.Sprint(d.SMs)}, {"memory", fmt.Sprintf("%d GiB at %s", d.MemoryBytes>>30, clock(d.MemoryClockMHz))},
		{"L2", fmt.Sprintf("%d MiB", d.L2Bytes>>20)}, {"MIG", fmt.Sprint(d.MultiInstanceGPU)}, {"ECC", fmt.Sprint(d.ErrorCorrectionOn)}, {"driver", t.Driver},
		{"compiler", t.NVRTC}, {"trials", fmt.Sprintf("%d, %.0f s of measuring", len(t.Trials), seconds)}, {"from", first + " UTC"}, {"to", last + " UTC"}}
	if t.Stale > 0 {
		rows = append(rows, [2]string{"left out", fmt.Sprintf("%d trials of kernels that have changed since", t.Stale)})
	}
	return rows
}

// importances are the parameters of each family: the mean share of variance over its workloads, and the values that were best.
func importances(rows []leader) (list []importance) {
	type key struct{ family, param string }
	sums, counts, best := map[key]float64{}, map[key]int{}, map[key][]string{}
	var order []key
	for _, l := range rows {
		for _, e := range l.Effects {
			k := key{l.Family, e.Param}
			if counts[k] == 0 {
				order = append(order, k)
			}
			sums[k] += e.Importance
			counts[k]++
			at := 0
			for i, us := range e.BestUS {
				if us < e.BestUS[at] {
					at = i
				}
			}
			best[k] = append(best[k], fmt.Sprint(e.Values[at]))
		}
	}
	for _, k := range order {
		list = append(list, importance{Family: k.family, Param: k.param, Percent: 100 * sums[k] / float64(counts[k]), Best: join(best[k])})
	}
	slices.SortStableFunc(list, func(a, b importance) int {
		return cmp.Or(cmp.Compare(familyRank(a.Family), familyRank(b.Family)), cmp.Compare(b.Percent, a.Percent))
	})
	return list
}

func familyRank(name string) int { return slices.Index(measure.Works, measure.Work(name)) }

// join lists words, equal ones once.
func join(words []string) string {
	var out string
	for i, w := range words {
		if slices.Contains(words[:i], w) {
			continue
		}
		if out != "" {
			out += ", "
		}
		out += w
	}
	return out
}

// failures counts trials by family and class.
func (s *section) failures(trials []store.Trial) {
	for _, c := range store.Classes {
		s.Classes = append(s.Classes, string(c))
	}
	for _, w := range measure.Works {
		row := failureRow{Family: string(w), Counts: make([]int, len(store.Classes))}
		total := 0
		for _, t := range trials {
			if t.Family == string(w) {
				row.Counts[slices.Index(store.Classes, t.Class)]++
				total++
			}
		}
		if total > 0 {
			s.Failures = append(s.Failures, row)
		}
	}
	s.Examples = failures(trials)
}

// Compare adds a comparison with a baseline.
func (p *Page) Compare(baseline string, rule compare.Rule, lines []compare.Line, notes []string) {
	p.Baseline, p.Rule, p.Lines, p.Notes = filepath.Base(baseline), rule.String(), lines, notes
}

//go:embed page.html.tmpl
var pageText string

var pageTemplate = template.Must(template.New("page").Option("missingkey=error").Funcs(template.FuncMap{
	"us": func(x float64) string {
		if x == 0 {
			return "-"
		}
		return fmt.Sprintf("%.*f", max(0, 3-int(math.Floor(math.Log10(max(x, 1e-3))))-1), x)
	},
	"percent": func(ratio float64) string { return fmt.Sprintf("%+.1f %%", 100*(ratio-1)) },
	"short": func(id string) string { // without the family
		_, rest, _ := strings.Cut(id, " ")
		return rest
	},
	"fixed": func(n int, x float64) string { return fmt.Sprintf("%.*f", n, x) },
}).Parse(pageText))

// HTML renders the page.
func (p *Page) HTML() ([]byte, error) {
	var b bytes.Buffer
	if err := pageTemplate.Execute(&b, p); err != nil {
		return nil, fmt.Errorf("report: %w", err)
	}
	return b.Bytes(), nil
}

// Write puts the page into a file, whole or not at all.
func (p *Page) Write(path string) error {
	b, err := p.HTML()
	if err != nil {
		return err
	}
	if err := wholefile.Write(path, b); err != nil {
		return fmt.Errorf("report: %w", err)
	}
	return nil
}
