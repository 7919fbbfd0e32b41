// Package templates embeds the CUDA headers, kernels and instantiation templates that gen renders.
package templates

import "embed"

// FS holds include/, kernels/ and inst/. Paths are slash-separated and relative to this folder.
//
//go:embed include kernels inst
var FS embed.FS
