package wholefile

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestWrite(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "a.bin")
	for _, text := range []string{"old", "new and longer"} {
		if err := Write(file, []byte(text)); err != nil {
			t.Fatal(err)
		}
		if got, err := os.ReadFile(file); err != nil || string(got) != text {
			t.Errorf("got %q, %v, want %q", got, err, text)
		}
	}
	if info, err := os.Stat(file); err != nil || info.Mode().Perm() != 0o644 {
		t.Errorf("mode %v, %v: others have to read it", info.Mode(), err)
	}
	if entries, err := os.ReadDir(dir); err != nil || len(entries) != 1 {
		t.Errorf("beside the file: %v, %v", entries, err)
	}
}

// TestErrorsNameTheFile: never the temporary one, and nothing of it stays.
func TestErrorsNameTheFile(t *testing.T) {
	dir := t.TempDir()
	none := filepath.Join(dir, "none", "a.bin")
	if err := Write(none, nil); !errors.Is(err, fs.ErrNotExist) || !strings.HasPrefix(err.Error(), "write "+none+": ") {
		t.Errorf("a folder that does not exist: %v", err)
	}
	folder := filepath.Join(dir, "folder")
	if err := os.MkdirAll(filepath.Join(folder, "full"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := Write(folder, nil); err == nil || !strings.HasPrefix(err.Error(), "write "+folder+": ") {
		t.Errorf("a folder in the file's place: %v", err)
	}
	if entries, err := os.ReadDir(dir); err != nil || len(entries) != 1 {
		t.Errorf("left behind: %v, %v", entries, err)
	}
}
