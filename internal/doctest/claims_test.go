package doctest

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/kvloom/kvloom/internal/bench"
	"github.com/kvloom/kvloom/specs"
)

// table returns the rows of the first table after a heading, cells trimmed, without its head.
func table(t *testing.T, d document, heading string) [][]string {
	t.Helper()
	lines := strings.Split(d.text, "\n")
	at := slices.Index(lines, heading)
	if at < 0 {
		t.Fatalf("%s has no heading %q", d.path, heading)
	}
	var rows [][]string
	for _, l := range lines[at+1:] {
		switch {
		case strings.HasPrefix(l, "|"):
			cells := strings.Split(strings.Trim(l, "|"), "|")
			for i := range cells {
				cells[i] = strings.TrimSpace(cells[i])
			}
			rows = append(rows, cells)
		case len(rows) > 0 || strings.HasPrefix(l, "#"):
			if len(rows) < 3 {
				t.Fatalf("%s: no table after %q", d.path, heading)
			}
			return rows[2:]
		}
	}
	t.Fatalf("%s: no table after %q", d.path, heading)
	return nil
}

// TestVerbTable: the README lists every verb, and no other.
func TestVerbTable(t *testing.T) {
	var listed, real []string
	for _, row := range table(t, read(t, "README.md"), "## Verbs") {
		m := code.FindStringSubmatch(row[0])
		if m == nil {
			t.Errorf("row %q names no verb", row[0])
			continue
		}
		verb, _, _ := strings.Cut(strings.TrimPrefix(m[1], "kvloom "), " ")
		if !slices.Contains(listed, verb) {
			listed = append(listed, verb)
		}
	}
	for v := range verbs(t) {
		real = append(real, v)
	}
	slices.Sort(listed)
	slices.Sort(real)
	if diff := cmp.Diff(real, listed); diff != "" {
		t.Errorf("verbs of kvloom --help -, of the README's table +:\n%s", diff)
	}
}

// TestSupportTable: the values that the README says work are those that the spec language has and kernels are built for.
func TestSupportTable(t *testing.T) {
	d := read(t, "README.md")
	rows := map[string]string{}
	for _, row := range table(t, d, "## What works") {
		rows[row[0]] = row[1]
	}
	for field, name := range map[string]string{
		"attention.head_dim": "head dim", "cache.page_size": "page size", "locks.basis_bits": "basis bits", "cache.dtype": "cache",
		"locks.combine": "combine", "targets": "targets",
	} {
		want := buildable(t, field)
		var got []string
		for _, w := range regexp.MustCompile(`[a-z0-9_]+`).FindAllString(rows[name], -1) {
			if slices.Contains(allowed(t, field), w) {
				got = append(got, w)
			}
		}
		slices.Sort(want)
		slices.Sort(got)
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("row %q of \"What works\", built - listed +:\n%s", name, diff)
		}
	}
}

// buildable are the values of a field that specs with kernels may have: each is tried.
func buildable(t *testing.T, field string) []string {
	t.Helper()
	var list []string
	for _, v := range allowed(t, field) {
		section, key, nested := strings.Cut(field, ".")
		value := v
		text := "name: x\nattention: {query_heads: 8, kv_heads: 8, head_dim: 128}\nlocks: {rank: 1}\n"
		switch {
		case !nested:
			text += section + ": [" + value + "]\n"
		case section == "attention":
			text = strings.ReplaceAll(text, "head_dim: 128", key+": "+value)
		case section == "locks":
			text = strings.ReplaceAll(text, "rank: 1", "rank: 1, "+key+": "+value)
		default:
			text += section + ": {" + key + ": " + value + "}\n"
		}
		if _, err := specs.Parse("x.yaml", []byte(text)); err == nil {
			list = append(list, v)
		}
	}
	return list
}

// allowed are the values of a field in the published schema.
func allowed(t *testing.T, field string) []string {
	t.Helper()
	var schema any
	d := json.NewDecoder(strings.NewReader(string(specs.Schema())))
	d.UseNumber()
	if err := d.Decode(&schema); err != nil {
		t.Fatal(err)
	}
	node := schema.(map[string]any)
	for _, key := range strings.Split(field, ".") {
		properties, ok := node["properties"].(map[string]any)
		if !ok {
			t.Fatalf("schema: no properties above %s", field)
		}
		if node, ok = properties[key].(map[string]any); !ok {
			t.Fatalf("schema: no %s", field)
		}
	}
	if items, ok := node["items"].(map[string]any); ok {
		node = items
	}
	var list []string
	for _, v := range node["enum"].([]any) {
		switch v := v.(type) {
		case json.Number:
			list = append(list, v.String())
		case string:
			list = append(list, v)
		}
	}
	return list
}

