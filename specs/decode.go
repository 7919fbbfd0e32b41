package specs

import (
	"fmt"
	"math"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/goccy/go-yaml/ast"
	"github.com/goccy/go-yaml/token"
)

// decoder fills a Spec from a YAML tree and goes on after every fault: a strict decoder stops at its first.
type decoder struct {
	file     string
	problems Errors
	at       map[string]*token.Position // where each path's value stands, or a section's key
	bad      map[string]bool            // paths whose value is not to be trusted by later checks
	anchors  map[string]ast.Node
	disk     bool // files that the spec names are looked at
}

func newDecoder(file string, root ast.Node) *decoder {
	d := &decoder{file: file, at: map[string]*token.Position{}, bad: map[string]bool{}, anchors: map[string]ast.Node{}}
	ast.Walk(anchorFinder(d.anchors), root)
	return d
}

// anchorFinder collects the nodes that aliases may name.
type anchorFinder map[string]ast.Node

// Visit implements ast.Visitor.
func (f anchorFinder) Visit(n ast.Node) ast.Visitor {
	if a, ok := n.(*ast.AnchorNode); ok && a.Name != nil {
		f[a.Name.GetToken().Value] = a.Value
	}
	return f
}

// plain takes anchors and aliases off a node. A chain of aliases is followed eight times, for it may be a circle.
func (d *decoder) plain(n ast.Node) ast.Node {
	for range 8 {
		switch v := n.(type) {
		case *ast.AnchorNode:
			n = v.Value
		case *ast.AliasNode:
			n = d.anchors[v.Value.GetToken().Value]
		default:
			return n
		}
	}
	return nil
}

func (d *decoder) add(pos *token.Position, format string, args ...any) {
	d.problems = append(d.problems, Problem{d.file, pos.Line, pos.Column, fmt.Sprintf(format, args...)})
}

// fault reports a value and keeps later checks away from it.
func (d *decoder) fault(f field, pos *token.Position, format string, args ...any) {
	d.bad[f.Path] = true
	d.add(pos, f.Path+" "+format, args...)
}

// section decodes a mapping into a struct. where is the section's key, for what is missing inside.
func (d *decoder) section(n ast.Node, into reflect.Value, fields []field, path string, where *token.Position) {
	seen, meant := map[string]*token.Position{}, map[string]bool{}
	for _, kv := range pairs(n) {
		key := kv.Key.GetToken()
		name := key.Value
		if s, ok := kv.Key.(*ast.StringNode); ok {
			name = s.Value
		}
		i := slices.IndexFunc(fields, func(f field) bool { return f.Key == name })
		if i < 0 {
			meant[d.unknown(name, key.Position, fields, path)] = true
			continue
		}
		if first := seen[name]; first != nil {
			d.fault(fields[i], key.Position, "is given twice; first on line %d: keep one", first.Line)
			continue
		}
		seen[name] = key.Position
		d.value(kv.Value, into.Field(fields[i].Index), fields[i], key.Position)
	}
	for _, f := range fields {
		switch {
		case !f.Rule.Required || seen[f.Key] != nil:
		case meant[f.Key]: // misspelt, and said so already
			d.bad[f.Path] = true
		default:
			d.fault(f, where, "is missing%s", hint(f.Rule))
		}
	}
}

func hint(r rule) string {
	if a := r.allowed(); a != "" {
		return "; allowed: " + a
	}
	return ""
}

// pairs are the entries of a mapping, whichever way the parser wrapped them.
func pairs(n ast.Node) []*ast.MappingValueNode {
	switch m := n.(type) {
	case *ast.MappingNode:
		return m.Values
	case *ast.MappingValueNode:
		return []*ast.MappingValueNode{m}
	}
	return nil
}

// unknown reports a key that is not in the language: refused by name where we know it, else with the nearest that is, which it
// returns.
func (d *decoder) unknown(name string, pos *token.Position, fields []field, path string) string {
	if why, ok := refused[strings.ToLower(name)]; ok {
		d.add(pos, "%s: %s", name, why)
		return ""
	}
	in := ""
	if path != "" {
		in = " in " + path
	}
	var keys []string
	for _, f := range fields {
		keys = append(keys, f.Key)
	}
	if near, ok := Nearest(name, keys); ok {
		d.add(pos, "unknown key %q%s; did you mean %q?", clip(name), in, near)
		return near
	}
	d.add(pos, "unknown key %q%s; known keys: %s", clip(name), in, strings.Join(keys, ", "))
	return ""
}

// value decodes one field. key is where its key stands: the place of a section, and of a value that is not there.
func (d *decoder) value(n ast.Node, into reflect.Value, f field, key *token.Position) {
	d.at[f.Path] = key
	raw := n
	n = d.plain(n)
	if n == nil {
		d.fault(f, position(raw), "is %s; want %s", describe(nil), f.wants())
		return
	}
	if n.Type() == ast.NullType {
		remedy := ", or leave the key out for the default"
		if f.Rule.Required {
			remedy = ""
		}
		d.fault(f, key, "has no value; want %s%s", f.wants(), remedy)
		return
	}
	if f.Kind == reflect.Struct {
		if pairs(n) == nil && n.Type() != ast.MappingType {
			d.fault(f, position(raw), "is %s; want %s", describe(n), f.wants())
			return
		}
		d.section(n, into, f.Fields, f.Path, key)
		return
	}
	d.at[f.Path] = position(raw)
	if f.Kind == reflect.Slice {
		d.list(n, into, f, key)
		return
	}
	d.scalar(n, into, f, position(raw))
}

