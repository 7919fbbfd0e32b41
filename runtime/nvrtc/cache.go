package nvrtc

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
)

// cacheFormat is raised when an entry's form or a default flag's meaning changes; older entries then have other keys.
const cacheFormat = 1

// Cache keeps modules on disk by key. An entry is a line with the sha256 of the rest, then the module as JSON. Entries appear
// by rename, so processes share a folder without locks: a reader sees no entry or a whole one, and two writers of a key write
// the same. A nil Cache keeps nothing.
type Cache struct {
	dir    string
	noDir  string // why there is no folder
	warned sync.Once

	writeTo func(*os.File, []byte) (int, error) // (*os.File).Write, unless a test fills the disk
}

// DefaultCache is $KVLOOM_CACHE, or kvloom in the user's cache folder. Without either nothing is kept, with one warning.
func DefaultCache() *Cache {
	if dir := os.Getenv("KVLOOM_CACHE"); dir != "" {
		return NewCache(dir)
	}
	dir, err := os.UserCacheDir()
	if err != nil {
		return &Cache{noDir: err.Error()}
	}
	return NewCache(filepath.Join(dir, "kvloom"))
}

// NewCache keeps modules under dir, which is made at the first write.
func NewCache(dir string) *Cache { return &Cache{dir: dir, writeTo: (*os.File).Write} }

// Check makes the folder and proves that it can be written, for doctor. It returns the folder.
func (c *Cache) Check() (string, error) {
	if c.folder() == "" {
		return "", errors.New(c.noDir)
	}
	f, err := c.temp()
	if err != nil {
		return c.dir, err
	}
	return c.dir, errors.Join(f.Close(), os.Remove(f.Name()))
}

func (c *Cache) folder() string {
	if c == nil {
		return ""
	}
	return c.dir
}

func (c *Cache) file(key string) string {
	return filepath.Join(c.dir, "modules", key[:2], key+".json")
}

// load returns the entry of a key, or nil. An entry that is not whole, or not what the key and arch say, is deleted and named in
// a warning: it is compiled again.
func (c *Cache) load(key, arch string) (*Module, []string) {
	if c.folder() == "" {
		return nil, nil
	}
	b, err := os.ReadFile(c.file(key))
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ENOTDIR) {
		return nil, nil
	}
	if err != nil {
		return nil, c.warn(err)
	}
	m, err := decode(b)
	if err == nil && (m.Key != key || m.Arch != arch) {
		err = fmt.Errorf("it holds a module of key %.12s for %s", m.Key, m.Arch)
	}
	if err == nil {
		err = errors.Join(checkCubin(m), checkPTX(m))
	}
	if err != nil {
		os.Remove(c.file(key)) // store replaces it in any case
		return nil, []string{fmt.Sprintf("module cache: %s is not usable and is compiled again: %v", c.file(key), err)}
	}
	m.Cached = true
	return m, nil
}

// store writes an entry; a failure is a warning, said once.
func (c *Cache) store(m *Module) []string {
	if c == nil {
		return nil
	}
	if c.dir == "" {
		return c.warn(errors.New(c.noDir))
	}
	b, err := encode(m)
	if err == nil {
		err = c.write(c.file(m.Key), b)
	}
	if err != nil {
		return c.warn(err)
	}
	return nil
}

// warn says once what keeps the cache from working; compiling goes on without it.
func (c *Cache) warn(err error) (warnings []string) {
	c.warned.Do(func() {
		warnings = []string{fmt.Sprintf("module cache: %v; compiling without it, set KVLOOM_CACHE to a folder that can be written", err)}
	})
	return warnings
}

func (c *Cache) temp() (*os.File, error) {
	dir := filepath.Join(c.dir, "tmp")
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, err
	}
	return os.CreateTemp(dir, "module-*")
}

// write makes the file appear whole: temporary file, fsync, rename.
func (c *Cache) write(file string, b []byte) error {
	f, err := c.temp()
	if err != nil {
		return err
	}
	_, err = c.writeTo(f, b)
	if err == nil {
		err = f.Sync()
	}
	err = errors.Join(err, f.Close())
	if err == nil {
		err = os.MkdirAll(filepath.Dir(file), 0o755)
	}
	if err == nil {
		err = os.Rename(f.Name(), file)
	}
	if err != nil {
		os.Remove(f.Name()) // half a file is never left; its own error would hide the first
	}
	return err
}

func encode(m *Module) ([]byte, error) {
	body, err := json.Marshal(m)
	if err != nil {
		return nil, err
	}
	sum := sha256.Sum256(body)
	return append([]byte(hex.EncodeToString(sum[:])+"\n"), body...), nil
}

func decode(b []byte) (*Module, error) {
	head, body, found := bytes.Cut(b, []byte("\n"))
	sum := sha256.Sum256(body)
	if !found || string(head) != hex.EncodeToString(sum[:]) {
		return nil, errors.New("its checksum does not match its content")
	}
	m := &Module{}
	if err := json.Unmarshal(body, m); err != nil {
		return nil, err
	}
	return m, nil
}

// checkCubin compares the architecture in the cubin's ELF header with the one the module claims: code of another GPU under the
// right key would load nowhere, or worse.
func checkCubin(m *Module) error {
	if m.CubinArch == "" {
		return nil
	}
	got, err := CubinSM(m.Cubin)
	if err != nil {
		return err
	}
	if want := strings.TrimRight(strings.TrimPrefix(m.CubinArch, "sm_"), "af"); strconv.Itoa(got) != want {
		return fmt.Errorf("its cubin is code for sm_%d, not %s", got, m.CubinArch)
	}
	return nil
}

// checkPTX refuses a module for a virtual architecture without PTX: that is what a driver loads of it. One for a real architecture is loaded as
// its cubin, and a cache that travels may leave the PTX behind.
func checkPTX(m *Module) error {
	if strings.HasPrefix(m.Arch, "compute_") && !bytes.Contains(m.PTX, []byte(".version")) {
		return fmt.Errorf("its PTX for %s is %d bytes without a version", m.Arch, len(m.PTX))
	}
	return nil
}

// CubinSM reads from a cubin's ELF header the architecture it runs on, 90 for sm_90 and sm_90a (the header does not tell them
// apart).
func CubinSM(cubin []byte) (int, error) {
	const abiVersion, flags, header = 8, 48, 64 // offsets in an ELF64 header, and its size
	if len(cubin) < header || string(cubin[:4]) != "\x7fELF" {
		return 0, errors.New("its cubin is no ELF file")
	}
	word := binary.LittleEndian.Uint32(cubin[flags:])
	if cubin[abiVersion] >= 8 { // CUDA 13 moved the number up a byte
		word >>= 8
	}
	return int(word & 0xff), nil
}
