#!/usr/bin/env bash
# Runs on a GPU machine, from anywhere: .gpu/gpu.sh [tests] [verify] [sweep] [sanitizer] [bench] [shapes] [bytes]; without arguments all but bytes.
# shapes measures the lists of shapes (SHAPES, default bars,rerank,crossover,growth,drop-growth,breadth) in one process, beside peers where
# AGAINST names some; bytes needs Nsight Compute.
# MODELS (default: all) are what verify takes, BENCH (default llama-3.1-8b smollm2-135m) what bench takes, PEERS (default torch) what it
# runs beside, RANDOM_SPECS (default 200) how many generated specs sweep takes; OUT is where results go (default .gpu/out).
# What measures no time runs side by side, SIDE (default 4) at once: one case takes 33 GB of device memory to pass 2^32 elements.
# bench, shapes and bytes run alone. Verify runs the models side by side in one process: several processes would take turns on the GPU.
set -u
cd "$(dirname "$0")/.." || exit 2
gpu=$PWD/.gpu
OUT=${OUT:-$gpu/out}
MODELS=${MODELS:-$("$gpu/kvloom" spec list --json | sed -n 's/.*"name": *"\([^"]*\)".*/\1/p')}
BENCH=${BENCH:-llama-3.1-8b smollm2-135m}
PEERS=${PEERS:-torch}
RANDOM_SPECS=${RANDOM_SPECS:-200}
SIDE=${SIDE:-4}
mkdir -p "$OUT/logs"
export KVLOOM_REQUIRE_GPU=1 KVLOOM_CACHE="${KVLOOM_CACHE:-$OUT/cache}"
rm -f "$OUT"/logs/*.failed
step() { # step NAME COMMAND...: runs, keeps the output, remembers a failure
  name=$1
  shift
  start=$(date +%s)
  if "$@" >"$OUT/logs/$name.log" 2>&1; then
    echo "ok     $name, $(($(date +%s) - start)) s: $(tail -n 1 "$OUT/logs/$name.log" | cut -c1-90)"
  else
    : >"$OUT/logs/$name.failed"
    echo "FAILED $name"
    tail -n 40 "$OUT/logs/$name.log"
  fi
}
beside() { # beside NAME COMMAND...: a step in the background, when fewer than SIDE run
  while [ "$(jobs -rp | wc -l)" -ge "$SIDE" ]; do wait -n; done
  step "$@" &
}
tests() {
  for t in "$gpu"/tests/*; do
    [ -x "$t" ] || continue
    package=$(basename "$t" | tr + /)
    beside "test-$(basename "$t")" sh -c "cd '$package' && '$t' -test.timeout 9m -test.v"
  done
  wait
}
verify() {
  step verify "$gpu/kvloom" verify $MODELS --device cuda --workloads small
  step verify-full "$gpu/kvloom" verify $BENCH --device cuda --workloads full
}
sweep() {
  step sweep-axes "$gpu/kvloom" verify --sweep axes --device cuda
  step sweep-random "$gpu/kvloom" verify --sweep "random:$RANDOM_SPECS" --device cuda
}
sanitizer() {
  sanitizer=$(command -v compute-sanitizer || echo /usr/local/cuda/bin/compute-sanitizer)
  # What smollm2-135m does not ask for: a rerank, a KIVI cache, small records, adaptive budgets over a cache of 8 bits.
  common='attention: {query_heads: 8, kv_heads: 2, head_dim: 64}
workloads: [{context: 1024, batch: 1}]'
  printf '%s\n' "name: rerank" "$common" 'cache: {page_size: 16}' 'locks: {rank: 4, rerank: 2, budget_tokens: 128}' >"$OUT/rerank.yaml"
  printf '%s\n' "name: kivi" "$common" 'cache: {dtype: kivi4, page_size: 16}' 'locks: {rank: 4, budget_tokens: 128}' >"$OUT/kivi.yaml"
  printf '%s\n' "name: small" "$common" 'cache: {page_size: 16}' \
    'locks: {rank: 2, coefficient_bits: 4, centroid_bits: 4, scale_group: 16, budget_tokens: 128}' >"$OUT/small.yaml"
  printf '%s\n' "name: adaptive" "$common" 'cache: {dtype: fp8_e4m3, page_size: 16}' 'dropkv: {head_budgets: {kind: adaptive, floor: 0.2}}' >"$OUT/adaptive.yaml"
  while read -r spec family; do
    for tool in memcheck racecheck initcheck synccheck; do
      largest=0
      [ "$tool" = synccheck ] && largest=8 # it takes clusters of 16 for faults: scripts/synccheck.cu
      beside "$tool-$(basename "$spec" .yaml)-$family" "$sanitizer" --tool "$tool" --error-exitcode 9 "$gpu/kvloom" verify "$spec" \
        --family "$family" --device cuda --workloads quick --max-cluster "$largest"
    done
  done <<EOF
smollm2-135m page_score
smollm2-135m page_attend
smollm2-135m page_select
smollm2-135m page_summary
smollm2-135m page_select_attend
smollm2-135m drop_select,drop_pool_select
smollm2-135m drop_observe,drop_observe_score
smollm2-135m drop_score
smollm2-135m drop_compact
$OUT/rerank.yaml page_rerank
$OUT/rerank.yaml page_rerank_attend,page_select_rerank_attend
$OUT/kivi.yaml kv_quantize,page_attend
$OUT/small.yaml page_summary,page_score
smollm2-135m drop_pool
$OUT/adaptive.yaml drop_allot
$OUT/adaptive.yaml drop_observe,drop_score,drop_compact
EOF
  wait
}
shapes() { step shapes "$gpu/kvloom" bench --shapes "${SHAPES:-bars,rerank,crossover,growth,drop-growth,breadth}" ${AGAINST:+--against "$AGAINST"} --out "$OUT/results.jsonl"; }
bytes() { step bytes env KVLOOM="$gpu/kvloom" scripts/ncu-bytes.sh; }
bench() { for m in $BENCH; do step "bench-$m" "$gpu/kvloom" bench "$m" --against "$PEERS" --out "$OUT/results.jsonl"; done; }
"$gpu/kvloom" doctor || echo "doctor found something missing (above)"
for part in ${*:-tests verify sweep sanitizer bench shapes}; do
  case $part in
  tests | verify | sweep | sanitizer | bench | shapes | bytes) $part ;;
  *) echo "gpu.sh: no part called $part; there are tests, verify, sweep, sanitizer, bench, shapes, bytes" >&2; exit 2 ;;
  esac
done
failed=$(cd "$OUT/logs" && ls ./*.failed 2>/dev/null)
[ -z "$failed" ] || { echo "failed:" $failed; exit 1; }
echo "all passed; logs in $OUT/logs"
