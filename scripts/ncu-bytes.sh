#!/usr/bin/env bash
# Counts the bytes that each kernel moves beside those of the plan's model, for specs of one shape that between them use every family:
#   scripts/ncu-bytes.sh [CONTEXTxBATCH [MODEL...]]     on a GPU at device memory, with flushed caches; default 131072x1
#   SIM=1 scripts/ncu-bytes.sh ...                      on the simulator, every sector that is asked for; default 4096x1
# The table goes to standard output, and with TABLE=docs/benchmarks/bytes.md in place of the one there. KVLOOM is the binary (default
# bin/kvloom), NCU is Nsight Compute; FLAGS go to kvloom bench (such as --family page_score).
set -euo pipefail
workload=${1:-${SIM:+4096x1}}
workload=${workload:-131072x1}
shift $(($# > 0))
here=$(cd "$(dirname "$0")/.." && pwd)
kvloom=${KVLOOM:-$here/bin/kvloom}
ncu=${NCU:-$(command -v ncu || echo /usr/local/cuda/bin/ncu)}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
models=("$@")
if [ ${#models[@]} = 0 ]; then
  spec() { # spec NAME SECTION...: llama-3.1-8b's shape
    name=$1
    shift
    printf '%s\n' "name: $name" 'attention: {query_heads: 32, kv_heads: 8, head_dim: 128}' "workloads: [{context: ${workload%x*}, batch: ${workload#*x}}]" "$@" >"$work/$name.yaml"
    models+=("$work/$name.yaml")
  }
  models=(llama-3.1-8b)
  spec fast 'dropkv: {precision: fast}'
  spec adaptive 'dropkv: {head_budgets: {kind: adaptive, floor: 0.2}}'
  spec keydiff 'dropkv: {rule: keydiff}'
  spec weighted 'locks: {rank: 1, basis: query_weighted, rerank: 2}'
  spec kivi4 'cache: {dtype: kivi4}'
fi
bytes() { "$@" bench "${models[@]}" --bytes --workload "$workload" ${FLAGS:-}; }
if [ -n "${SIM:-}" ]; then
  from=simulator
  bytes "$kvloom" >"$work/table.md"
else
  from=counters
  # Clocks stay as they are: bytes do not depend on them, and containers may not set them.
  FLAGS="--device cuda ${FLAGS:-}" bytes "$ncu" --clock-control none --csv --print-units base --metrics dram__bytes_read.sum,dram__bytes_write.sum \
    --log-file "$work/counts.csv" "$kvloom" >&2
  FLAGS="--ncu $work/counts.csv ${FLAGS:-}" bytes "$kvloom" >"$work/table.md"
fi
cat "$work/table.md"
[ -z "${TABLE:-}" ] || {
  sed -n '/^|/p' "$work/table.md" >"$work/rows.md"
  sed -i -e "/<!-- $from:begin -->/,/<!-- $from:end -->/{/<!-- $from:/!d}" -e "/<!-- $from:begin -->/r $work/rows.md" "$TABLE"
}
