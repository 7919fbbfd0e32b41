package golden

import (
	"bytes"
	"go/ast"
	"go/parser"
	"go/printer"
	"go/token"
	"strings"
	"testing"

	"golang.org/x/tools/txtar"

	"github.com/kvloom/kvloom/gen"
	"github.com/kvloom/kvloom/specs"
)

// bindings is the exported face of the generated Go package, comments and bodies left out: what a caller's code depends on.
func bindings(t *testing.T, s *specs.Spec) txtar.File {
	t.Helper()
	build, err := gen.Package(s, nil)
	if err != nil {
		t.Fatal(err)
	}
	if len(build.Warnings) > 0 {
		t.Errorf("warnings without a tuned table: %q", build.Warnings)
	}
	name := gen.Name(s.Name) + ".go"
	text, err := face(name, build.Files[name])
	if err != nil {
		t.Fatal(err)
	}
	return txtar.File{Name: name, Data: text}
}

// printerConfig is gofmt's.
var printerConfig = printer.Config{Mode: printer.UseSpaces | printer.TabIndent, Tabwidth: 8}

func face(name string, source []byte) ([]byte, error) {
	fset := token.NewFileSet()
	f, err := parser.ParseFile(fset, name, source, 0)
	if err != nil {
		return nil, err
	}
	var b bytes.Buffer
	b.WriteString("package " + f.Name.Name + "\n")
	ast.FileExports(f)
	for _, d := range f.Decls {
		if g, ok := d.(*ast.GenDecl); ok && g.Tok == token.IMPORT {
			continue
		}
		if g, ok := d.(*ast.GenDecl); ok && g.Tok == token.VAR {
			for _, s := range g.Specs { // their values are in the plan
				s.(*ast.ValueSpec).Values = nil
			}
		}
		if fn, ok := d.(*ast.FuncDecl); ok {
			fn.Body = nil
		}
		var one bytes.Buffer
		if err := printerConfig.Fprint(&one, token.NewFileSet(), d); err != nil {
			return nil, err
		}
		b.WriteString("\n" + strings.TrimSpace(one.String()) + "\n")
	}
	return b.Bytes(), nil
}
