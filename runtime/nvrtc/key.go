package nvrtc

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"sync"

	"github.com/kvloom/kvloom/gen/render"
)

// key is everything that decides the output: entry, source, include closure (ours and the toolkit's), flags, compiler, arch. Times
// and paths of files are no part of it.
func (c *Compiler) key(src render.Source, o Options) (string, error) {
	h := sha256.New()
	fmt.Fprintf(h, "kvloom module %d\x00%s\x00%s\x00%s\x00%s\x00%s\x00", cacheFormat, c.version, src.Arch, o.CubinArch, src.Entry, src.Name)
	for _, f := range append(flags(), o.Flags...) {
		fmt.Fprintf(h, "flag %s\x00", f)
	}
	texts := []string{src.Text}
	fmt.Fprintf(h, "text %d\x00%s", len(src.Text), src.Text)
	for _, name := range src.HeaderNames() {
		texts = append(texts, src.Headers[name])
		fmt.Fprintf(h, "header %s %d\x00%s", name, len(src.Headers[name]), src.Headers[name])
	}
	toolkit, err := c.headers.closure(texts)
	if err != nil {
		return "", err
	}
	for _, s := range toolkit {
		fmt.Fprintf(h, "toolkit %s\x00", s)
	}
	return hex.EncodeToString(h.Sum(nil)), nil
}

// headerHashes remembers the hash of each toolkit header's own closure. A toolkit does not change under a running process.
type headerHashes struct {
	dir  string
	mu   sync.Mutex
	sums map[string]string // include name -> "name sha256"; "" for a name that is no toolkit header
	uses map[string][]string
}

var anyInclude = regexp.MustCompile(`(?m)^\s*#\s*include\s*[<"]([^>"]+)[>"]`)

// closure returns "name hash" of every toolkit header that the texts can reach, sorted. Conditional includes count: reaching too
// far costs a rebuild, not reaching far enough a stale module.
func (h *headerHashes) closure(texts []string) ([]string, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	var todo, list []string
	for _, t := range texts {
		todo = append(todo, includes(t)...)
	}
	seen := map[string]bool{}
	for len(todo) > 0 {
		name := todo[len(todo)-1]
		todo = todo[:len(todo)-1]
		if seen[name] {
			continue
		}
		seen[name] = true
		if err := h.read(name); err != nil {
			return nil, err
		}
		if h.sums[name] != "" {
			list = append(list, h.sums[name])
			todo = append(todo, h.uses[name]...)
		}
	}
	slices.Sort(list)
	return list, nil
}

func (h *headerHashes) read(name string) error {
	if _, known := h.sums[name]; known {
		return nil
	}
	b, err := os.ReadFile(filepath.Join(h.dir, filepath.FromSlash(name)))
	if errors.Is(err, fs.ErrNotExist) {
		h.sums[name] = "" // one of ours, or NVRTC's own
		return nil
	}
	if err != nil {
		return fmt.Errorf("read CUDA header %s: %w", name, err)
	}
	sum := sha256.Sum256(b)
	h.sums[name] = name + " " + hex.EncodeToString(sum[:])
	if h.uses == nil {
		h.uses = map[string][]string{}
	}
	h.uses[name] = includes(string(b))
	return nil
}

func includes(text string) []string {
	var names []string
	for _, m := range anyInclude.FindAllStringSubmatch(text, -1) {
		names = append(names, m[1])
	}
	return names
}
