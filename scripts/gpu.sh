#!/bin/sh
# Runs on a GPU machine, from anywhere: .gpu/gpu.sh [tests] [verify] [sanitizer] [bench]; all four without arguments.
# MODELS (default llama-3.1-8b smollm2-135m) are what verify, sanitizer and bench take; OUT is where results go (default .gpu/out).
set -u
cd "$(dirname "$0")/.." || exit 2
gpu=$PWD/.gpu
OUT=${OUT:-$gpu/out}
MODELS=${MODELS:-llama-3.1-8b smollm2-135m}
mkdir -p "$OUT"
export KVLOOM_REQUIRE_GPU=1 KVLOOM_CACHE="${KVLOOM_CACHE:-$OUT/cache}"
failed=
step() { # step NAME COMMAND...: runs, keeps the output, remembers a failure
  name=$1
  shift
  echo "== $name"
  if "$@" >"$OUT/$name.log" 2>&1; then
    tail -n 5 "$OUT/$name.log"
  else
    tail -n 40 "$OUT/$name.log"
    failed="$failed $name"
  fi
}
tests() {
  for t in "$gpu"/tests/*; do
    [ -x "$t" ] || continue
    package=$(basename "$t" | tr + /) # tests read their testdata in the checkout
    step "test-$(basename "$t")" sh -c "cd '$package' && '$t' -test.timeout 9m -test.v"
  done
}
verify() { for m in $MODELS; do step "verify-$m" "$gpu/kvloom" verify "$m" --device cuda; done; }
sanitizer() {
  sanitizer=$(command -v compute-sanitizer || echo /usr/local/cuda/bin/compute-sanitizer)
  for tool in memcheck racecheck initcheck synccheck; do
    for m in $MODELS; do
      step "$tool-$m" "$sanitizer" --tool "$tool" --error-exitcode 9 "$gpu/kvloom" verify "$m" --device cuda
    done
  done
}
bench() { for m in $MODELS; do step "bench-$m" "$gpu/kvloom" bench "$m" --against torch --out "$OUT/results.jsonl"; done; }
"$gpu/kvloom" doctor || echo "doctor found something missing (above)"
for part in ${*:-tests verify sanitizer bench}; do
  case $part in
  tests | verify | sanitizer | bench) $part ;;
  *) echo "gpu.sh: no part called $part; there are tests, verify, sanitizer, bench" >&2; exit 2 ;;
  esac
done
[ -z "$failed" ] || { echo "failed:$failed"; exit 1; }
echo "all passed; logs in $OUT"
