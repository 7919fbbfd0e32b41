// Package version says which kvloom this is, from what the Go linker wrote into the binary.
package version

import "runtime/debug"

// Version is the release under development; CHANGELOG.md says what is in it.
const Version = "0.1.0"

// Commit returns the commit that the binary was built from, 12 hex digits, with "+dirty" where the tree had changes, or "unknown"
// where the build kept no record of it ('go run' and 'go test' keep none).
func Commit() string {
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return "unknown"
	}
	return commitOf(info.Settings)
}

func commitOf(settings []debug.BuildSetting) string {
	commit, dirty := "unknown", ""
	for _, s := range settings {
		switch {
		case s.Key == "vcs.revision" && len(s.Value) >= 12:
			commit = s.Value[:12]
		case s.Key == "vcs.modified" && s.Value == "true":
			dirty = "+dirty"
		}
	}
	if commit == "unknown" {
		return commit
	}
	return commit + dirty
}

// String is "kvloom 0.1.0 (0123456789ab)".
func String() string { return "kvloom " + Version + " (" + Commit() + ")" }
