package kernel

import (
	"errors"
	"strings"
	"testing"
)

// TestKiviArguments refuses caches of codes whose parts are missing or out of place, and those parts beside any other cache.
func TestKiviArguments(t *testing.T) {
	model := Model{QueryHeads: 8, KVHeads: 2, HeadDim: 128, PageSize: 16, DType: "kivi4", StoreBytes: 2816, Rank: 4, BasisBits: 4, RecordBytes: 496,
		Combine: "share_average", Slots: 8, SoftmaxScale: 0.1}
	good := KVCache{K: 256, V: 512, BlockTable: 1024, SeqLens: 2048, RowTable: 4096, Store: 8192,
		KBlockStride: 4096, KTokenStride: 128, KHeadStride: 2048, VBlockStride: 4096, VTokenStride: 128, VHeadStride: 2048,
		StoreBlockStride: 5632, StoreHeadStride: 2816, TableStride: 4, Batch: 1, KVHeads: 2, MaxPages: 4}
	for _, tt := range []struct {
		name   string
		change func(*Model, *KVCache)
		want   string
	}{
		{"as it should be", func(*Model, *KVCache) {}, ""},
		{"no store", func(_ *Model, c *KVCache) { c.Store = 0 }, "cache.store is null"},
		{"store between words", func(_ *Model, c *KVCache) { c.Store = 8200 }, "cache.store is 0x2008"},
		{"no row table", func(_ *Model, c *KVCache) { c.RowTable = 0 }, "cache.row_table is null"},
		{"records overlap", func(_ *Model, c *KVCache) { c.StoreHeadStride = 2800 }, "cache.store_head_stride is 2800"},
		{"blocks overlap", func(_ *Model, c *KVCache) { c.StoreBlockStride = 2048 }, "cache.store_block_stride is 2048"},
		{"a row table beside bf16", func(m *Model, _ *KVCache) { m.DType, m.StoreBytes = "bf16", 0 }, "cache.row_table is given"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			m, c := model, good
			tt.change(&m, &c)
			s := &Set{bundle: &Bundle{Model: m}}
			err := s.CheckKVQuantize(&KVQuantizeArgs{Cache: c, QuantizedLens: 64, Workspace: 128})
			var fault *ArgumentError
			switch {
			case tt.want == "" && err != nil, tt.want != "" && (!errors.As(err, &fault) || !strings.Contains(err.Error(), tt.want)):
				t.Errorf("CheckKVQuantize = %v, want %q", err, tt.want)
			}
		})
	}
}
