package specs

import (
	"fmt"
	"reflect"
	"strconv"
	"strings"

	"github.com/goccy/go-yaml/ast"
	"github.com/goccy/go-yaml/token"
)

// refused are keys that people bring from model configs and engines, for what kvloom does not do. Lower case.
var refused = map[string]string{
	"sliding_window":       noSliding,
	"sliding_window_size":  noSliding,
	"window_size":          noSliding,
	"use_sliding_window":   noSliding,
	"attention_chunk_size": noSliding,
	"mla":                  noMLA,
	"kv_lora_rank":         noMLA,
	"q_lora_rank":          noMLA,
	"qk_rope_head_dim":     noMLA,
	"qk_nope_head_dim":     noMLA,
	"v_head_dim":           noMLA,
	"q_len":                noQLen,
	"query_len":            noQLen,
	"query_tokens":         noQLen,
	"speculative_tokens":   noQLen,
}

const (
	noSliding = "sliding windows are not supported; kvloom selects pages of the whole context: leave the key out and use the spec for full-attention layers only"
	noMLA     = "multi-head latent attention (MLA) is not supported; kvloom needs keys and values per KV head (MHA, GQA or MQA)"
	noQLen    = "more than one query token a request (q_len > 1) is not supported; decoding has q_len 1: leave the key out"
)

// wants says what a field holds: "a whole number, 1 to 16".
func (f field) wants() string {
	what := ""
	switch f.Kind {
	case reflect.Struct:
		return "a section with " + keysOf(f)
	case reflect.Slice:
		if f.Elem == reflect.Struct {
			return "a list of sections with " + keysOf(f)
		}
		element := f
		element.Kind = f.Elem
		return "a list of " + strings.TrimPrefix(element.wants(), "a ")
	case reflect.Int:
		what = "a whole number"
	case reflect.Float64:
		what = "a number"
	default:
		what = "text"
	}
	if len(f.Rule.Enum) > 0 {
		return either(f.Rule.Enum)
	}
	if a := f.Rule.allowed(); a != "" {
		return what + ", " + a
	}
	return what
}

func keysOf(f field) string {
	var keys []string
	for _, g := range f.Fields {
		keys = append(keys, g.Key)
	}
	return strings.Join(keys, ", ")
}

// either joins values for a sentence: "bf16 or fp16", "sm_90a, sm_90 or sm_80".
func either(values []string) string {
	last := len(values) - 1
	if last == 0 {
		return values[0]
	}
	return strings.Join(values[:last], ", ") + " or " + values[last]
}

// describe names what stands in the file where something else was wanted.
func describe(n ast.Node) string {
	switch v := n.(type) {
	case nil:
		return "an alias of nothing or of itself"
	case *ast.NullNode:
		return "empty"
	case *ast.MappingNode, *ast.MappingValueNode:
		return "a section"
	case *ast.SequenceNode:
		return "a list"
	case *ast.StringNode:
		if v.Value == "" {
			return "empty text"
		}
		return "the text " + strconv.Quote(clip(v.Value))
	case *ast.LiteralNode:
		return "a block of text"
	case *ast.TagNode:
		return fmt.Sprintf("tagged %s (tags are not read)", clip(v.Start.Value))
	}
	return clip(n.GetToken().Value)
}

// clip keeps a message on a line: a spec may hold anything.
func clip(text string) string {
	return clipTo(text, 40)
}

func clipTo(text string, most int) string {
	runes := []rune(strings.Join(strings.Fields(text), " "))
	if len(runes) > most {
		return string(runes[:most-3]) + "..."
	}
	return string(runes)
}

// position is where a node begins. A block mapping's own token is the colon of its first entry, so its first key is taken.
func position(n ast.Node) *token.Position {
	if kv := pairs(n); len(kv) > 0 && !flow(n) {
		return kv[0].Key.GetToken().Position
	}
	if n == nil || n.GetToken() == nil || n.GetToken().Position == nil {
		return &token.Position{Line: 1, Column: 1}
	}
	return n.GetToken().Position
}

func flow(n ast.Node) bool {
	m, ok := n.(*ast.MappingNode)
	return ok && m.IsFlowStyle
}
