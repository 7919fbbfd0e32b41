package nvrtc

import (
	"debug/elf"
	"errors"
	"fmt"
	"os"
	"syscall"
	"unsafe"

	"github.com/ebitengine/purego"
)

// keepSignals makes NVRTC leave the process's signal handlers alone. While it compiles, NVRTC handles SIGINT and SIGTERM by ending the
// process with status 4, and afterwards puts the old handlers back by signal(2), which loses SA_ONSTACK: the Go runtime then dies of the
// next one. There is no option against it. So the library's own pointer to signal, in its table of imported functions, is set to one
// that does nothing and answers SIG_IGN. handle is the loaded library, file where it lies.
func keepSignals(handle uintptr, file string) error {
	const known = "nvrtcVersion"
	at, err := purego.Dlsym(handle, known)
	if err != nil {
		return err
	}
	libc, err := purego.Dlsym(purego.RTLD_DEFAULT, "signal")
	if err != nil {
		return err
	}
	var copyBytes func(dst uintptr, src unsafe.Pointer, n uintptr) uintptr
	var readBytes func(dst unsafe.Pointer, src, n uintptr) uintptr
	for _, fn := range []any{&copyBytes, &readBytes} {
		purego.RegisterLibFunc(fn, purego.RTLD_DEFAULT, "memcpy")
	}
	slot, base, err := importOf(file, "signal", known)
	if err != nil {
		return err
	}
	address := at - base + slot
	var old uintptr
	readBytes(unsafe.Pointer(&old), address, unsafe.Sizeof(old))
	if old == ignoreSignals() {
		return nil // another Compiler of this process was first
	}
	if old != libc {
		return errors.New("its import of signal is not where its symbol table says")
	}
	page := uintptr(os.Getpagesize())
	start := address / page * page
	if _, _, errno := syscall.Syscall(syscall.SYS_MPROTECT, start, page, syscall.PROT_READ|syscall.PROT_WRITE); errno != 0 {
		return fmt.Errorf("make its imports writable: %w", errno)
	}
	stub := ignoreSignals()
	copyBytes(address, unsafe.Pointer(&stub), unsafe.Sizeof(stub)) // the page stays writable: nobody knows whether it was not before
	return nil
}

// importOf finds the place of an imported function's pointer in a library, and the value of a symbol that it exports, both as its file has
// them.
func importOf(file, imported, exported string) (slot, value uintptr, err error) {
	f, err := elf.Open(file)
	if err != nil {
		return 0, 0, err
	}
	defer f.Close()
	symbols, err := f.DynamicSymbols()
	if err != nil {
		return 0, 0, err
	}
	index := 0
	for i, s := range symbols {
		switch {
		case s.Name == imported && s.Section == elf.SHN_UNDEF:
			index = i + 1 // the first symbol of a table is none, and left out
		case s.Name == exported && s.Section != elf.SHN_UNDEF:
			value = uintptr(s.Value)
		}
	}
	for _, s := range f.Sections {
		if s.Type != elf.SHT_RELA || index == 0 || value == 0 {
			continue
		}
		b, err := s.Data()
		if err != nil {
			return 0, 0, err
		}
		for ; len(b) >= 24; b = b[24:] { // Elf64_Rela: offset, info, addend
			info := f.ByteOrder.Uint64(b[8:])
			if int(elf.R_SYM64(info)) == index && isPointer(f.Machine, elf.R_TYPE64(info)) {
				return uintptr(f.ByteOrder.Uint64(b)), value, nil
			}
		}
	}
	return 0, 0, fmt.Errorf("it does not import %s, or does not export %s", imported, exported)
}

// isPointer tells whether a relocation is the pointer to a function.
func isPointer(m elf.Machine, relocation uint32) bool {
	switch m {
	case elf.EM_X86_64:
		r := elf.R_X86_64(relocation)
		return r == elf.R_X86_64_JMP_SLOT || r == elf.R_X86_64_GLOB_DAT
	case elf.EM_AARCH64:
		r := elf.R_AARCH64(relocation)
		return r == elf.R_AARCH64_JUMP_SLOT || r == elf.R_AARCH64_GLOB_DAT
	}
	return false
}
