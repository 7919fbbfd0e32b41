package version

import (
	"runtime/debug"
	"testing"
)

func TestCommitOf(t *testing.T) {
	const revision = "0123456789abcdef0123456789abcdef01234567"
	tests := []struct {
		name, reason string
		settings     []debug.BuildSetting
		want         string
	}{
		{"clean", "twelve digits tell commits apart", []debug.BuildSetting{{Key: "vcs.revision", Value: revision}, {Key: "vcs.modified", Value: "false"}}, "0123456789ab"},
		{"dirty", "a result must not be credited to a commit that did not make it", []debug.BuildSetting{{Key: "vcs.revision", Value: revision}, {Key: "vcs.modified", Value: "true"}}, "0123456789ab+dirty"},
		{"no record", "go test stamps nothing", nil, "unknown"},
		{"short revision", "another version control system", []debug.BuildSetting{{Key: "vcs.revision", Value: "42"}}, "unknown"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			if got := commitOf(tt.settings); got != tt.want {
				t.Errorf("commitOf = %q, want %q: %s", got, tt.want, tt.reason)
			}
		})
	}
}
