package compare

import (
	"encoding/xml"
	"fmt"
	"io"
	"slices"
	"strings"
	"text/tabwriter"
)

// Summary is one sentence about all lines.
func Summary(lines []Line) string {
	var parts []string
	for _, v := range []Verdict{Slower, Ambiguous, Missing, Faster, Same, New} {
		if n := Count(lines, v); n > 0 {
			parts = append(parts, fmt.Sprintf("%d %s", n, v))
		}
	}
	s := fmt.Sprintf("%d compared: %s", len(lines), strings.Join(parts, ", "))
	if both, agree := Agreement(lines); both > 0 {
		s += fmt.Sprintf("; the same candidate was chosen for %d of %d", agree, both)
	}
	return s
}

// Agreement counts the lines that name a candidate on both sides, and those of them that name the same.
func Agreement(lines []Line) (both, agree int) {
	for _, l := range lines {
		if l.OldCandidate == "" || l.NewCandidate == "" {
			continue
		}
		both++
		if l.OldCandidate == l.NewCandidate {
			agree++
		}
	}
	return both, agree
}

// Explain is one sentence about a line.
func (l Line) Explain() string {
	switch l.Verdict {
	case Missing:
		return fmt.Sprintf("%s: was %.2f us, and the new side does not have it", l.Key, l.OldUS)
	case New:
		return fmt.Sprintf("%s: %.2f us, and the old side does not have it", l.Key, l.NewUS)
	}
	by := "by interval"
	if l.Method == "rank test" {
		by = fmt.Sprintf("p %.2g, corrected %.2g", l.P, l.PHolm)
	}
	return fmt.Sprintf("%s: %s, %.2f us before, %.2f us now (%s, 95 %% %s to %s; %s)", l.Key, l.Verdict, l.OldUS, l.NewUS, percent(l.Ratio),
		percent(l.RatioLo), percent(l.RatioHi), by)
}

func percent(ratio float64) string { return fmt.Sprintf("%+.1f %%", 100*(ratio-1)) }

// rows are the cells of a table, its head first.
func rows(lines []Line) [][]string {
	out := [][]string{{"verdict", "model", "family", "workload", "old us", "new us", "change", "95 %", "p (Holm)"}}
	for _, l := range lines {
		row := []string{string(l.Verdict), l.Model, strings.TrimSpace(l.Family + " " + l.Detail), fmt.Sprintf("%dx%d", l.Context, l.Batch), "-", "-", "-", "-", "-"}
		if l.OldUS > 0 {
			row[4] = fmt.Sprintf("%.2f", l.OldUS)
		}
		if l.NewUS > 0 {
			row[5] = fmt.Sprintf("%.2f", l.NewUS)
		}
		if l.Method != "" {
			row[6], row[7] = percent(l.Ratio), percent(l.RatioLo)+" to "+percent(l.RatioHi)
			row[8] = "interval"
		}
		if l.Method == "rank test" {
			row[8] = fmt.Sprintf("%.2g", l.PHolm)
		}
		out = append(out, row)
	}
	return out
}

// Table writes lines for a terminal.
func Table(w io.Writer, lines []Line) error {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	for _, r := range rows(lines) {
		fmt.Fprintln(t, strings.Join(r, "\t"))
	}
	return t.Flush()
}

// Markdown writes lines as a table of a summary page, with the rule and the notes.
func Markdown(w io.Writer, lines []Line, rule Rule, notes []string) error {
	var b strings.Builder
	fmt.Fprintf(&b, "### %s\n\n", Summary(lines))
	for i, r := range rows(lines) {
		fmt.Fprintf(&b, "| %s |\n", strings.Join(r, " | "))
		if i == 0 {
			fmt.Fprintln(&b, "|"+strings.Repeat("---|", len(r)))
		}
	}
	fmt.Fprintf(&b, "\n%s\n", rule)
	for _, n := range notes {
		fmt.Fprintf(&b, "\n- %s\n", n)
	}
	_, err := io.WriteString(w, b.String())
	return err
}

// String is the rule in a sentence.
func (r Rule) String() string {
	return fmt.Sprintf("FASTER and SLOWER: a Mann-Whitney test with Holm's correction at %g over all lines, and a change of at least %g %%; "+
		"SAME: the 95 %% interval of the change lies within %g %%.", r.Level, 100*r.Threshold, 100*r.Threshold)
}

// suite and its parts are JUnit's elements.
type suite struct {
	XMLName  xml.Name   `xml:"testsuite"`
	Name     string     `xml:"name,attr"`
	Tests    int        `xml:"tests,attr"`
	Failures int        `xml:"failures,attr"`
	Skipped  int        `xml:"skipped,attr"`
	Cases    []testCase `xml:"testcase"`
}

type testCase struct {
	Class   string   `xml:"classname,attr"`
	Name    string   `xml:"name,attr"`
	Failure *message `xml:"failure,omitempty"`
	Skipped *message `xml:"skipped,omitempty"`
	Output  string   `xml:"system-out,omitempty"`
}

type message struct {
	Text string `xml:"message,attr"`
}

// JUnit writes lines as test cases: verdicts that fail the gate are failures, other ambiguous ones are skipped.
func JUnit(w io.Writer, lines []Line, fails []Verdict) error {
	s := suite{Name: "kvloom compare", Tests: len(lines)}
	for _, l := range lines {
		c := testCase{Class: "kvloom." + strings.ReplaceAll(l.Model, ".", "_") + "." + l.Family, Name: strings.TrimSpace(fmt.Sprintf("%dx%d %s", l.Context, l.Batch, l.Detail)), Output: l.Explain()}
		switch {
		case slices.Contains(fails, l.Verdict):
			c.Failure = &message{l.Explain()}
			s.Failures++
		case l.Verdict == Ambiguous:
			c.Skipped = &message{l.Explain()}
			s.Skipped++
		}
		s.Cases = append(s.Cases, c)
	}
	if _, err := io.WriteString(w, xml.Header); err != nil {
		return err
	}
	e := xml.NewEncoder(w)
	e.Indent("", "  ")
	if err := e.Encode(s); err != nil {
		return err
	}
	_, err := io.WriteString(w, "\n")
	return err
}

// GitHub writes workflow commands that GitHub Actions shows as annotations: what fails the gate as errors, other ambiguous and missing
// lines as warnings, faster ones as notices.
func GitHub(w io.Writer, lines []Line, fails []Verdict) error {
	escape := strings.NewReplacer("%", "%25", "\r", "%0D", "\n", "%0A")
	property := strings.NewReplacer("%", "%25", "\r", "%0D", "\n", "%0A", ":", "%3A", ",", "%2C")
	for _, l := range lines {
		level := ""
		switch {
		case slices.Contains(fails, l.Verdict):
			level = "error"
		case l.Verdict == Ambiguous || l.Verdict == Missing:
			level = "warning"
		case l.Verdict == Faster:
			level = "notice"
		default:
			continue
		}
		if _, err := fmt.Fprintf(w, "::%s title=%s::%s\n", level, property.Replace("kvloom "+string(l.Verdict)+" "+l.Family), escape.Replace(l.Explain())); err != nil {
			return err
		}
	}
	return nil
}
