package cli

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/kvloom/kvloom/internal/wholefile"
	"github.com/kvloom/kvloom/specs"
)

// SpecSchemaCmd publishes the schema.
type SpecSchemaCmd struct {
	File  string `arg:"" optional:"" help:"Where to write it; without, it goes to stdout."`
	Check bool   `help:"Write nothing; fail if the file (default specs/${schema_file}) is not current."`
}

// Run writes, prints or compares the schema.
func (c *SpecSchemaCmd) Run(ctx *Context) error {
	want := specs.Schema()
	switch {
	case c.Check:
		return c.compare(want)
	case c.File == "":
		_, err := ctx.Stdout.Write(want)
		return err
	}
	return wholefile.Write(c.File, want)
}

func (c *SpecSchemaCmd) compare(want []byte) error {
	file := c.File
	if file == "" {
		file = filepath.Join("specs", specs.SchemaFile)
	}
	got, err := os.ReadFile(file)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return fmt.Errorf("%s does not exist; run 'kvloom spec schema %s'", file, file)
	case err != nil:
		return err
	case !bytes.Equal(got, want):
		return fmt.Errorf("%s is stale; run 'kvloom spec schema %s'", file, file)
	}
	return nil
}
