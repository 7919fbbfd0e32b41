package kernel

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"

	"github.com/kvloom/kvloom/internal/wholefile"
)

// A bundle file, little-endian:
//
//	0   magic     8 bytes
//	8   format    uint32
//	12  zero      uint32
//	16  file size uint64
//	24  header    uint64, bytes of JSON
//	32  sha256 of bytes 0-31 and of the header
//	64  header, then the blobs one after another
//
// The header holds the sha256 of each blob, so the checksum covers the whole file and opening hashes each byte once.
const (
	magic      = "kvloom\r\n" // a transfer in text mode breaks it, as it would the rest
	formatNow  = 2            // 1 had no defaults of single workloads and no calibrations
	prefixSize = 64
	maxHeader  = 64 << 20
	maxFile    = 1 << 30 // a wrong path should not be read into memory: weights, a disk image
)

// header is the JSON part: the bundle, and where its code lies. Kernels share equal blobs.
type header struct {
	Bundle
	Code   []code       `json:"code"` // one for each kernel
	Layers []layerParts `json:"calibrations,omitempty"`
	Blobs  []blob       `json:"blobs"`
}

// code tells the blobs of one kernel, -1 for none.
type code struct {
	Cubin int `json:"cubin"`
	PTX   int `json:"ptx"`
}

// layerParts tells the blobs of one layer's calibration, -1 for none.
type layerParts struct {
	Weights int `json:"weights"`
	MeanKey int `json:"mean_key"`
}

type blob struct {
	Bytes  int    `json:"bytes"`
	SHA256 string `json:"sha256"`
}

// Damaged is a bundle file that cannot be used: which, and why.
type Damaged struct {
	File   string
	Reason string
}

func (d *Damaged) Error() string {
	return fmt.Sprintf("bundle %s: %s; export it again with 'kvloom db export', or copy it anew", d.File, d.Reason)
}

// NewerFormat is a bundle of a later kvloom.
type NewerFormat struct {
	File            string
	Format, Highest int
}

func (n *NewerFormat) Error() string {
	return fmt.Sprintf("bundle %s has format version %d, this kvloom reads up to %d: update kvloom, or export the bundle with this one", n.File, n.Format, n.Highest)
}

// Open reads a bundle. A file that is truncated, altered or not a bundle is a *Damaged, one of a later format a *NewerFormat.
func Open(path string) (*Bundle, error) {
	if fi, err := os.Stat(path); err == nil && fi.Size() > maxFile {
		return nil, &Damaged{File: path, Reason: fmt.Sprintf("the file has %d bytes, no bundle has more than %d", fi.Size(), int64(maxFile))}
	}
	data, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("open bundle: %w", err)
	}
	b, err := decode(data)
	var newer *NewerFormat
	switch {
	case errors.As(err, &newer):
		newer.File = path
		return nil, newer
	case err != nil:
		return nil, &Damaged{File: path, Reason: err.Error()}
	}
	return b, nil
}

// decode checks the frame and its checksum before anything else is read.
func decode(data []byte) (*Bundle, error) {
	switch {
	case len(data) == 0:
		return nil, errors.New("the file is empty")
	case !bytes.HasPrefix(data, []byte(magic)[:min(len(magic), len(data))]):
		return nil, errors.New("this is not a kvloom bundle (its first bytes are others)")
	case len(data) < prefixSize:
		return nil, fmt.Errorf("the file ends after %d bytes, inside its fixed part of %d: it is truncated", len(data), prefixSize)
	}
	size := binary.LittleEndian.Uint64(data[16:])
	headerSize := binary.LittleEndian.Uint64(data[24:])
	// A later format may lay out everything but magic and version anew, so the version comes first.
	if v := binary.LittleEndian.Uint32(data[8:]); v > formatNow {
		return nil, &NewerFormat{Format: int(v), Highest: formatNow}
	}
	switch {
	case uint64(len(data)) < size:
		return nil, fmt.Errorf("the file has %d of %d bytes: it is truncated", len(data), size)
	case uint64(len(data)) > size:
		return nil, fmt.Errorf("the file has %d bytes, its header says %d", len(data), size)
	case headerSize > min(maxHeader, size-prefixSize):
		return nil, fmt.Errorf("the header's size of %d bytes is impossible: the file was altered", headerSize)
	}
	text, blobs := data[prefixSize:prefixSize+headerSize], data[prefixSize+headerSize:]
	if checksum(data[:32], text) != [32]byte(data[32:64]) {
		return nil, errors.New("the checksum does not match: the file was altered")
	}
	return parse(text, blobs)
}