const (
	resultsFile = "docs/benchmarks/results.jsonl"
	nothingYet  = "Nothing has been measured yet: `docs/benchmarks/results.jsonl` has no lines.\n"
)

// TestMeasured: every number of the README's measured section stands in what kvloom bench --summary --shapes headline prints of the results file;
// without results the section says so. KVLOOM_UPDATE=1 puts the whole summary there.
func TestMeasured(t *testing.T) {
	results, err := bench.Read(filepath.Join(top, resultsFile))
	if err != nil {
		t.Fatal(err)
	}
	summary := ""
	if len(results) > 0 {
		if summary, err = output([]string{"kvloom", "bench", "--summary", "--shapes", "headline", "--out", resultsFile}); err != nil {
			t.Fatal(err)
		}
	}
	d := read(t, "README.md")
	body := d.section(t, "results")
	if os.Getenv(updateVariable) != "" {
		made := nothingYet
		if len(results) > 0 {
			made = "```text\n" + summary + "```\n"
		}
		text := strings.Replace(d.text, body, made, 1)
		if err := os.WriteFile(filepath.Join(top, d.path), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	for _, wrong := range unmeasured(body, summary) {
		t.Errorf("%s (%s=1 fills the section)", wrong, updateVariable)
	}
}

var number = regexp.MustCompile(`\d+(\.\d+)?`)

// unmeasured says what a measured section holds that the summary does not: whole lines of its blocks, numbers of its sentences.
func unmeasured(body, summary string) []string {
	if summary == "" {
		if body != nothingYet {
			return []string{"the measured section of README.md has to say: " + nothingYet}
		}
		return nil
	}
	var wrong []string
	if body == nothingYet {
		return []string{"the measured section of README.md says that nothing was measured, and there are results"}
	}
	have := strings.Split(summary, "\n")
	fenced, lines := false, 0
	for _, l := range strings.Split(body, "\n") {
		if strings.HasPrefix(l, "```") {
			fenced = !fenced
			continue
		}
		if fenced {
			if lines++; !slices.Contains(have, l) {
				wrong = append(wrong, "no line of kvloom bench --summary: "+l)
			}
			continue
		}
		for _, n := range number.FindAllString(l, -1) {
			if !slices.Contains(number.FindAllString(summary, -1), n) {
				wrong = append(wrong, "no number of kvloom bench --summary: "+n)
			}
		}
	}
	if lines == 0 {
		wrong = append(wrong, "the measured section of README.md shows no line of the summary")
	}
	return wrong
}

func TestUnmeasured(t *testing.T) {
	summary := "card A\npage_score  12.34  10.00-13.00\n"
	for _, tt := range []struct {
		name, body, summary string
		want                int
	}{
		{"nothing, said so", nothingYet, "", 0},
		{"nothing, numbers claimed", "It takes 3 us.\n", "", 1},
		{"results, none shown", nothingYet, summary, 1},
		{"lines as printed", "```text\ncard A\npage_score  12.34  10.00-13.00\n```\n", summary, 0},
		{"a line by hand", "```text\npage_score  11.00  10.00-13.00\n```\n", summary, 1},
		{"a number by hand", "Scoring takes 12.34 us, not 99.\n```text\ncard A\n```\n", summary, 1},
	} {
		if got := unmeasured(tt.body, tt.summary); len(got) != tt.want {
			t.Errorf("%s: %q", tt.name, got)
		}
	}
}

// TestKernelTables: a measured cell of docs/kernels.md is empty of numbers as long as nothing was measured.
func TestKernelTables(t *testing.T) {
	results, err := bench.Read(filepath.Join(top, resultsFile))
	if err != nil {
		t.Fatal(err)
	}
	medians := map[string]bool{}
	for _, r := range results {
		medians[fmt.Sprintf("%.2f", r.MedianUS)] = true // as the tables print them
	}
	d := read(t, "docs/kernels.md")
	measured := -1
	for i, l := range strings.Split(d.text, "\n") {
		if !strings.HasPrefix(l, "|") {
			measured = -1
			continue
		}
		cells := strings.Split(strings.Trim(l, "|"), "|")
		for j, c := range cells {
			if strings.Contains(c, "measured, us") {
				measured = j
			}
		}
		if measured < 0 || measured >= len(cells) {
			continue
		}
		c := strings.TrimSpace(cells[measured])
		if c != "measured, us" && c != "not measured yet" && strings.Trim(c, "-") != "" && !medians[c] {
			t.Errorf("docs/kernels.md:%d: %q is no median of %s", i+1, c, resultsFile)
		}
	}
}
