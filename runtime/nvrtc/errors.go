package nvrtc

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/kvloom/kvloom/gen/render"
)

// CompileError is NVRTC's refusal of a source.
type CompileError struct {
	Source string // "page_score.cu"
	Arch   string
	Reason string // NVRTC's name for it
	Log    string // the compiler's messages
	Saved  string // the folder that holds the source and its headers, for nvcc -I; empty when it could not be written
}

func (e *CompileError) Error() string {
	where := "its source could not be saved"
	if e.Saved != "" {
		where = "source saved as " + filepath.Join(e.Saved, e.Source)
	}
	return fmt.Sprintf("compile %s for %s: %s; %s\n%s", e.Source, e.Arch, e.Reason, where, e.Log)
}

// saved keeps the source of a failed compilation beside the cache, or in the temporary folder where there is none.
func (c *Compiler) saved(err error, src render.Source, key string) error {
	var ce *CompileError
	if !errors.As(err, &ce) {
		return err
	}
	for _, dir := range []string{c.cache.folder(), filepath.Join(os.TempDir(), "kvloom")} {
		if dir == "" {
			continue
		}
		folder := filepath.Join(dir, "failed", key[:16])
		if saveSource(folder, src) == nil {
			ce.Saved = folder
			break
		}
	}
	return err
}

// saveSource writes the source and its headers under their include names.
func saveSource(folder string, src render.Source) error {
	write := func(name, text string) error {
		file := filepath.Join(folder, filepath.FromSlash(name))
		if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
			return err
		}
		return os.WriteFile(file, []byte(text), 0o644)
	}
	for name, text := range src.Headers {
		if err := write(name, text); err != nil {
			return err
		}
	}
	return write(src.Name, src.Text)
}
