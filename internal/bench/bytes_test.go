package bench

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

const ncuText = `==PROF== Connected to process 17
==PROF== Profiling "page_score": 0%....100% - 1 pass
"ID","Process ID","Process Name","Host Name","Kernel Name","Context","Stream","Block Size","Grid Size","Device","CC","Section Name","Metric Name","Metric Unit","Metric Value"
"0","17","kvloom","127.0.0.1","page_score(kvloom::PageScoreArgs)","1","13","(320, 1, 1)","(132, 1, 1)","0","9.0","Command line profiler metrics","dram__bytes_read.sum","byte","33,202,176"
"0","17","kvloom","127.0.0.1","page_score(kvloom::PageScoreArgs)","1","13","(320, 1, 1)","(132, 1, 1)","0","9.0","Command line profiler metrics","dram__bytes_write.sum","byte","1,024"
"1","17","kvloom","127.0.0.1","page_attend","1","13","(256, 1, 1)","(132, 1, 1)","0","9.0","Command line profiler metrics","dram__bytes_read.sum","byte","8409216"
"1","17","kvloom","127.0.0.1","page_attend","1","13","(256, 1, 1)","(132, 1, 1)","0","9.0","Command line profiler metrics","dram__bytes_write.sum","byte","0"
==PROF== Disconnected
`

func TestParseNCU(t *testing.T) {
	got, err := ParseNCU(strings.NewReader(ncuText))
	want := []Counted{{"page_score(kvloom::PageScoreArgs)", 33202176, 1024}, {"page_attend", 8409216, 0}}
	if diff := cmp.Diff(want, got); diff != "" || err != nil {
		t.Errorf("%v (-want +got):\n%s", err, diff)
	}
	rows := []Moved{{Work: "page_score", Model: 33202180, Tokens: 131072, Batch: 1}, {Work: "dense", Model: 16818432}}
	if err := Join(rows, []string{"page_score", "page_attend"}, got); err != nil {
		t.Fatal(err)
	}
	table := BytesTable("a profiler", rows)
	for _, want := range []string{"at 131072 tokens x 1, counted by a profiler", "| page_score |  | 33202180 | 33202176 | 1024 | 1.00 |", "| 8409216 | 0 | 0.50 |"} {
		if !strings.Contains(table, want) {
			t.Errorf("no %q in\n%s", want, table)
		}
	}
	for reason, entries := range map[string][]string{"kernels in another order": {"page_attend", "page_score"}} {
		if err := Join(rows, entries, got); err == nil {
			t.Errorf("%s: joined", reason)
		}
	}
	if err := Join(rows[:1], []string{"page_score"}, got); err == nil || !strings.Contains(err.Error(), "2 launches, 1 works") {
		t.Errorf("a launch too many: %v", err)
	}
	for reason, text := range map[string]string{
		"no table":         "==PROF== nothing was profiled\n",
		"another unit":     strings.Replace(ncuText, `"byte","33,202,176"`, `"Mbyte","33.2"`, 1),
		"not a number":     strings.Replace(ncuText, "33,202,176", "n/a", 1),
		"a column is gone": strings.Replace(ncuText, `"Metric Unit",`, ``, 1),
	} {
		if _, err := ParseNCU(strings.NewReader(text)); err == nil {
			t.Errorf("%s: no error", reason)
		}
	}
}