func checksum(prefix, text []byte) [32]byte {
	h := sha256.New()
	h.Write(prefix)
	h.Write(text)
	return [32]byte(h.Sum(nil))
}

// parse reads the header and hands each kernel its code.
func parse(text, blobs []byte) (*Bundle, error) {
	var h header
	d := json.NewDecoder(bytes.NewReader(text))
	d.DisallowUnknownFields() // the format version would have to be a later one
	if err := d.Decode(&h); err != nil {
		return nil, fmt.Errorf("the header is not what format %d has: %w", formatNow, err)
	}
	if _, err := d.Token(); err != io.EOF {
		return nil, errors.New("the header has something after its end")
	}
	parts := make([][]byte, len(h.Blobs))
	for i, b := range h.Blobs {
		if b.Bytes < 0 || b.Bytes > len(blobs) {
			return nil, fmt.Errorf("code %d of %d bytes does not fit into the file", i, b.Bytes)
		}
		parts[i], blobs = blobs[:b.Bytes:b.Bytes], blobs[b.Bytes:]
		if sum := sha256.Sum256(parts[i]); hex.EncodeToString(sum[:]) != b.SHA256 {
			return nil, fmt.Errorf("code %d has another checksum than the header says: the file was altered", i)
		}
	}
	if len(blobs) > 0 {
		return nil, fmt.Errorf("%d bytes belong to nothing", len(blobs))
	}
	if len(h.Code) != len(h.Kernels) {
		return nil, fmt.Errorf("%d kernels have code, %d are described", len(h.Code), len(h.Kernels))
	}
	part := func(of string, index int, dst *[]byte) error {
		if index < -1 || index >= len(parts) {
			return fmt.Errorf("%s names code %d of %d", of, index, len(parts))
		}
		if index >= 0 {
			*dst = parts[index]
		}
		return nil
	}
	for i, c := range h.Code {
		k, name := &h.Kernels[i], fmt.Sprintf("kernel %d", i)
		if err := errors.Join(part(name, c.Cubin, &k.Cubin), part(name, c.PTX, &k.PTX)); err != nil {
			return nil, err
		}
	}
	for i, l := range h.Layers {
		var c Calibration
		name := fmt.Sprintf("layer %d", i)
		if err := errors.Join(part(name, l.Weights, &c.Weights), part(name, l.MeanKey, &c.MeanKey)); err != nil {
			return nil, err
		}
		h.Calibrations = append(h.Calibrations, c)
	}
	if err := h.Bundle.validate(); err != nil {
		return nil, err
	}
	return &h.Bundle, nil
}

// Encode is the file's content: equal bundles give equal bytes.
func (b *Bundle) Encode() ([]byte, error) {
	if err := b.validate(); err != nil {
		return nil, fmt.Errorf("write bundle of %s: %w", b.Spec, err)
	}
	h := header{Bundle: *b}
	var blobs []byte
	index := map[string]int{}
	add := func(part []byte) int {
		if len(part) == 0 {
			return -1
		}
		sum := sha256.Sum256(part)
		name := hex.EncodeToString(sum[:])
		i, ok := index[name]
		if !ok {
			i = len(h.Blobs)
			index[name] = i
			h.Blobs = append(h.Blobs, blob{Bytes: len(part), SHA256: name})
			blobs = append(blobs, part...)
		}
		return i
	}
	for i := range b.Kernels {
		h.Code = append(h.Code, code{Cubin: add(b.Kernels[i].Cubin), PTX: add(b.Kernels[i].PTX)})
	}
	for _, c := range b.Calibrations {
		h.Layers = append(h.Layers, layerParts{Weights: add(c.Weights), MeanKey: add(c.MeanKey)})
	}
	text, err := json.Marshal(h)
	if err != nil {
		return nil, fmt.Errorf("write bundle of %s: %w", b.Spec, err) // a NaN among the evidence
	}
	data := make([]byte, prefixSize, prefixSize+len(text)+len(blobs))
	copy(data, magic)
	binary.LittleEndian.PutUint32(data[8:], formatNow)
	binary.LittleEndian.PutUint64(data[16:], uint64(cap(data)))
	binary.LittleEndian.PutUint64(data[24:], uint64(len(text)))
	sum := checksum(data[:32], text)
	copy(data[32:], sum[:])
	return append(append(data, text...), blobs...), nil
}

// Write puts the bundle into a file, whole or not at all.
func (b *Bundle) Write(path string) error {
	data, err := b.Encode()
	if err != nil {
		return err
	}
	if err := wholefile.Write(path, data); err != nil {
		return fmt.Errorf("bundle of %s: %w", b.Spec, err)
	}
	return nil
}
