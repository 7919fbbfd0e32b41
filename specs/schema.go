package specs

import (
	"encoding/json"
	"fmt"
	"reflect"
	"slices"
	"strings"

	"github.com/invopop/jsonschema"
)

// SchemaFile is where the schema is published, and what the first line of a spec beside it names.
const SchemaFile = "kvloom.schema.json"

// Schema returns the JSON Schema of spec files, generated from the Go types, with a final newline. Editors complete and check
// specs by it; what only several fields together can violate is left to Parse.
func Schema() []byte {
	r := jsonschema.Reflector{
		Anonymous:                  true,
		DoNotReference:             true,
		FieldNameTag:               "yaml",
		RequiredFromJSONSchemaTags: true,
		LookupComment: func(t reflect.Type, name string) string {
			text := descriptions[t.Name()+"."+name]
			if t.Kind() != reflect.Struct {
				return text
			}
			if f, ok := t.FieldByName(name); ok && f.Tag.Get("built") != "" {
				text += " Built: " + strings.ReplaceAll(f.Tag.Get("built"), ",", ", ") + "."
			}
			return text
		},
	}
	s := r.Reflect(&Spec{})
	// Editors know draft 7 best, and nothing later is used.
	s.Version = "http://json-schema.org/draft-07/schema#"
	s.Title = "kvloom spec"
	s.Description = "What kvloom has to know of a model's attention, and what to build for it."

	// The group of 16 dims is a number for a person and text for the loader.
	scale := property(s, "locks", "scale_group")
	scale.Type, scale.Enum = "", []any{"column", 16, "16"}
	name := property(s, "name")
	longest := uint64(64)
	name.MaxLength = &longest
	defaults := property(s, "targets")
	defaults.Default = []string{"sm_90a"}

	out, err := json.MarshalIndent(s, "", "  ")
	if err != nil {
		panic(fmt.Sprintf("BUG: specs: schema: %v", err))
	}
	return append(out, '\n')
}

func property(s *jsonschema.Schema, path ...string) *jsonschema.Schema {
	for _, name := range path {
		next, ok := s.Properties.Get(name)
		if !ok {
			panic(fmt.Sprintf("BUG: specs: the schema has no property %s", slices.Concat(path)))
		}
		s = next
	}
	return s
}
