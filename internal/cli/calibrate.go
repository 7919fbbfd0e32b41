package cli

import (
	"fmt"

	"github.com/kvloom/kvloom/internal/quality"
)

// CalibrateCmd measures what query-weighted bases and centred centroids of one layer need to know.
type CalibrateCmd struct {
	Files []string `arg:"" name:"file" help:"Dumps of one layer, of any texts: safetensors files or folders as kvloom quality reads them; k and q_last are used."`
	Out   string   `short:"o" required:"" help:"The calibration to write: safetensors, moments [KV heads, dim, dim] and mean_key [KV heads, dim], float32, and factors, whose bytes a weighted page_summary takes." placeholder:"FILE"`
}

// Run writes the calibration.
func (c *CalibrateCmd) Run(ctx *Context) error {
	out, err := quality.Calibrate(c.Files)
	if err != nil {
		return err
	}
	if err := out.Write(c.Out); err != nil {
		return err
	}
	if ctx.JSON {
		return ctx.PrintJSON(map[string]any{"file": c.Out, "kv_heads": out.KVHeads, "head_dim": out.HeadDim, "positions": out.Queries, "spread": out.Spread()})
	}
	fmt.Fprintf(ctx.Stdout, "%s: %d KV heads of dim %d from %d query positions of %d file(s)\n", c.Out, out.KVHeads, out.HeadDim, out.Queries, len(c.Files))
	for head, s := range out.Spread() {
		fmt.Fprintf(ctx.Stdout, "head %d: queries use %.1f of %d directions\n", head, s, out.HeadDim)
	}
	return nil
}
