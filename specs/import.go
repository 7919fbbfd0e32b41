package specs

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"strings"
)

// Imported is a spec made from a model's config, with what a person should know of how.
type Imported struct {
	Spec  *Spec
	Notes []string
}

// Import makes a spec of a Hugging Face config.json. What kvloom cannot serve (MLA, sliding windows in use) and what is missing
// from the config is refused by name, all at once.
func Import(name string, config []byte) (*Imported, error) {
	var top map[string]any
	decode := json.NewDecoder(bytes.NewReader(config))
	decode.UseNumber()
	if err := decode.Decode(&top); err != nil {
		return nil, fmt.Errorf("not a config.json: %w", err)
	}
	c := newConfig(top)
	c.refuse()
	s := c.spec(name)
	if len(c.faults) > 0 {
		return nil, errors.Join(c.faults...)
	}
	if err := Validate(s); err != nil {
		var faults Errors
		if errors.As(err, &faults) {
			// Positions of a text that the person never saw say nothing.
			for _, f := range faults {
				c.faults = append(c.faults, errors.New(f.Message))
			}
			err = errors.Join(c.faults...)
		}
		return nil, fmt.Errorf("the model has no spec: %w", err)
	}
	return &Imported{Spec: s, Notes: c.notes}, nil
}

// config looks up keys of a language model's config; multi-modal ones keep theirs in a section of their own.
type config struct {
	values []map[string]any // inner first
	faults []error
	notes  []string
}

func newConfig(top map[string]any) *config {
	c := &config{}
	for _, key := range []string{"text_config", "llm_config", "language_config", "thinker_config"} {
		inner, ok := top[key].(map[string]any)
		if !ok {
			continue
		}
		if text, ok := inner["text_config"].(map[string]any); ok { // thinker_config nests once more
			c.values = append(c.values, text)
		}
		c.values = append(c.values, inner)
		c.notes = append(c.notes, "multi-modal config: the figures are of its "+key)
		break
	}
	c.values = append(c.values, top)
	return c
}

// find returns the first of several spellings that is there and not null.
func (c *config) find(keys ...string) (any, string) {
	for _, values := range c.values {
		for _, key := range keys {
			if v := values[key]; v != nil {
				return v, key
			}
		}
	}
	return nil, ""
}

func (c *config) fault(format string, args ...any) {
	c.faults = append(c.faults, fmt.Errorf(format, args...))
}

// number returns a number, or 0 if there is none; configs write 0 for "off".
func (c *config) number(keys ...string) float64 {
	v, key := c.find(keys...)
	if v == nil {
		return 0
	}
	n, ok := v.(json.Number)
	f, err := n.Float64()
	if !ok || err != nil || f < 0 {
		c.fault("%s is %s; want a positive number", key, clip(fmt.Sprint(v)))
		return 0
	}
	return f
}

func (c *config) whole(keys ...string) int {
	f := c.number(keys...)
	if f != math.Trunc(f) || f > 1<<31 {
		_, key := c.find(keys...)
		c.fault("%s is %s; want a whole number", key, short(f))
		return 0
	}
	return int(f)
}

func (c *config) is(key string) bool {
	v, _ := c.find(key)
	b, _ := v.(bool)
	return b
}

// refuse names what the model does that kvloom does not.
func (c *config) refuse() {
	if _, key := c.find("kv_lora_rank", "q_lora_rank"); key != "" {
		c.fault("%s: %s", key, noMLA)
	}
	if v, _ := c.find("layer_types"); v != nil {
		c.refuseLayers(v)
		return
	}
	if v, key := c.find("attention_chunk_size"); v != nil {
		c.fault("%s %v: attention in chunks is a window too; %s", key, v, noSliding)
	}
	v, key := c.find("sliding_window", "sliding_window_size")
	if v == nil || v == false {
		return
	}
	if use, _ := c.find("use_sliding_window"); use == false {
		return
	}
	window, longest := c.whole(key), c.whole("max_position_embeddings")
	if window == 0 {
		return
	}
	first, layers := c.whole("max_window_layers"), c.whole("num_hidden_layers")
	if longest > 0 && window >= longest || layers > 0 && first >= layers {
		return // never reached: Phi-3 and Qwen2 configs carry such figures
	}
	c.fault("%s %d: %s", key, window, noSliding)
}

