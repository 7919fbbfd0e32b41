package specs

import (
	"embed"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/kvloom/kvloom/internal/wholefile"
)

// Table is the tuned table of one model: which candidate serves each work and workload. kvloom tune --tables writes it, kvloom gen reads
// it; it is committed as tuned/MODEL.json.
type Table struct {
	Model   string  `json:"model"`
	Device  string  `json:"device"`  // "NVIDIA H200"
	Driver  string  `json:"driver"`  // "580.159.04"
	NVRTC   string  `json:"nvrtc"`   // compiler of the measured code
	Choices []Tuned `json:"choices"` // sorted by work (order of a decode step), context, batch
	// Crossovers are where selecting pages begins to be faster than dense attention, sorted by batch; kvloom bench --crossover measures them.
	Crossovers []Crossover `json:"crossovers,omitempty"`
}

// Crossover is where a decode layer of a batch becomes faster with selected pages than with dense attention. Lengths are tokens a request.
type Crossover struct {
	Batch int `json:"batch"`
	From  int `json:"from"`  // 0: dense was faster at every length measured
	Least int `json:"least"` // shortest length measured
	Most  int `json:"most"`  // longest
}

// Tuned is one choice. Params are the candidate's, in its fixed order.
type Tuned struct {
	Work      string       `json:"work"` // a family's stem, or dense
	Context   int          `json:"context"`
	Batch     int          `json:"batch"`
	Form      string       `json:"form"`
	Params    []TunedParam `json:"params"`
	MedianUS  float64      `json:"median_us"`
	DefaultUS float64      `json:"default_us"` // 0: not measured
}

// TunedParam is one parameter of a choice.
type TunedParam struct {
	Name  string `json:"name"`
	Value int    `json:"value"`
}

//go:embed tuned
var tunedFS embed.FS

// TunedTable returns the committed table of a model. ok is false where there is none.
func TunedTable(model string) (t Table, ok bool, err error) {
	b, err := tunedFS.ReadFile("tuned/" + model + ".json")
	if errors.Is(err, fs.ErrNotExist) {
		return Table{}, false, nil
	}
	if err != nil {
		return Table{}, false, fmt.Errorf("tuned table of %s: %w", model, err)
	}
	if err := json.Unmarshal(b, &t); err != nil {
		return Table{}, false, fmt.Errorf("tuned/%s.json: %w; kvloom tune --tables writes it anew", model, err)
	}
	return t, true, nil
}

// ReadTable returns the table of a model in a folder. ok is false where there is none.
func ReadTable(dir, model string) (t Table, ok bool, err error) {
	b, err := os.ReadFile(filepath.Join(dir, model+".json"))
	if errors.Is(err, fs.ErrNotExist) {
		return Table{}, false, nil
	}
	if err == nil {
		err = json.Unmarshal(b, &t)
	}
	if err != nil {
		return Table{}, false, fmt.Errorf("tuned table of %s: %w", model, err)
	}
	return t, true, nil
}

// WriteTable puts a table into a folder as MODEL.json, whole or not at all. A table without crossovers keeps those of the one that it replaces,
// for they are measured apart.
func WriteTable(dir string, t Table) error {
	if t.Crossovers == nil {
		old, _, err := ReadTable(dir, t.Model)
		if err != nil {
			return err
		}
		t.Crossovers = old.Crossovers
	}
	b, err := json.MarshalIndent(t, "", "  ")
	if err != nil {
		return fmt.Errorf("BUG: specs: tuned table: %w", err)
	}
	path := filepath.Join(dir, t.Model+".json")
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return fmt.Errorf("tuned table %s: %w", path, err)
	}
	if err := wholefile.Write(path, append(b, '\n')); err != nil {
		return fmt.Errorf("tuned table: %w", err)
	}
	return nil
}
