package specs

import (
	"bytes"
	"fmt"
	"reflect"
	"strconv"
	"strings"
)

// schemaLine makes editors complete and check a spec that lies beside the schema.
const schemaLine = "# yaml-language-server: $schema=" + SchemaFile + "\n"

// New returns a spec with every default, for the shape of one attention layer. It is not checked: see Validate.
func New(name string, queryHeads, kvHeads, headDim int) *Spec {
	s := &Spec{}
	setDefaults(reflect.ValueOf(s).Elem(), language)
	s.Name = name
	s.Attention.QueryHeads, s.Attention.KVHeads, s.Attention.HeadDim = queryHeads, kvHeads, headDim
	(&decoder{}).dependentDefaults(s)
	return s
}

// Validate holds a spec made in Go to the rules of spec files. The positions of its Errors are those of Marshal's text.
func Validate(s *Spec) error {
	_, err := Parse("spec", Marshal(s))
	return err
}

// Marshal writes a spec as YAML: the shape and the workloads, and else only what differs from the defaults. Parse gives the
// same spec back.
func Marshal(s *Spec) []byte {
	var b bytes.Buffer
	b.WriteString(schemaLine)
	plain := New(s.Name, s.Attention.QueryHeads, s.Attention.KVHeads, s.Attention.HeadDim)
	plain.Locks.SummaryTokens = s.Cache.PageSize
	plain.Workloads = nil
	plain.Attention.QueryHeads, plain.Attention.KVHeads, plain.Attention.HeadDim, plain.Name = -1, -1, -1, "\x00"
	section(&b, reflect.ValueOf(*s), reflect.ValueOf(*plain), language, "")
	return b.Bytes()
}

// section writes the fields that differ from plain, and reports whether there were any.
func section(b *bytes.Buffer, v, plain reflect.Value, fields []field, indent string) bool {
	wrote := false
	for _, f := range fields {
		x, same := v.Field(f.Index), plain.Field(f.Index)
		if f.Kind == reflect.Struct {
			var inner bytes.Buffer
			if section(&inner, x, same, f.Fields, indent+"  ") {
				fmt.Fprintf(b, "%s%s:\n%s", indent, f.Key, inner.Bytes())
				wrote = true
			}
			continue
		}
		if reflect.DeepEqual(x.Interface(), same.Interface()) || omitted(f, x) {
			continue
		}
		wrote = true
		if f.Elem != reflect.Struct {
			fmt.Fprintf(b, "%s%s: %s\n", indent, f.Key, scalarText(x))
			continue
		}
		fmt.Fprintf(b, "%s%s:\n", indent, f.Key)
		for i := range x.Len() {
			var parts []string
			for _, g := range f.Fields {
				parts = append(parts, g.Key+": "+scalarText(x.Index(i).Field(g.Index)))
			}
			fmt.Fprintf(b, "%s  - {%s}\n", indent, strings.Join(parts, ", "))
		}
	}
	return wrote
}

// omitted are the values that mean "the other one is used": a file cannot say them.
func omitted(f field, x reflect.Value) bool {
	return (f.Path == "dropkv.budget.ratio" || f.Path == "dropkv.budget.tokens" || f.Path == "dropkv.head_budgets.floor") && x.IsZero()
}

func scalarText(x reflect.Value) string {
	switch x.Kind() {
	case reflect.Slice:
		parts := make([]string, x.Len())
		for i := range parts {
			parts[i] = scalarText(x.Index(i))
		}
		return "[" + strings.Join(parts, ", ") + "]"
	case reflect.Int:
		return strconv.FormatInt(x.Int(), 10)
	case reflect.Float64:
		return floatText(x.Float())
	case reflect.String:
		return quoted(x.String())
	}
	panic(fmt.Sprintf("BUG: specs: no text for %s", x.Kind()))
}

// floatText keeps every bit; a number with an exponent needs a point to be a number in all YAML readers.
func floatText(x float64) string {
	text := strconv.FormatFloat(x, 'g', -1, 64)
	if mantissa, exponent, ok := strings.Cut(text, "e"); ok && !strings.Contains(mantissa, ".") {
		return mantissa + ".0e" + exponent
	}
	return text
}

// quoted puts quotes around text that YAML would read as something else: a name such as 405 or 1.5 or true.
func quoted(text string) string {
	for i, r := range text {
		letter := r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r == '_'
		if !letter && (i == 0 || r != '-' && r != '.' && (r < '0' || r > '9')) {
			return strconv.Quote(text)
		}
	}
	switch strings.ToLower(text) {
	case "", "null", "true", "false", "yes", "no", "on", "off", "y", "n":
		return strconv.Quote(text)
	}
	return text
}
