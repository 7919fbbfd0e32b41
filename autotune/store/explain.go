package store

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
)

// explain says what was being done to which file, and the remedy where there is one.
func (db *DB) explain(doing string, err error) error {
	if err == nil {
		return nil
	}
	text, remedy := err.Error(), ""
	switch {
	case strings.Contains(text, "full"):
		remedy = "; free space on its disk and run again: every finished trial is kept"
	case strings.Contains(text, "disk I/O"):
		remedy = "; the disk did not take it (a quota, a limit on file sizes, or a fault): every finished trial is kept"
	case strings.Contains(text, "readonly") || strings.Contains(text, "read-only") || strings.Contains(text, "unable to open"):
		remedy = "; the file and its folder must be writable: name another, or copy it"
	case strings.Contains(text, "malformed") || strings.Contains(text, "not a database"):
		remedy = "; the file is damaged: move it away, or restore a copy"
	case strings.Contains(text, "locked") || strings.Contains(text, "busy"):
		remedy = "; another process has held it for 20 s: let it finish"
	}
	return fmt.Errorf("trial database %s: %s: %w%s", db.path, doing, err, remedy)
}

// readOnlyMedium tells whether the folder of a file is on a medium mounted read-only, or not ours to write.
func readOnlyMedium(path string) bool {
	f, err := os.CreateTemp(filepath.Dir(path), ".kvloom-*")
	if err == nil {
		_, _ = f.Close(), os.Remove(f.Name()) // it could be made, which is all that was asked
		return false
	}
	return errors.Is(err, syscall.EROFS) || errors.Is(err, os.ErrPermission)
}
