#!/usr/bin/env bash
# What the tuner claims, measured on a GPU machine: scripts/gpu-tune.sh [compile] [faults] [sweep] [three] [check] [agree]; all six without
# arguments, in this order whatever the order of the arguments: faults and compile run side by side, and what is worth most is measured first.
# On an H200 with 16 processors each takes what SECONDS_OF says, BUDGET of three included: 490 s in all. A step that would not end within
# LIMIT is not begun, and each of its commands is ended when it takes half as long again; what is done by then stays under OUT.
# Afterwards, in a checkout: scripts/gpu-tune-keep.sh OUT takes the results into the tree.
# K: the tool (default .gpu/kvloom). T: folder of test binaries (default .gpu/tests). OUT: where results go (default .gpu/out).
# BUDGET and KILL are of three: seconds of tuning in all, and after which the first two runs are killed. FLAGS goes to every tune.
set -u
cd "$(dirname "$0")/.." || exit 2
gpu=$PWD/.gpu
K=${K:-$gpu/kvloom} T=${T:-$gpu/tests} OUT=${OUT:-$gpu/out}/tune
MODELS=${MODELS:-llama-3.1-8b smollm2-135m glm-4-9b-chat-1m}
BUDGET=${BUDGET:-165} && BUDGET=${BUDGET%s}
KILL=${KILL:-$((BUDGET / 3))} FLAGS=${FLAGS:-} LIMIT=${LIMIT:-540}
declare -A SECONDS_OF=([compile]=75 [faults]=70 [sweep]=85 [three]=$((BUDGET + 20)) [check]=40 [agree]=105)
STEPS=" ${*:-compile faults sweep three check agree} "
mkdir -p "$OUT"
start=$(date +%s)
now() { echo $(($(date +%s) - start)); }
within() { # within STEP COMMAND: the command, for as long as the step may take
  timeout -k 5 $((SECONDS_OF[$1] * 3 / 2)) "${@:2}"
}

# Candidates into the cache, no GPU: those of small spaces, and all of the one that sweep measures.
compile() {
  # shellcheck disable=SC2086 # lists of words
  within compile nice "$K" tune $MODELS --compile >"$OUT/compile.txt" 2>&1
  [[ $STEPS == *" sweep "* ]] && within compile nice "$K" tune llama-3.1-8b --compile --only page_score >>"$OUT/compile.txt" 2>&1
  grep compiled "$OUT/compile.txt"
}

# Planted kernels, alone on the GPU: a hang of one is felt by others.
faults() {
  chmod +x "$T/autotune"
  (cd autotune && KVLOOM_REQUIRE_GPU=1 within faults "$T/autotune" -test.run 'TestPlantedOnTheGPU|TestThirtyFaultsOnTheGPU' -test.v) >"$OUT/faults.txt" 2>&1
  grep -E '^ *--- |300 trials' "$OUT/faults.txt"
}

# Every candidate of two families for the model's three workloads.
sweep() {
  rm -f "$OUT"/sweep.db*
  # shellcheck disable=SC2086
  within sweep "$K" tune llama-3.1-8b --only drop_score --only page_score --strategy exhaustive --rounds 0 \
    --precision 0.02 --budget 0 --db "$OUT/sweep.db" --out "$OUT/sweep.kvb" $FLAGS >"$OUT/sweep.txt" 2>"$OUT/sweep.err"
  for family in page_score drop_score; do
    "$K" lab record "$OUT/sweep.db" --model llama-3.1-8b --family $family --whole -o "$OUT/llama-3.1-8b-$family.json"
  done
}

# Three models from nothing in three runs of one budget and database, two of them killed with SIGKILL.
three() {
  rm -f "$OUT"/tune.db*
  for n in 1 2 3; do
    after=$KILL
    [ $n -eq 3 ] && after=$((BUDGET + 60))
    # shellcheck disable=SC2086
    timeout -s KILL "$after" "$K" tune $MODELS --budget "${BUDGET}s" --precision 0.01 --db "$OUT/tune.db" --out "$OUT/" --tables "$OUT/tables" $FLAGS \
      >"$OUT/run$n.txt" 2>"$OUT/run$n.err"
    code=$?
    echo "run $n ended with $code; trials kept: $("$K" db show "$OUT/tune.db" --json | grep -c '"class"')" | tee -a "$OUT/three.txt"
  done
  "$K" db check "$OUT/tune.db" | tee -a "$OUT/three.txt"
  for m in $MODELS; do
    echo "$m"
    "$K" db best "$OUT/tune.db" --model "$m"
  done >"$OUT/best.txt"
  "$K" report "$OUT/tune.db" -o "$OUT/report.html"
}

# Equal kernels, measured as two candidates.
check() {
  within check "$K" tune llama-3.1-8b --self-check --pairs 100 --json >"$OUT/self-check.json" 2>"$OUT/self-check.err"
  echo "ended with $?: $(grep -m1 '"differ": [0-9]' "$OUT/self-check.json") of $(grep -m1 '"pairs"' "$OUT/self-check.json")"
}

# Two tunings from nothing choose alike.
agree() {
  for n in 1 2; do
    rm -f "$OUT/agree-$n.db"*
    # shellcheck disable=SC2086
    within agree "$K" tune smollm2-135m --only page_select --only page_attend --only dense --only page_select_attend --only drop_pool --only drop_select \
      --only drop_compact --seed $n --budget 1m --precision 0.01 --db "$OUT/agree-$n.db" --out "$OUT/agree-$n.kvb" $FLAGS >"$OUT/agree-$n.txt" 2>&1
  done
  "$K" compare "$OUT/agree-1.db" "$OUT/agree-2.db" --fail-on none --json >"$OUT/agree.json"
  "$K" compare "$OUT/agree-1.db" "$OUT/agree-2.db" --fail-on none >"$OUT/agree.txt" 2>&1
  tail -n 1 "$OUT/agree.txt"
}

step() {
  [[ $STEPS == *" $1 "* ]] || return
  if [ $(($(now) + SECONDS_OF[$1])) -gt "$LIMIT" ]; then
    echo "== no time for $1 after $(now) s"
    return
  fi
  local begun
  begun=$(now)
  $1
  echo "== $1, $(($(now) - begun)) s"
}

step compile &
compiling=$!
step faults
wait $compiling
for name in sweep three check agree; do step $name; done
