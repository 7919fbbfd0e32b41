package sim

import "syscall"

// mapNoReserve keeps a sparse allocation of 2^40 bytes from counting as memory in use.
const mapNoReserve = syscall.MAP_NORESERVE
