package tensorfile

import (
	"encoding/binary"
	"fmt"
	"math"
	"os"
	"regexp"
	"strconv"
	"strings"
)

// Array is the content of a .npy file of floats, widened.
type Array struct {
	DType string // "<f2", "<f4" or "<f8"
	Shape []int
	Data  []float64 // C order
}

var (
	npyDType   = regexp.MustCompile(`'descr':\s*'([^']*)'`)
	npyFortran = regexp.MustCompile(`'fortran_order':\s*True`)
	npyShape   = regexp.MustCompile(`'shape':\s*\(([^)]*)\)`)
)

// ReadNPY loads an array that numpy.save wrote: little-endian floats of 16, 32 or 64 bits in C order.
func ReadNPY(path string) (Array, error) {
	data, err := os.ReadFile(path)
	if err != nil {
		return Array{}, fmt.Errorf("read array: %w", err)
	}
	a, err := decodeNPY(data)
	if err != nil {
		return Array{}, fmt.Errorf("read array from %s: %w", path, err)
	}
	return a, nil
}

// decodeNPY parses a whole file: magic, version, length of the header, the header as a Python literal, the elements.
func decodeNPY(data []byte) (Array, error) {
	if len(data) < 12 || string(data[:6]) != "\x93NUMPY" {
		return Array{}, fmt.Errorf("no .npy file: it does not begin as one")
	}
	begin, size := 10, int(binary.LittleEndian.Uint16(data[8:]))
	if data[6] >= 2 {
		begin, size = 12, int(binary.LittleEndian.Uint32(data[8:]))
	}
	if size > len(data)-begin {
		return Array{}, fmt.Errorf("the header claims %d bytes of a file of %d: truncated", size, len(data))
	}
	header, body := string(data[begin:begin+size]), data[begin+size:]
	dtype, shape := npyDType.FindStringSubmatch(header), npyShape.FindStringSubmatch(header)
	if dtype == nil || shape == nil {
		return Array{}, fmt.Errorf("header %q names no dtype and shape", header)
	}
	if npyFortran.MatchString(header) {
		return Array{}, fmt.Errorf("the array is in Fortran order; save numpy.ascontiguousarray of it")
	}
	width := map[string]int{"<f2": 2, "<f4": 4, "<f8": 8}[dtype[1]]
	if width == 0 {
		return Array{}, fmt.Errorf("dtype %q; <f2, <f4 and <f8 are read", dtype[1])
	}
	a := Array{DType: dtype[1]}
	count := 1
	for text := range strings.SplitSeq(shape[1], ",") {
		if text = strings.TrimSpace(text); text == "" {
			continue // of (3,)
		}
		n, err := strconv.Atoi(text)
		if err != nil || n < 0 || n > 0 && count > len(body)/n {
			return Array{}, fmt.Errorf("shape (%s) does not fit into the file", shape[1])
		}
		a.Shape = append(a.Shape, n)
		count *= n
	}
	if count*width != len(body) {
		return Array{}, fmt.Errorf("shape %v of %s needs %d bytes, the file has %d", a.Shape, a.DType, count*width, len(body))
	}
	a.Data = make([]float64, count)
	for i := range a.Data {
		a.Data[i] = littleFloat(body[i*width : (i+1)*width])
	}
	return a, nil
}

// littleFloat widens one element of 2, 4 or 8 bytes.
func littleFloat(b []byte) float64 {
	switch len(b) {
	case 8:
		return math.Float64frombits(binary.LittleEndian.Uint64(b))
	case 4:
		return float64(math.Float32frombits(binary.LittleEndian.Uint32(b)))
	}
	bits := binary.LittleEndian.Uint16(b)
	sign, exponent, fraction := 1-2*float64(bits>>15), int(bits>>10&31), float64(bits&1023)
	switch exponent {
	case 0:
		return sign * math.Ldexp(fraction, -24)
	case 31:
		if fraction != 0 {
			return math.NaN()
		}
		return math.Inf(int(sign))
	}
	return sign * math.Ldexp(1024+fraction, exponent-25)
}
