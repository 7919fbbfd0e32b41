package bench

import (
	"encoding/csv"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"
)

// Moved is what one launch of a work was counted to move, beside the model of what it must.
type Moved struct {
	Spec      string `json:"spec"`
	Work      string `json:"work"` // a family's stem, or dense
	Candidate string `json:"candidate"`
	Tokens    int    `json:"tokens"`
	Batch     int    `json:"batch"`
	Model     int64  `json:"model_bytes"` // each input read once, each output written once
	Read      int64  `json:"read_bytes"`
	Written   int64  `json:"written_bytes"`
	// Growth is the further bytes counted for each further byte of the model, when the context is doubled: what a block reads once however much
	// there is to do, such as queries, does not count. 0 where it was not counted or the model does not grow.
	Growth float64 `json:"growth,omitempty"`
}

// BytesTable is the counts beside the model, as markdown. from says who counted.
func BytesTable(from string, rows []Moved) string {
	growth, several := false, false
	for _, r := range rows {
		growth, several = growth || r.Growth > 0, several || r.Spec != rows[0].Spec
	}
	head := []string{"work", "candidate", "model, bytes", "read", "written", "moved / model"}
	if several {
		head = append([]string{"spec"}, head...)
	}
	if growth {
		head = append(head, "growth / model's")
	}
	var cells [][]string
	for _, r := range rows {
		row := []string{r.Work, r.Candidate, fmt.Sprint(r.Model), fmt.Sprint(r.Read), fmt.Sprint(r.Written), fmt.Sprintf("%.2f", float64(r.Read+r.Written)/float64(max(r.Model, 1)))}
		if several {
			row = append([]string{r.Spec}, row...)
		}
		switch {
		case r.Growth > 0:
			row = append(row, fmt.Sprintf("%.2f", r.Growth))
		case growth:
			row = append(row, "-")
		}
		cells = append(cells, row)
	}
	at := ""
	if len(rows) > 0 {
		at = fmt.Sprintf(" at %d tokens x %d", rows[0].Tokens, rows[0].Batch)
	}
	return fmt.Sprintf("Bytes of one launch%s, counted by %s.\n\n%s", at, from, markdown(head, cells))
}

// Counted is what a profiler saw of one kernel, in the order of launches.
type Counted struct {
	Kernel        string
	Read, Written int64 // device memory, bytes
}

// The metrics of Nsight Compute that ParseNCU reads.
const (
	ncuRead    = "dram__bytes_read.sum"
	ncuWritten = "dram__bytes_write.sum"
)

// ParseNCU reads what "ncu --csv --print-units base --metrics dram__bytes_read.sum,dram__bytes_write.sum" printed, with or without its own talk
// around the table.
func ParseNCU(r io.Reader) ([]Counted, error) {
	text, err := io.ReadAll(r)
	if err != nil {
		return nil, fmt.Errorf("ncu: %w", err)
	}
	at := strings.Index(string(text), `"ID",`)
	if at < 0 {
		return nil, errors.New(`ncu: no table in it (no line begins with "ID"); write it with ncu --csv`)
	}
	lines := csv.NewReader(strings.NewReader(string(text[at:])))
	lines.FieldsPerRecord = -1
	head, err := lines.Read()
	if err != nil {
		return nil, fmt.Errorf("ncu: %w", err)
	}
	column := map[string]int{}
	for i, name := range head {
		column[name] = i
	}
	for _, name := range []string{"ID", "Kernel Name", "Metric Name", "Metric Unit", "Metric Value"} {
		if _, ok := column[name]; !ok {
			return nil, fmt.Errorf("ncu: its table has no column %q", name)
		}
	}
	var list []Counted
	last := ""
	for {
		row, err := lines.Read()
		if err == io.EOF {
			return list, nil
		}
		if err != nil {
			return nil, fmt.Errorf("ncu: %w", err)
		}
		if len(row) < len(head) {
			continue // ncu's talk after the table
		}
		if id := row[column["ID"]]; id != last {
			last = id
			list = append(list, Counted{Kernel: row[column["Kernel Name"]]})
		}
		metric := row[column["Metric Name"]]
		if metric != ncuRead && metric != ncuWritten {
			continue
		}
		if unit := row[column["Metric Unit"]]; unit != "byte" {
			return nil, fmt.Errorf("ncu: %s is in %s; write it with --print-units base", metric, unit)
		}
		bytes, err := strconv.ParseFloat(strings.ReplaceAll(row[column["Metric Value"]], ",", ""), 64)
		if err != nil {
			return nil, fmt.Errorf("ncu: %s of %s: %w", metric, list[len(list)-1].Kernel, err)
		}
		if metric == ncuRead {
			list[len(list)-1].Read = int64(bytes)
		} else {
			list[len(list)-1].Written = int64(bytes)
		}
	}
}

// Join gives each work the counts of its launch: the kernels must be those of the works, in their order.
func Join(rows []Moved, entries []string, counted []Counted) error {
	if len(counted) != len(rows) {
		return fmt.Errorf("the profiler saw %d launches, %d works were launched", len(counted), len(rows))
	}
	for i := range rows {
		if name := strings.TrimSuffix(strings.Split(counted[i].Kernel, "(")[0], " "); name != entries[i] {
			return fmt.Errorf("launch %d is %s for the profiler, and %s here", i+1, name, entries[i])
		}
		rows[i].Read, rows[i].Written = counted[i].Read, counted[i].Written
	}
	return nil
}
