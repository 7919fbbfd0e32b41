//go:build unix && !linux

package sim

const mapNoReserve = 0