func (d *decoder) list(n ast.Node, into reflect.Value, f field, key *token.Position) {
	seq, ok := n.(*ast.SequenceNode)
	if !ok {
		d.fault(f, position(n), "is %s; want %s", describe(n), f.wants())
		return
	}
	d.at[f.Path] = key
	if len(seq.Values) < f.Rule.MinItems {
		d.fault(f, key, "is an empty list; give at least one, or leave the key out for the default")
		return
	}
	out := reflect.MakeSlice(into.Type(), len(seq.Values), len(seq.Values))
	element := f
	element.Kind = f.Elem
	for i, v := range seq.Values {
		plain := d.plain(v)
		if f.Elem != reflect.Struct {
			d.element(plain, v, out.Index(i), element)
			continue
		}
		setDefaults(out.Index(i), f.Fields)
		if plain == nil || pairs(plain) == nil {
			d.fault(f, position(v), "holds %s; want a section with %s", describe(plain), keysOf(f))
			continue
		}
		d.section(plain, out.Index(i), f.Fields, f.Path, position(v))
	}
	into.Set(out)
	d.unique(seq, f)
}

func (d *decoder) element(n, raw ast.Node, into reflect.Value, f field) {
	if n == nil || n.Type() == ast.NullType {
		d.fault(f, position(raw), "holds an empty element; want %s", f.wants())
		return
	}
	d.scalar(n, into, f, position(raw))
}

// unique reports elements that are there already. Sections compare as a whole by their values, in check.go.
func (d *decoder) unique(seq *ast.SequenceNode, f field) {
	if !f.Rule.Unique {
		return
	}
	seen := map[string]bool{}
	for _, v := range seq.Values {
		n := d.plain(v)
		if n == nil {
			continue
		}
		if text := n.GetToken().Value; seen[text] {
			d.fault(f, position(v), "holds %s twice; keep one", clip(text))
		} else {
			seen[text] = true
		}
	}
}

// scalar decodes text or a number and checks it against the field's rule.
func (d *decoder) scalar(n ast.Node, into reflect.Value, f field, pos *token.Position) {
	text, ok := "", false
	switch f.Kind {
	case reflect.String:
		if text, ok = textOf(n, f.Rule); ok {
			into.SetString(text)
			ok = len(f.Rule.Enum) == 0 || slices.Contains(f.Rule.Enum, text)
		}
	case reflect.Int:
		var i int64
		if i, ok = wholeOf(n); ok {
			into.SetInt(i)
			text, ok = fmt.Sprint(i), f.Rule.inRange(float64(i))
		}
	case reflect.Float64:
		var x float64
		if x, ok = numberOf(n); ok {
			into.SetFloat(x)
			text, ok = short(x), f.Rule.inRange(x)
		}
	default:
		panic(fmt.Sprintf("BUG: specs: %s has kind %s", f.Path, f.Kind))
	}
	switch {
	case text == "":
		d.fault(f, pos, "is %s; want %s", describe(n), f.wants())
	case !ok:
		d.fault(f, pos, "is %s; allowed: %s%s", clip(text), f.Rule.allowed(), closest(text, f.Rule))
	case !f.Rule.isBuilt(text):
		d.add(pos, "%s %s is not built; use %s%s", f.Path, text, either(f.Rule.Built), whyNot[f.Path])
	}
}

// whyNot is where a decision against values is written down.
var whyNot = map[string]string{"locks.scan": " (docs/rationale.md says why; kvloom quality --scan measures it)"}

// closest suggests the value that a misspelt one was meant to be. Where there are digits, a near value is another value.
func closest(text string, r rule) string {
	if len(r.Enum) == 0 || strings.ContainsAny(text, "0123456789") {
		return ""
	}
	if near, ok := Nearest(text, r.Enum); ok {
		return fmt.Sprintf("; did you mean %s?", near)
	}
	return ""
}

// textOf is a node's text. Where numbers are among a field's values (scale_group: 16) a bare number is text too.
func textOf(n ast.Node, r rule) (string, bool) {
	switch v := n.(type) {
	case *ast.StringNode:
		return v.Value, v.Value != ""
	case *ast.IntegerNode:
		if len(r.Enum) > 0 {
			return v.GetToken().Value, true
		}
	}
	return "", false
}

func wholeOf(n ast.Node) (int64, bool) {
	i, ok := n.(*ast.IntegerNode)
	if !ok {
		return 0, false
	}
	switch v := i.Value.(type) {
	case int64:
		return v, true
	case uint64:
		return int64(min(v, math.MaxInt64)), true
	}
	return 0, false
}

var exponent = regexp.MustCompile(`^[-+]?[0-9]+[eE][-+]?[0-9]+$`)

func numberOf(n ast.Node) (float64, bool) {
	switch v := n.(type) {
	case *ast.FloatNode:
		return v.Value, true
	case *ast.StringNode:
		// YAML 1.2 has 1e-6 as a number; the parser follows 1.1, which wants a point in it.
		if v.GetToken().Type == token.StringType && exponent.MatchString(v.Value) {
			x, err := strconv.ParseFloat(v.Value, 64)
			return x, err == nil
		}
		return 0, false
	}
	i, ok := wholeOf(n)
	return float64(i), ok
}
