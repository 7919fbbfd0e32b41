package specs

import "testing"

func TestModels(t *testing.T) {
	for _, name := range Names() {
		if s, err := Model(name); err != nil {
			t.Error(err)
		} else {
			t.Logf("%+v", s)
		}
	}
}
