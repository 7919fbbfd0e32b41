package specs

import (
	"fmt"
	"reflect"
	"slices"
	"strconv"
	"strings"
)

// field is one key of the spec language, read from the struct tags.
type field struct {
	Key    string
	Path   string // "locks.rank"; the elements of a list have the list's path
	Index  int    // of the struct field
	Kind   reflect.Kind
	Elem   reflect.Kind // of a list
	Rule   rule
	Fields []field // of a section or of a list of sections
}

// rule is what one value may be. A list's rule holds for its elements, except MinItems and Unique.
type rule struct {
	Required, Unique bool
	MinItems         int
	Enum             []string
	Built            []string // values with kernels today; empty: all
	Min, Max, Above  *float64 // Above: exclusive minimum
	Default          string
}

// language is the whole spec language. Computed once: the types do not change.
var language = fieldsOf(reflect.TypeFor[Spec](), "")

func fieldsOf(t reflect.Type, prefix string) []field {
	var fields []field
	for i := range t.NumField() {
		sf := t.Field(i)
		if sf.Tag.Get("yaml") == "-" {
			continue // no key of a file
		}
		f := field{Key: sf.Tag.Get("yaml"), Index: i, Kind: sf.Type.Kind(), Rule: ruleOf(sf)}
		f.Path = strings.TrimPrefix(prefix+"."+f.Key, ".")
		inner := sf.Type
		if f.Kind == reflect.Slice {
			inner = sf.Type.Elem()
			f.Elem = inner.Kind()
		}
		if inner.Kind() == reflect.Struct {
			f.Fields = fieldsOf(inner, f.Path)
		}
		fields = append(fields, f)
	}
	return fields
}

func ruleOf(sf reflect.StructField) rule {
	var r rule
	if built := sf.Tag.Get("built"); built != "" {
		r.Built = strings.Split(built, ",")
	}
	for _, tag := range strings.Split(sf.Tag.Get("jsonschema"), ",") {
		name, value, _ := strings.Cut(tag, "=")
		switch name {
		case "required":
			r.Required = true
		case "uniqueItems":
			r.Unique = true
		case "minItems":
			r.MinItems = int(*number(value))
		case "enum":
			r.Enum = append(r.Enum, value)
		case "minimum":
			r.Min = number(value)
		case "maximum":
			r.Max = number(value)
		case "exclusiveMinimum":
			r.Above = number(value)
		case "default":
			r.Default = value
		case "", "pattern":
		default:
			panic(fmt.Sprintf("BUG: specs: %s has an unknown tag %q", sf.Name, tag))
		}
	}
	return r
}

func number(text string) *float64 {
	n, err := strconv.ParseFloat(text, 64)
	if err != nil {
		panic(fmt.Sprintf("BUG: specs: a tag's number: %v", err))
	}
	return &n
}

// allowed says in words what the rule lets through: "1 to 16", "64, 80, 96, 112", "above 0, at most 1".
func (r rule) allowed() string {
	switch {
	case len(r.Enum) > 0:
		return strings.Join(r.Enum, ", ")
	case r.Above != nil:
		return fmt.Sprintf("above %s, at most %s", short(*r.Above), short(*r.Max))
	case r.Min != nil:
		return fmt.Sprintf("%s to %s", short(*r.Min), short(*r.Max))
	}
	return ""
}

// inRange reports whether a number satisfies the rule.
func (r rule) inRange(n float64) bool {
	if len(r.Enum) > 0 {
		return slices.Contains(r.Enum, short(n))
	}
	return n == n && (r.Min == nil || n >= *r.Min) && (r.Above == nil || n > *r.Above) && (r.Max == nil || n <= *r.Max)
}

// built reports whether kernels exist for a value, as the file spells it.
func (r rule) isBuilt(value string) bool {
	return len(r.Built) == 0 || slices.Contains(r.Built, value)
}

// short prints a number as a person would write it: no exponent for whole numbers below a billion.
func short(n float64) string {
	if n == float64(int64(n)) && n < 1e9 && n > -1e9 {
		return strconv.FormatInt(int64(n), 10)
	}
	return strconv.FormatFloat(n, 'g', -1, 64)
}

// setDefaults fills a struct with the defaults of its tags.
func setDefaults(into reflect.Value, fields []field) {
	for _, f := range fields {
		v := into.Field(f.Index)
		switch {
		case f.Kind == reflect.Struct:
			setDefaults(v, f.Fields)
		case f.Rule.Default == "":
		case f.Kind == reflect.Slice:
			v.Set(reflect.ValueOf([]string{f.Rule.Default}))
		case f.Kind == reflect.String:
			v.SetString(f.Rule.Default)
		case f.Kind == reflect.Int:
			v.SetInt(int64(*number(f.Rule.Default)))
		case f.Kind == reflect.Float64:
			v.SetFloat(*number(f.Rule.Default))
		}
	}
}
