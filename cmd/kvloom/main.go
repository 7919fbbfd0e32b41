// Command kvloom generates, verifies and tunes CUDA kernels for long-context attention.
package main

import (
	"os"

	"github.com/kvloom/kvloom/internal/cli"
)

func main() { os.Exit(cli.Run(os.Args[1:], os.Stdout, os.Stderr)) }
