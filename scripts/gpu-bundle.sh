#!/bin/sh
# Fills .gpu/ for a GPU machine that has CUDA 13.0 and this checkout, but no Go: the tool, the test binaries of the packages whose
# tests can use a GPU (those that import internal/gputest, internal/devices or runtime/cuda), and gpu.sh. Stripped: the folder travels.
set -eu
cd "$(dirname "$0")/.."
rm -rf .gpu
mkdir -p .gpu/tests
cp scripts/gpu.sh .gpu/gpu.sh
flags='-s -w -extldflags=-Wl,-z,lazy'
go build -trimpath -ldflags "$flags" -o .gpu/kvloom ./cmd/kvloom
{
  echo runtime/cuda
  git grep --untracked -lE '"github.com/kvloom/kvloom/(internal/gputest|internal/devices|runtime/cuda)"' -- '*_test.go' | xargs -r dirname
} | grep -v '^internal/gputest$' | sort -u | while read -r package; do
  go test -c -trimpath -ldflags "$flags" -o ".gpu/tests/$(echo "$package" | tr / +)" "./$package"
done
for example in decode evict; do
  go build -trimpath -ldflags "$flags" -o .gpu/$example ./examples/$example
done
du -sh .gpu
