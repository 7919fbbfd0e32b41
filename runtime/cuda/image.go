package cuda

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"regexp"
)

// image is what can be said of code before the driver sees it.
type image struct {
	ptx     bool
	version string // of PTX: "9.0"
	target  string // "sm_90a", "sm_90"; "an unknown architecture"
}

func (i image) String() string {
	if i.ptx {
		return fmt.Sprintf("PTX %s for %s", i.version, i.target)
	}
	return "cubin for " + i.target
}

var (
	ptxVersion = regexp.MustCompile(`(?m)^\s*\.version\s+(\d+\.\d+)`)
	ptxTarget  = regexp.MustCompile(`(?m)^\s*\.target\s+(\w+)`)
)

// inspect tells PTX from a cubin and reads the versions and architectures that errors name.
func inspect(code []byte) (image, error) {
	if len(code) == 0 {
		return image{}, errors.New("cuda: load: the image is empty")
	}
	if bytes.HasPrefix(code, []byte("\x7fELF")) {
		return image{target: cubinTarget(code)}, nil
	}
	v, t := ptxVersion.FindSubmatch(code), ptxTarget.FindSubmatch(code)
	if v == nil || t == nil {
		return image{}, fmt.Errorf("cuda: load: %d bytes are neither a cubin (no ELF header) nor PTX (no .version and .target)", len(code))
	}
	return image{ptx: true, version: string(v[1]), target: string(t[1])}, nil
}

// cubinTarget reads the architecture from the ELF header's flags: the low byte up to CUDA 12 (ABI version 7), the second byte since
// 13.0 (8), as NVRTC 13.0's own cubins show. The "a" of sm_90a is not there.
func cubinTarget(code []byte) string {
	if len(code) < 52 || code[4] != 2 {
		return "an unknown architecture"
	}
	flags := binary.LittleEndian.Uint32(code[48:])
	sm := flags & 0xff
	if code[8] >= 8 {
		sm = flags >> 8 & 0xff
	}
	return fmt.Sprintf("sm_%d", sm)
}

// ptxNeeds maps PTX versions to the first CUDA that takes them (PTX ISA release notes).
var ptxNeeds = map[string]string{
	"7.0": "11.0", "7.1": "11.1", "7.2": "11.2", "7.3": "11.3", "7.4": "11.4", "7.5": "11.5", "7.6": "11.6", "7.7": "11.7",
	"7.8": "11.8", "8.0": "12.0", "8.1": "12.1", "8.2": "12.2", "8.3": "12.3", "8.4": "12.4", "8.5": "12.5", "8.6": "12.7",
	"8.7": "12.8", "8.8": "12.9", "9.0": "13.0", "9.1": "13.1",
}

// needsCUDA is the driver that the PTX asks for, where known.
func (i image) needsCUDA() (string, bool) {
	v, ok := ptxNeeds[i.version]
	return v, ok
}
