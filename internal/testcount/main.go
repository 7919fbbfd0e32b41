// Command testcount runs 'go test -json' with its arguments, prints what go test would, and ends with every skip's reason and one
// line of counts: "N passed, N failed, N skipped". Tests and subtests count alike; a package that does not build or that dies
// counts as one failure. Its exit code is 1 when anything failed.
package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"regexp"
	"slices"
	"strings"
)

// event is one line of go test -json (see 'go doc test2json').
type event struct {
	Action, Package, ImportPath, Test, Output string
	Elapsed                                   float64
}

// tally gathers events. Output of a test is kept until it is known whether it failed.
type tally struct {
	out                     io.Writer
	passed, failed, skipped int
	output                  map[string][]string // by package and test
	failedIn                map[string]bool     // packages with a failed test
	reasons                 map[string]int      // of skips
}

func main() {
	cmd := exec.Command("go", append([]string{"test", "-json"}, os.Args[1:]...)...)
	cmd.Stderr = os.Stderr
	pipe, err := cmd.StdoutPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "testcount:", err)
		os.Exit(1)
	}
	t := newTally(os.Stdout)
	if err := t.read(pipe); err != nil {
		fmt.Fprintln(os.Stderr, "testcount:", err)
		t.failed++
	}
	if err := cmd.Wait(); err != nil && t.failed == 0 {
		fmt.Fprintln(os.Stderr, "testcount: go test:", err)
		t.failed++
	}
	t.summary()
	if t.failed > 0 {
		os.Exit(1)
	}
}

func newTally(out io.Writer) *tally {
	return &tally{out: out, output: map[string][]string{}, failedIn: map[string]bool{}, reasons: map[string]int{}}
}

func (t *tally) read(r io.Reader) error {
	lines := bufio.NewReader(r)
	for {
		line, err := lines.ReadBytes('\n')
		if len(line) > 0 {
			var e event
			if json.Unmarshal(line, &e) != nil {
				fmt.Fprintf(t.out, "%s", line) // go's own talk
			} else {
				t.add(e)
			}
		}
		if err == io.EOF {
			return nil
		}
		if err != nil {
			return err
		}
	}
}

func (t *tally) add(e event) {
	id := e.Package + e.ImportPath + "\x00" + e.Test
	switch e.Action {
	case "output", "build-output":
		t.output[id] = append(t.output[id], e.Output)
		return
	case "pass", "fail", "skip", "build-fail":
	default:
		return
	}
	if e.Test == "" {
		t.endPackage(e, id)
		return
	}
	switch e.Action {
	case "pass":
		t.passed++
	case "skip":
		t.skipped++
		t.reasons[skipReason(t.output[id])]++
	case "fail":
		t.failed++
		t.failedIn[e.Package] = true
		fmt.Fprint(t.out, strings.Join(t.output[id], ""))
	}
	delete(t.output, id)
}

// endPackage prints a package's own line, and all it said when it failed outside any test.
func (t *tally) endPackage(e event, id string) {
	switch {
	case e.Action == "build-fail":
		fmt.Fprint(t.out, strings.Join(t.output[id], ""))
	case e.Action == "fail" && !t.failedIn[e.Package]:
		t.failed++
		for other, lines := range t.output { // a test that ran when the process died has no end of its own
			if strings.HasPrefix(other, e.Package+"\x00") && other != id {
				fmt.Fprint(t.out, strings.Join(lines, ""))
			}
		}
		fmt.Fprint(t.out, strings.Join(t.output[id], ""))
	case e.Action == "fail":
		fmt.Fprintf(t.out, "FAIL\t%s\t%.3fs\n", e.Package, e.Elapsed)
	case e.Action == "pass":
		fmt.Fprintf(t.out, "ok\t%s\t%.3fs\n", e.Package, e.Elapsed)
	}
	delete(t.output, id)
}

var position = regexp.MustCompile(`^\s*\S+\.go:\d+: `)

// skipReason is the last line that a skipped test logged, its position left out: a skip ends the test.
func skipReason(output []string) string {
	for _, line := range slices.Backward(output) {
		if position.MatchString(line) {
			return strings.TrimSpace(position.ReplaceAllString(line, ""))
		}
	}
	return "no reason given"
}

func (t *tally) summary() {
	reasons := make([]string, 0, len(t.reasons))
	for r := range t.reasons {
		reasons = append(reasons, r)
	}
	slices.Sort(reasons)
	for _, r := range reasons {
		fmt.Fprintf(t.out, "skipped %d: %s\n", t.reasons[r], r)
	}
	fmt.Fprintf(t.out, "%d passed, %d failed, %d skipped\n", t.passed, t.failed, t.skipped)
}
