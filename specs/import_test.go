package specs

import (
	"math"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestImport(t *testing.T) {
	// Excerpts of public configs: the keys that Import reads, with the models' own values.
	tests := []struct {
		name, reason, config string
		want                 func(*Spec)
		notes                []string
	}{
		{"llama-3.1-8b", "head_dim is absent: hidden_size / heads",
			`{"architectures": ["LlamaForCausalLM"], "hidden_size": 4096, "num_attention_heads": 32, "num_key_value_heads": 8, "max_position_embeddings": 131072, "torch_dtype": "bfloat16"}`,
			func(s *Spec) { s.Workloads = []Workload{{32768, 1}, {131072, 1}, {131072, 8}} }, nil},
		{"qwen3-4b", "head_dim 128 is not hidden_size / heads, which is 80",
			`{"head_dim": 128, "hidden_size": 2560, "num_attention_heads": 32, "num_key_value_heads": 8, "max_position_embeddings": 40960, "torch_dtype": "bfloat16", "sliding_window": null, "use_sliding_window": false, "max_window_layers": 36}`,
			func(s *Spec) { s.Workloads = []Workload{{32768, 1}, {32768, 8}} }, nil},
		{"glm-4-9b-chat", "ChatGLM spells it its own way",
			`{"hidden_size": 4096, "kv_channels": 128, "multi_query_attention": true, "multi_query_group_num": 2, "num_attention_heads": 32, "seq_length": 131072, "torch_dtype": "bfloat16"}`,
			func(s *Spec) { s.Attention.KVHeads = 2; s.Workloads = []Workload{{32768, 1}, {131072, 1}, {131072, 8}} }, nil},
		{"deepseek-r1-distill-qwen-32b", "a sliding window that is written and switched off",
			`{"hidden_size": 5120, "num_attention_heads": 40, "num_key_value_heads": 8, "max_position_embeddings": 131072, "torch_dtype": "bfloat16", "sliding_window": 131072, "use_sliding_window": false, "max_window_layers": 64, "num_hidden_layers": 64}`,
			func(s *Spec) {
				s.Attention.QueryHeads = 40
				s.Workloads = []Workload{{32768, 1}, {131072, 1}, {131072, 8}}
			}, nil},
		{"phi-3-mini-128k", "a sliding window longer than the context is never reached",
			`{"hidden_size": 3072, "num_attention_heads": 32, "num_key_value_heads": 32, "max_position_embeddings": 131072, "torch_dtype": "bfloat16", "sliding_window": 262144}`,
			func(s *Spec) {
				s.Attention = Attention{32, 32, 96, 1 / math.Sqrt(96), 0}
				s.Workloads = []Workload{{32768, 1}, {131072, 1}, {131072, 8}}
			}, nil},
		{"smollm2-135m", "a short context gets a budget that leaves something to select",
			`{"hidden_size": 576, "num_attention_heads": 9, "num_key_value_heads": 3, "max_position_embeddings": 8192, "torch_dtype": "bfloat16"}`,
			func(s *Spec) {
				s.Attention = Attention{9, 3, 64, 0.125, 0}
				s.Locks.BudgetTokens = 256
				s.Workloads = []Workload{{8192, 1}, {8192, 8}}
			}, []string{"budget_tokens is 256, for the context is short"}},
		{"soft-cap", "Gemma 2's cap and scale, with its windows taken away",
			`{"num_attention_heads": 32, "num_key_value_heads": 16, "head_dim": 128, "query_pre_attn_scalar": 144, "attn_logit_softcapping": 50.0, "max_position_embeddings": 131072, "dtype": "float16"}`,
			func(s *Spec) {
				s.Attention = Attention{32, 16, 128, 1.0 / 12, 50}
				s.Cache.DType = "fp16"
				s.Workloads = []Workload{{32768, 1}, {131072, 1}, {131072, 8}}
			}, nil},
		{"granite", "a scale of its own", `{"num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": 128, "attention_multiplier": 0.0078125, "max_position_embeddings": 131072, "torch_dtype": "bfloat16"}`,
			func(s *Spec) {
				s.Attention.SoftmaxScale = 0.0078125
				s.Workloads = []Workload{{32768, 1}, {131072, 1}, {131072, 8}}
			}, nil},
		{"multi-modal", "the text model's figures, not the image encoder's",
			`{"text_config": {"hidden_size": 4096, "num_attention_heads": 32, "num_key_value_heads": 8, "max_position_embeddings": 131072}, "vision_config": {"hidden_size": 1280, "num_attention_heads": 16}, "torch_dtype": "bfloat16"}`,
			func(s *Spec) { s.Workloads = []Workload{{32768, 1}, {131072, 1}, {131072, 8}} }, []string{"multi-modal config: the figures are of its text_config"}},
		{"old", "what is not said is assumed, and said",
			`{"n_embd": 4096, "n_head": 32, "torch_dtype": "float32"}`,
			func(s *Spec) {
				s.Attention.KVHeads = 32
				s.Workloads = []Workload{{32768, 1}, {131072, 1}, {131072, 8}}
			},
			[]string{"no num_key_value_heads: every query head has its own KV head",
				"torch_dtype is float32: cache.dtype is bf16, for engines keep the cache in 16 bits",
				"no max_position_embeddings: the workloads assume 131072 tokens"}},
		{"falcon", "multi_query wins over a count that only the newer architecture uses", `{"hidden_size": 4096, "num_attention_heads": 32, "multi_query": true, "num_kv_heads": 32, "max_position_embeddings": 131072, "torch_dtype": "bfloat16"}`,
			func(s *Spec) { s.Attention.KVHeads = 1; s.Workloads = []Workload{{32768, 1}, {131072, 1}, {131072, 8}} }, nil},
		{"no-window", "zero switches it off", `{"hidden_size": 4096, "num_attention_heads": 32, "num_key_value_heads": 8, "max_position_embeddings": 131072, "torch_dtype": "bfloat16", "sliding_window": 0}`,
			func(s *Spec) { s.Workloads = []Workload{{32768, 1}, {131072, 1}, {131072, 8}} }, nil},
		{"hybrid", "linear layers keep no keys", `{"hidden_size": 4096, "num_attention_heads": 32, "num_key_value_heads": 8, "max_position_embeddings": 131072, "torch_dtype": "bfloat16", "layer_types": ["linear_attention", "linear_attention", "full_attention"]}`,
			func(s *Spec) { s.Workloads = []Workload{{32768, 1}, {131072, 1}, {131072, 8}} }, []string{"the spec is of the 1 full-attention layers of 3"}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			want := defaultSpec
			want.Name = tt.name
			tt.want(&want)
			got, err := Import(tt.name, []byte(tt.config))
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(&want, got.Spec); diff != "" {
				t.Errorf("%s (-want +got)\n%s", tt.reason, diff)
			}
			if diff := cmp.Diff(tt.notes, got.Notes); diff != "" {
				t.Errorf("notes (-want +got)\n%s", diff)
			}
			if again, err := Parse(tt.name+".yaml", Marshal(got.Spec)); err != nil {
				t.Errorf("the written spec: %v", err)
			} else if diff := cmp.Diff(got.Spec, again); diff != "" {
				t.Errorf("the written spec differs (-want +got)\n%s", diff)
			}
		})
	}
}

