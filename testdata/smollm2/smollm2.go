// Package smollm2 embeds the real-key sample, so that the tool can check kernels on it wherever it runs.
package smollm2

import "embed"

// Sample is the file's name in FS.
const Sample = "sample_needle_layer09.safetensors"

// FS holds the sample.
//
//go:embed sample_needle_layer09.safetensors
var FS embed.FS
