package verify

import (
	"context"
	"strings"
	"testing"

	"github.com/kvloom/kvloom/gen/plan"
	"github.com/kvloom/kvloom/runtime/device"
	"github.com/kvloom/kvloom/runtime/nvrtc/nvrtctest"
	"github.com/kvloom/kvloom/runtime/sim"
)

// fewSMs is a simulator whose blocks get many tiles each, so that rings turn over.
func fewSMs(t *testing.T, n int, schedule string) device.Device {
	t.Helper()
	info := device.Info{
		Name: "a few SMs", UUID: "sim", Major: 9, SMs: n, L2Bytes: 1 << 20, MemoryBytes: 1 << 34, SharedPerBlock: 227 << 10,
		SharedPerSM: 228 << 10, RegistersPerSM: 65536, ThreadsPerSM: 2048, DriverVersion: 13000,
	}
	dev, err := sim.New(sim.Config{Info: &info, Sanitize: true, Schedule: schedule})
	if err != nil {
		t.Fatal(err)
	}
	return dev
}

// TestPageScoreImmaOnSimulator runs the integer form where blocks have many tiles, under the simulator's sanitizer.
func TestPageScoreImmaOnSimulator(t *testing.T) {
	for _, tc := range []struct {
		name, reason          string
		dim, rank, group, kvs int
		dtype                 string
		sms                   int
		schedule              string
		cases                 string
	}{
		{"llama", "eight kv heads in one copy; the ring turns over many times", 128, 4, 4, 8, "bf16", 3, "", "crosses 1024 tokens,mixed lengths,holes,wide logits"},
		{"rank 8, fp16", "two pages of 16 rows; q is rounded below 2^-4 of its largest", 128, 8, 3, 2, "fp16", 2, "random:1", "crosses 1024 tokens,wide logits,extreme keys"},
		{"group 8", "the query as rows, rows g + 8 are another page", 128, 4, 8, 4, "bf16", 2, "random:2", "crosses 1024 tokens,mixed lengths,wide logits"},
		{"group 7, rank 8", "the query as rows, half of them empty; a head of the set is missing", 64, 8, 7, 3, "bf16", 2, "", "crosses 1024 tokens,degenerate pages"},
		{"group 16", "two sets of eight heads; four groups of warps", 128, 4, 16, 2, "bf16", 1, "random:3", "crosses 1024 tokens,70 requests," + nanRecord},
		{"group 12, rank 8", "the second set is half empty", 128, 8, 12, 1, "bf16", 2, "", "around a tile,wide logits"},
		{"eleven kv heads", "a prime: one kv head a copy, eleven chunks; queries change inside a block", 128, 4, 1, 11, "bf16", 2, "", "33 pages,mixed lengths"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			s := scoreSpec(tc.dim, 16, tc.rank, 4, tc.group, tc.dtype, 0)
			s.Attention.KVHeads, s.Attention.QueryHeads = tc.kvs, tc.kvs*tc.group
			s.Locks.Combine, s.Locks.BudgetTokens = "share_average", 64
			c := plan.ForFamily(plan.PageScore, s, plan.Targets["sm_90a"]).Candidates[0]
			if c.Kernel != "kvloom::page_score_imma" {
				t.Fatalf("%s: the default is %s", tc.reason, c.ID())
			}
			dev := fewSMs(t, tc.sms, tc.schedule)
			l := NewLoader(t.Context(), dev, nvrtctest.Compiler(t))
			e := NewEnv(dev, l.Compile)
			for _, name := range strings.Split(tc.cases, ",") {
				results, err := Check(context.Background(), e, s, c, Options{Only: name, Seed: 1, Workloads: "small"})
				if err != nil {
					t.Fatal(err)
				}
				if len(results) != 1 || results[0].Count == 0 {
					t.Fatalf("case %q: %d results", name, len(results))
				}
				if r := results[0]; !r.OK() {
					t.Errorf("%s (%s), %s: %s", c.ID(), tc.reason, r.Case, r.Failure)
				}
			}
			if err := e.Close(); err != nil {
				t.Error(err)
			}
			if err := l.Unload(); err != nil {
				t.Error(err)
			}
		})
	}
}
