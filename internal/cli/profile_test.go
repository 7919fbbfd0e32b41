package cli

import (
	"bytes"
	"encoding/json"
	"strings"
	"testing"

	"github.com/kvloom/kvloom/runtime/nvrtc/nvrtctest"
)

// TestProfile counts one launch of each kernel: what it moves is at least what the plan's model says must be moved, but for what a short
// context lets it skip.
func TestProfile(t *testing.T) {
	nvrtctest.Compiler(t)
	for _, kernel := range []string{"page_summary", "page_score", "page_select", "page_attend", "dense"} {
		t.Run(kernel, func(t *testing.T) {
			var out, talk bytes.Buffer
			if code := Run([]string{"profile", "smollm2-135m", kernel, "--context", "2048", "--json"}, &out, &talk); code != 0 {
				t.Fatalf("exit code %d: %s", code, talk.String())
			}
			var r profileReport
			if err := json.Unmarshal(out.Bytes(), &r); err != nil {
				t.Fatal(err)
			}
			c := r.Counters
			moved := 32*(c.GlobalReads.Sectors+c.GlobalWrites.Sectors) + c.BulkBytes
			if c.Launches != 1 || c.Blocks == 0 || c.WarpInstructions == 0 || c.ThreadInstructions < c.WarpInstructions || moved < r.Model.Bytes/2 {
				t.Errorf("counters %+v, model %+v", c, r.Model)
			}
		})
	}
	var out, talk bytes.Buffer
	if code := Run([]string{"profile", "smollm2-135m", "page_score", "--form", "portable", "--context", "1024"}, &out, &talk); code != 0 || !strings.Contains(out.String(), "global reads") {
		t.Errorf("exit code %d: %s%s", code, out.String(), talk.String())
	}
	if code := Run([]string{"profile", "smollm2-135m", "page_turn"}, &out, &talk); code != 1 || !strings.Contains(talk.String(), "page_turn") {
		t.Errorf("an unknown kernel: exit code %d: %s", code, talk.String())
	}
}
