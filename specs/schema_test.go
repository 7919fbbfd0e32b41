package specs

import (
	"bytes"
	"os"
	"reflect"
	"testing"
)

func TestSchemaIsCurrent(t *testing.T) {
	want := Schema()
	if os.Getenv("KVLOOM_UPDATE") != "" {
		if err := os.WriteFile(SchemaFile, want, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	got, err := os.ReadFile(SchemaFile)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(got, want) {
		t.Errorf("%s is stale; run 'kvloom spec schema specs/%s'", SchemaFile, SchemaFile)
	}
}

func TestEveryFieldIsDescribed(t *testing.T) {
	known := map[string]bool{}
	var walk func(reflect.Type)
	walk = func(typ reflect.Type) {
		for i := range typ.NumField() {
			f := typ.Field(i)
			if f.Tag.Get("yaml") == "-" {
				continue // no key of a file
			}
			name := typ.Name() + "." + f.Name
			if known[name] = true; descriptions[name] == "" {
				t.Errorf("%s has no description for editors", name)
			}
			inner := f.Type
			if inner.Kind() == reflect.Slice {
				inner = inner.Elem()
			}
			if inner.Kind() == reflect.Struct {
				walk(inner)
			}
		}
	}
	walk(reflect.TypeFor[Spec]())
	for name := range descriptions {
		if !known[name] {
			t.Errorf("description of %s, which is no field", name)
		}
	}
}