func TestImportRefuses(t *testing.T) {
	const shape = `"hidden_size": 4096, "num_attention_heads": 32, "num_key_value_heads": 8, "max_position_embeddings": 131072, "torch_dtype": "bfloat16"`
	tests := []struct{ name, reason, config, want string }{
		{"MLA", "DeepSeek V2 and V3", `{` + shape + `, "kv_lora_rank": 512}`, "kv_lora_rank: " + noMLA},
		{"sliding window", "Mistral 7B v0.1", `{` + shape + `, "sliding_window": 4096}`, "sliding_window 4096: " + noSliding},
		{"sliding window in use", "Qwen2 with some layers below max_window_layers", `{` + shape + `, "sliding_window": 4096, "use_sliding_window": true, "max_window_layers": 28, "num_hidden_layers": 32}`, "sliding_window 4096: " + noSliding},
		{"sliding window in every layer", "max_window_layers 0 is a value", `{` + shape + `, "sliding_window": 4096, "use_sliding_window": true, "max_window_layers": 0, "num_hidden_layers": 32}`, "sliding_window 4096: " + noSliding},
		{"negative", "", `{"num_attention_heads": -1, "head_dim": 128}`, "num_attention_heads is -1; want a positive number\nnum_attention_heads is missing: this is no config of a transformer that kvloom knows"},
		{"sliding layers", "Gemma 3", `{` + shape + `, "sliding_window": 1024, "layer_types": ["sliding_attention", "full_attention"]}`,
			"layer_types has 1 of 2 layers with sliding_attention: " + noSliding},
		{"chunks", "Llama 4", `{` + shape + `, "attention_chunk_size": 8192}`, "attention_chunk_size 8192: attention in chunks is a window too; " + noSliding},
		{"two refusals", "all at once", `{` + shape + `, "kv_lora_rank": 512, "sliding_window": 4096}`, "kv_lora_rank: " + noMLA + "\nsliding_window 4096: " + noSliding},
		{"no transformer", "", `{"model_type": "resnet"}`, "num_attention_heads is missing: this is no config of a transformer that kvloom knows"},
		{"no size", "", `{"num_attention_heads": 32}`, "neither head_dim nor hidden_size is there"},
		{"hidden size", "", `{"num_attention_heads": 32, "hidden_size": 4100}`, "no head_dim, and hidden_size 4100 is no multiple of 32 heads"},
		{"wrong type", "", `{"num_attention_heads": "32", "head_dim": 128}`, "num_attention_heads is 32; want a positive number\nnum_attention_heads is missing: this is no config of a transformer that kvloom knows"},
		{"fraction", "", `{"num_attention_heads": 32.5, "head_dim": 128}`, "num_attention_heads is 32.5; want a whole number\nnum_attention_heads is missing: this is no config of a transformer that kvloom knows"},
		{"head_dim 72", "the spec's own rules hold", `{"num_attention_heads": 16, "num_key_value_heads": 16, "hidden_size": 1152, "max_position_embeddings": 131072, "torch_dtype": "bfloat16"}`,
			"the model has no spec: attention.head_dim is 72; allowed: 64, 80, 96, 112, 128, 192, 256"},
		{"D3", "", `{"num_attention_heads": 7, "num_key_value_heads": 4, "head_dim": 128}`,
			"the model has no spec: attention.kv_heads 4 does not divide query_heads 7; every KV head serves the same whole number of query heads, 1 to 64"},
		{"not JSON", "", `hello`, "not a config.json: invalid character 'h' looking for beginning of value"},
		{"a list", "", `[1]`, "not a config.json: json: cannot unmarshal array into Go value of type map[string]interface {}"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			got, err := Import("x", []byte(tt.config))
			if err == nil {
				t.Fatalf("Import = %+v, want an error: %s", got.Spec, tt.reason)
			}
			text := strings.ReplaceAll(err.Error(), "map[string]any", "map[string]interface {}")
			if diff := cmp.Diff(tt.want, text); diff != "" {
				t.Errorf("%s (-want +got)\n%s", tt.reason, diff)
			}
		})
	}
}

func TestNameFor(t *testing.T) {
	for model, want := range map[string]string{
		"meta-llama/Llama-3.1-8B": "llama-3.1-8b", "a_b c": "a-b-c", "": "", ".hidden": "hidden", "x/": "", strings.Repeat("n", 99): strings.Repeat("n", 64), "größe": "gr--e",
	} {
		if got := NameFor(model); got != want {
			t.Errorf("NameFor(%q) = %q, want %q", model, got, want)
		}
	}
}
