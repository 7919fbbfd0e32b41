#!/usr/bin/env bash
# Takes what scripts/gpu-tune.sh left into the tree: scripts/gpu-tune-keep.sh OUT, the folder that holds tune/. Tuned tables, sweeps with their
# pictures, the page, the numbers of docs/benchmarks/tuning.md, the generated packages. Sweeps of other candidates than today's are refused
# by kvloom lab. What OUT does not hold stays as it is. `git diff` shows what to commit; the tests of ./autotune/lab hold the sweeps to their bars.
set -eu
out=$(cd "$1" && pwd)/tune
cd "$(dirname "$0")/.."
K=${K:-$(mktemp -d)/kvloom}
[ -x "$K" ] || go build -o "$K" ./cmd/kvloom
have() { ls "$@" >/dev/null 2>&1; }
if have "$out"/tables/*.json && grep -q '^run 3 ended with 0' "$out/three.txt"; then
  python3 scripts/gpu_tune_doc.py tables "$out/tables" specs/tuned
  cp "$out/report.html" docs/benchmarks/tuning.html
fi
for sweep in "$out"/llama-3.1-8b-*.json; do
  [ -f "$sweep" ] || continue
  if "$K" lab "$sweep" --seeds 1 >/dev/null; then
    cp "$sweep" autotune/lab/sweeps/
  else
    echo "left out: $sweep"
  fi
done
if have autotune/lab/sweeps/*.json; then
  rm -rf docs/benchmarks/lab
  "$K" lab --picture docs/benchmarks/lab --json >"$out/lab.json"
fi
python3 scripts/gpu_tune_doc.py doc "$out" docs/benchmarks/tuning.md
go build -o "$K" ./cmd/kvloom # with the tables in it
"$K" gen && "$K" gen --check
go test ./autotune/lab ./specs -count 1 || true
git status --short -- specs/tuned out autotune/lab docs/benchmarks
