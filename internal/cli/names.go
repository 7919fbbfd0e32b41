package cli

import (
	"fmt"
	"strings"

	"github.com/kvloom/kvloom/specs"
)

// unknown is the fault of a name that is none of those known: "no kernel "page_scor"; did you mean page_score? There are ...".
func unknown[T ~string](what, name string, known []T) error {
	names := make([]string, len(known))
	for i, k := range known {
		names[i] = string(k)
	}
	meant := ""
	if near, ok := specs.Nearest(name, names); ok {
		meant = fmt.Sprintf(" did you mean %s?", near)
	}
	return fmt.Errorf("no %s %q;%s there are %s", what, name, meant, strings.Join(names, ", "))
}
