package bench

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/kvloom/kvloom/specs"
)

// cell is one shape of the breadth table: the shape in the middle with one axis varied. Where a value cannot stand beside the others, what
// else changes is part of the cell: rank 16 needs pages of more than 16 tokens, pages of 4 a rank below 4.
type cell struct {
	axis                    string
	group, dim, page        int
	rank, bits              int
	dtype                   string
	value                   string // of the axis
	beside                  string // what else changed
	context, batch, kvHeads int
}

// middle is the shape that is varied: 8 KV heads at 512K tokens.
var middle = cell{group: 4, dim: 128, page: 16, rank: 4, bits: 4, dtype: "bf16", context: 512 << 10, batch: 1, kvHeads: 8}

// breadthCells are all cells, axis by axis.
func breadthCells() (cells []cell) {
	add := func(axis, value string, change func(*cell)) {
		c := middle
		c.axis, c.value = axis, value
		change(&c)
		cells = append(cells, c)
	}
	numbers := func(axis string, values []int, change func(*cell, int)) {
		for _, v := range values {
			add(axis, strconv.Itoa(v), func(c *cell) { change(c, v) })
		}
	}
	numbers("group", []int{1, 2, 4, 5, 7, 8, 12, 16, 24, 64}, func(c *cell, v int) { c.group = v })
	numbers("head dim", []int{64, 80, 96, 112, 128, 192, 256}, func(c *cell, v int) { c.dim = v })
	numbers("page", []int{4, 8, 16, 32, 64, 128}, func(c *cell, v int) {
		if c.page = v; v == 4 {
			c.rank, c.beside = 2, "rank 2"
		}
	})
	numbers("rank", []int{1, 2, 4, 8, 16}, func(c *cell, v int) {
		if c.rank = v; v == 16 {
			c.page, c.beside = 32, "page 32"
		}
	})
	numbers("bits", []int{2, 4, 8, 16}, func(c *cell, v int) { c.bits = v })
	for _, v := range []string{"bf16", "fp16", "fp8_e4m3", "kivi4", "kivi2"} {
		add("cache", v, func(c *cell) { c.dtype = v })
	}
	return cells
}

// spec is the cell as a spec, by way of the loader, which refuses what is not built.
func (c cell) spec() (*specs.Spec, error) {
	eviction := "dropkv: {budget: {ratio: 0.05}}\n"
	if !(specs.Cache{DType: c.dtype}).Evicts() {
		eviction = "" // it may not be asked for
	}
	text := fmt.Sprintf(`name: breadth-d%[1]d-g%[2]d-p%[3]d-r%[4]d-b%[5]d-%[6]s
attention: {query_heads: %[7]d, kv_heads: %[8]d, head_dim: %[1]d}
cache: {dtype: %[9]s, page_size: %[3]d}
locks: {rank: %[4]d, basis_bits: %[5]d, budget_tokens: 2048}
targets: [sm_90a]
workloads: [{context: %[10]d, batch: %[11]d}]
%[12]s`, c.dim, c.group, c.page, c.rank, c.bits, strings.ReplaceAll(c.dtype, "_", "-"), c.group*c.kvHeads, c.kvHeads, c.dtype, c.context, c.batch, eviction)
	return specs.Parse("breadth", []byte(text))
}

// breadthJobs measure every cell that is built.
func breadthJobs() (jobs []Job, err error) {
	seen := map[string]bool{}
	for _, c := range breadthCells() {
		s, err := c.spec()
		if err != nil || seen[s.Name] { // not built: the table says so
			continue
		}
		seen[s.Name] = true
		jobs = append(jobs, Job{Spec: s, Workload: s.Workloads[0], Families: decoding, Brisk: true})
	}
	return jobs, nil
}
