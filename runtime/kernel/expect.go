package kernel

import (
	"fmt"
	"slices"
	"strings"
)

// Expect checks that the bundle was made for the code that uses it: the model's figures, and the key of each family, which names what the
// kernels were specialised for. Generated packages call it.
func (b *Bundle) Expect(spec string, m Model, keys map[string]string) error {
	var differ []string
	if b.Spec != spec {
		differ = append(differ, fmt.Sprintf("spec %q, not %q", b.Spec, spec))
	}
	if b.Model != m {
		differ = append(differ, fmt.Sprintf("model %+v, not %+v", b.Model, m))
	}
	for i := range b.Kernels {
		k := &b.Kernels[i]
		if want := keys[k.Family]; k.Key != want {
			differ = append(differ, fmt.Sprintf("%s for %q, not %q", k.Family, k.Key, want))
		}
	}
	if differ == nil {
		return nil
	}
	slices.Sort(differ)
	return fmt.Errorf("the bundle was made for %s; export it from the spec that the package was generated from, or run 'kvloom gen' again",
		strings.Join(slices.Compact(differ), "; "))
}