// refuseLayers counts the layers of a config that lists their kinds.
func (c *config) refuseLayers(v any) {
	layers, _ := v.([]any)
	counts := map[string]int{}
	for _, kind := range layers {
		counts[fmt.Sprint(kind)]++
	}
	for _, kind := range []string{"sliding_attention", "chunked_attention"} {
		if counts[kind] > 0 {
			c.fault("layer_types has %d of %d layers with %s: %s", counts[kind], len(layers), kind, noSliding)
			return
		}
	}
	if full := counts["full_attention"]; full < len(layers) {
		c.notes = append(c.notes, fmt.Sprintf("the spec is of the %d full-attention layers of %d", full, len(layers)))
	}
}

func (c *config) spec(name string) *Spec {
	heads := c.whole("num_attention_heads", "n_head", "n_heads", "num_heads")
	if heads == 0 {
		c.fault("num_attention_heads is missing: this is no config of a transformer that kvloom knows")
		return nil
	}
	s := New(name, heads, c.kvHeads(heads), c.headDim(heads))
	if x := c.number("query_pre_attn_scalar"); x > 0 {
		s.Attention.SoftmaxScale = 1 / math.Sqrt(x)
	} else if x := c.number("attention_multiplier"); x > 0 {
		s.Attention.SoftmaxScale = x
	}
	s.Attention.LogitSoftcap = c.number("attn_logit_softcapping")
	s.Cache.DType = c.dtype()
	longest := c.whole("max_position_embeddings", "seq_length", "n_positions", "max_seq_len")
	if longest == 0 {
		longest = 131072
		c.notes = append(c.notes, "no max_position_embeddings: the workloads assume 131072 tokens")
	}
	s.Workloads = pointsUpTo(longest)
	if kept := 2 * s.Cache.PageSize; s.Locks.BudgetTokens >= longest/4 {
		s.Locks.BudgetTokens = max(longest/32/s.Cache.PageSize*s.Cache.PageSize, kept)
		c.notes = append(c.notes, fmt.Sprintf("budget_tokens is %d, for the context is short", s.Locks.BudgetTokens))
	}
	return s
}

func (c *config) kvHeads(heads int) int {
	if c.is("multi_query_attention") { // ChatGLM
		return c.whole("multi_query_group_num")
	}
	if c.is("multi_query") && !c.is("new_decoder_architecture") { // Falcon, StarCoder
		return 1
	}
	if n := c.whole("num_key_value_heads", "num_kv_heads", "n_kv_heads"); n > 0 {
		return n
	}
	c.notes = append(c.notes, "no num_key_value_heads: every query head has its own KV head")
	return heads
}

func (c *config) headDim(heads int) int {
	if n := c.whole("head_dim", "kv_channels", "attention_head_dim"); n > 0 {
		return n
	}
	hidden := c.whole("hidden_size", "n_embd", "d_model")
	switch {
	case hidden == 0:
		c.fault("neither head_dim nor hidden_size is there")
	case hidden%heads != 0:
		c.fault("no head_dim, and hidden_size %d is no multiple of %d heads", hidden, heads)
	}
	return hidden / heads
}

func (c *config) dtype() string {
	v, key := c.find("torch_dtype", "dtype")
	switch v {
	case "bfloat16":
		return "bf16"
	case "float16":
		return "fp16"
	case nil:
		c.notes = append(c.notes, "no torch_dtype: cache.dtype is bf16")
	default:
		c.notes = append(c.notes, fmt.Sprintf("%s is %s: cache.dtype is bf16, for engines keep the cache in 16 bits", key, clip(fmt.Sprint(v))))
	}
	return "bf16"
}

// pointsUpTo chooses workloads that fit a context: the longest powers of two, batch 1, and one batch of 8 where it is short.
func pointsUpTo(longest int) []Workload {
	var points []Workload
	for _, n := range []int{32768, 131072, 524288, 1048576} {
		if n <= longest {
			points = append(points, Workload{Context: n, Batch: 1})
		}
	}
	if len(points) == 0 {
		points = []Workload{{Context: longest, Batch: 1}}
	}
	if last := points[len(points)-1].Context; last <= 131072 {
		points = append(points, Workload{Context: last, Batch: 8})
	}
	return points
}

// NameFor makes a legal spec name of a model's: "meta-llama/Llama-3.1-8B" becomes "llama-3.1-8b".
func NameFor(model string) string {
	model = model[strings.LastIndexAny(model, `/\`)+1:]
	name := strings.Map(func(r rune) rune {
		switch {
		case r >= 'a' && r <= 'z', r >= '0' && r <= '9', r == '.', r == '-':
			return r
		case r >= 'A' && r <= 'Z':
			return r + 'a' - 'A'
		}
		return '-'
	}, model)
	name = strings.TrimLeft(name, ".-")
	return name[:min(len(name), 64)]
}
