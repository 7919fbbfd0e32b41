package verify

import (
	"context"
	"slices"
	"strings"
	"testing"

	"github.com/kvloom/kvloom/gen/plan"
	"github.com/kvloom/kvloom/runtime/device"
	"github.com/kvloom/kvloom/runtime/nvrtc/nvrtctest"
	"github.com/kvloom/kvloom/runtime/sim"
	"github.com/kvloom/kvloom/specs"
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

// immaSpec is a spec that has an integer form.
func immaSpec(dim, page, rank, bits, group, kvs int, dtype string) *specs.Spec {
	s := scoreSpec(dim, page, rank, bits, group, dtype, 0)
	s.Attention.KVHeads, s.Attention.QueryHeads = kvs, kvs*group
	s.Locks.Combine, s.Locks.BudgetTokens = "share_average", 64
	return s
}

// checkImma runs a candidate over cases, under the simulator's sanitizer.
func checkImma(t *testing.T, s *specs.Spec, c plan.Candidate, sms int, schedule, reason string, cases []string) {
	t.Helper()
	dev := fewSMs(t, sms, schedule)
	l := NewLoader(t.Context(), dev, nvrtctest.Compiler(t))
	e := NewEnv(dev, l.Compile)
	for _, name := range cases {
		results, err := Check(context.Background(), e, s, c, Options{Only: name, Seed: 1, Workloads: "small"})
		if err != nil {
			t.Fatal(err)
		}
		if len(results) != 1 || results[0].Count == 0 {
			t.Fatalf("case %q: %d results", name, len(results))
		}
		if r := results[0]; !r.OK() {
			t.Errorf("%s (%s), %s: %s", c.ID(), reason, r.Case, r.Failure)
		}
	}
	if err := e.Close(); err != nil {
		t.Error(err)
	}
	if err := l.Unload(); err != nil {
		t.Error(err)
	}
}

// TestPageScoreImmaOnSimulator runs the integer form where blocks have many tiles.
func TestPageScoreImmaOnSimulator(t *testing.T) {
	for _, tc := range []struct {
		name, reason          string
		dim, page, rank, bits int
		group, kvs            int
		dtype                 string
		sms                   int
		schedule              string
		cases                 string
	}{
		{"llama", "eight kv heads in one copy; the ring turns over many times", 128, 16, 4, 4, 4, 8, "bf16", 3, "", "crosses 1024 tokens,mixed lengths,holes,wide logits"},
		{"fp16, group 7", "a third byte of the query as rows", 128, 16, 4, 4, 7, 2, "fp16", 2, "", "crosses 1024 tokens,wide logits,extreme keys"},
		{"rank 8, fp16", "two pages of 16 rows; a third byte of the query as columns", 128, 16, 8, 4, 3, 2, "fp16", 2, "random:1", "crosses 1024 tokens,wide logits,extreme keys"},
		{"group 8", "the query as rows, rows g + 8 are another page", 128, 16, 4, 4, 8, 4, "bf16", 2, "random:2", "crosses 1024 tokens,mixed lengths,wide logits"},
		{"group 7, rank 8", "the query as rows, half of them empty; a head of the set is missing", 64, 16, 8, 4, 7, 3, "bf16", 2, "", "crosses 1024 tokens,degenerate pages"},
		{"group 16", "two sets of eight heads; four groups of warps share a line of scores", 128, 16, 4, 4, 16, 2, "bf16", 1, "random:3", "crosses 1024 tokens,70 requests," + nanRecord},
		{"group 12, rank 8", "the second set is half empty", 128, 16, 8, 4, 12, 1, "bf16", 2, "", "around a tile,wide logits"},
		{"group 24", "two passes of twelve heads", 128, 16, 4, 4, 24, 1, "bf16", 2, "", "crosses 1024 tokens,wide logits," + nanRecord},
		{"eleven kv heads", "a prime: one kv head a copy, eleven chunks; queries change inside a block", 128, 16, 4, 4, 1, 11, "bf16", 2, "", "33 pages,mixed lengths"},
		{"head dim 80", "quarters of 20 dims: the last words of codes and of the centroid are padding", 80, 16, 4, 4, 4, 2, "bf16", 2, "", "crosses 1024 tokens,wide logits"},
		{"head dim 112, group 7", "quarters of 28 dims, the query as rows", 112, 16, 4, 4, 7, 2, "bf16", 2, "", "crosses 1024 tokens,wide logits"},
		{"page 64", "four blocks of 16 tokens", 128, 64, 4, 4, 4, 2, "bf16", 2, "", "half-full last page,wide logits," + nanRecord},
		{"page 32, rank 8, group 8", "two blocks of 16 tokens, the query as rows", 128, 32, 8, 4, 8, 2, "bf16", 2, "", "half-full last page,wide logits"},
		{"page 4, rank 2", "half of an n tile has no token; eight pages of 16 rows", 128, 4, 2, 4, 4, 2, "bf16", 2, "random:4", "crosses 1024 tokens,mixed lengths,wide logits"},
		{"page 8", "one n tile of tokens", 128, 8, 4, 4, 2, 2, "bf16", 2, "", "crosses 1024 tokens,wide logits"},
		{"rank 1", "rows g + 8 are empty; X and its residual share the k of one product", 128, 16, 1, 4, 4, 2, "bf16", 2, "", "crosses 1024 tokens,wide logits," + nanRecord},
		{"rank 2, eight bits", "bytes instead of nibbles", 128, 16, 2, 8, 4, 2, "bf16", 2, "", "crosses 1024 tokens,wide logits,extreme keys"},
		{"eight bits, group 8", "bytes as columns", 128, 16, 4, 8, 8, 2, "bf16", 2, "", "crosses 1024 tokens," + nanRecord},
		{"two bits", "masks give every fourth dim; codes are odd multiples of a half", 80, 16, 4, 2, 4, 2, "bf16", 2, "", "crosses 1024 tokens,wide logits"},
		{"two bits, group 8", "the same as columns", 128, 16, 4, 2, 8, 2, "bf16", 2, "", "crosses 1024 tokens," + nanRecord},
		{"rank 16", "a page fills 16 rows; two lanes share its tokens", 128, 32, 16, 4, 4, 2, "bf16", 2, "", "half-full last page,wide logits," + nanRecord},
	} {
		t.Run(tc.name, func(t *testing.T) {
			s := immaSpec(tc.dim, tc.page, tc.rank, tc.bits, tc.group, tc.kvs, tc.dtype)
			list := plan.ForFamily(plan.PageScore, s, plan.Targets["sm_90a"]).Candidates
			first := slices.IndexFunc(list, func(c plan.Candidate) bool { return c.Kernel == "kvloom::page_score_imma" })
			direct := tc.rank == 16 || tc.bits == 8 && tc.group <= 4
			if first < 0 || (first > 0) != (tc.rank == 1 || direct) { // of rank 1 and there another form is the default
				t.Fatalf("%s: the default is %s", tc.reason, list[0].ID())
			}
			checkImma(t, s, list[first], tc.sms, tc.schedule, tc.reason, strings.Split(tc.cases, ","))
		})
	}
}

// TestPageScoreImmaChoices runs, for each value of each parameter, a candidate that has it.
func TestPageScoreImmaChoices(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		name  string
		group int
		kvs   int
		rank  int
	}{
		{"query as columns", 4, 8, 4},
		{"query as rows", 16, 2, 4},
	} {
		s := immaSpec(128, 16, tc.rank, 4, tc.group, tc.kvs, "bf16")
		fp := plan.ForFamily(plan.PageScore, s, plan.Targets["sm_90a"])
		seen := map[plan.Param]bool{}
		for _, c := range fp.Candidates {
			if c.Kernel != "kvloom::page_score_imma" {
				continue
			}
			fresh := false
			for _, p := range c.Params {
				fresh = fresh || !seen[p]
				seen[p] = true
			}
			if fresh {
				t.Run(tc.name+" "+c.ID(), func(t *testing.T) {
					checkImma(t, s, c, 2, "", "a value of a parameter", []string{"crosses 1024 tokens", "mixed lengths", "wide logits"})
				})
			}
		}
	}
}
