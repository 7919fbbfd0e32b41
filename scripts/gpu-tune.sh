#!/usr/bin/env bash
# What the tuner claims, measured on a GPU machine: scripts/gpu-tune.sh [compile] [three] [check] [agree] [sweep] [faults]; all six without
# arguments. On an H200 with 16 processors each step says beside its name below what it takes.
# K: the tool (default .gpu/kvloom). T: folder of test binaries (default .gpu/tests). OUT: where results go (default .gpu/out).
# BUDGET and KILL are of three: tuning time in all, and the seconds after which the first two runs are killed. FLAGS goes to its tune.
set -u
cd "$(dirname "$0")/.." || exit 2
gpu=$PWD/.gpu
K=${K:-$gpu/kvloom} T=${T:-$gpu/tests} OUT=${OUT:-$gpu/out}/tune
MODELS=${MODELS:-llama-3.1-8b smollm2-135m glm-4-9b-chat-1m}
BUDGET=${BUDGET:-5m} KILL=${KILL:-100} FLAGS=${FLAGS:-} # FLAGS: beyond these
STEPS="${*:-compile three check agree sweep faults}"
mkdir -p "$OUT"

compile() { # candidates into the cache: 1 to 2 minutes, no GPU
  # shellcheck disable=SC2086 # lists of words
  "$K" tune $MODELS --compile && "$K" tune llama-3.1-8b --compile --only page_score
}

three() { # three models from nothing in three runs of one budget and database, two of them killed with SIGKILL: BUDGET
  rm -f "$OUT"/tune.db*
  for n in 1 2 3; do
    # shellcheck disable=SC2086
    "$K" tune $MODELS --budget "$BUDGET" --db "$OUT/tune.db" --out "$OUT/" --tables "$OUT/tables" $FLAGS >"$OUT/run$n.txt" 2>"$OUT/run$n.err" &
    pid=$!
    if [ $n -lt 3 ]; then
      (sleep "$KILL" && kill -KILL $pid) 2>/dev/null &
      watch=$!
    fi
    wait $pid
    code=$?
    [ $n -lt 3 ] && kill $watch 2>/dev/null
    echo "run $n ended with $code; trials kept: $("$K" db show "$OUT/tune.db" --json | grep -c '"class"')"
  done
  "$K" db check "$OUT/tune.db"
  for m in $MODELS; do
    echo "$m"
    "$K" db best "$OUT/tune.db" --model "$m"
  done >"$OUT/best.txt"
  "$K" report "$OUT/tune.db" -o "$OUT/report.html"
}

check() { # equal kernels, measured as two candidates: 20 s
  "$K" tune llama-3.1-8b --self-check --pairs 100 --json >"$OUT/self-check.json" 2>"$OUT/self-check.err"
  echo "ended with $?: $(grep -m1 '"differ": [0-9]' "$OUT/self-check.json") of 100"
}

# shellcheck disable=SC2086
agree() { # two tunings from nothing choose alike: 40 s
  for n in 1 2; do
    rm -f "$OUT/agree-$n.db"*
    "$K" tune smollm2-135m --only page_select --only page_attend --only dense --only drop_score --seed $n --budget 1m \
      --db "$OUT/agree-$n.db" --out "$OUT/agree-$n.kvb" $FLAGS >"$OUT/agree-$n.txt" 2>&1
  done
  "$K" compare "$OUT/agree-1.db" "$OUT/agree-2.db" --fail-on none --json >"$OUT/agree.json"
  "$K" compare "$OUT/agree-1.db" "$OUT/agree-2.db" --fail-on none >"$OUT/agree.txt" 2>&1
  tail -n 1 "$OUT/agree.txt"
}

# shellcheck disable=SC2086
sweep() { # every candidate of page_score for three workloads; page_attend's and drop_score's come from three: 1 minute
  rm -f "$OUT"/sweep.db*
  "$K" tune llama-3.1-8b --only page_score --workload 131072x1 --workload 524288x1 --workload 131072x8 --strategy exhaustive --rounds 0 \
    --precision 0.02 --budget 0 --db "$OUT/sweep.db" --out "$OUT/sweep.kvb" $FLAGS >"$OUT/sweep.txt" 2>"$OUT/sweep.err"
  "$K" lab record "$OUT/sweep.db" --model llama-3.1-8b --family page_score -o "$OUT/llama-3.1-8b-page_score.json"
  for family in page_attend drop_score; do
    [ -f "$OUT/tune.db" ] && "$K" lab record "$OUT/tune.db" --model llama-3.1-8b --family $family -o "$OUT/llama-3.1-8b-$family.json"
  done
}

faults() { # planted kernels: 45 s, alone on the GPU, for a hang of one is felt by others
  (cd autotune && KVLOOM_REQUIRE_GPU=1 "$T/autotune" -test.run 'TestPlantedOnTheGPU|TestThirtyFaultsOnTheGPU' -test.v) >"$OUT/faults.txt" 2>&1
  grep -E '^--- |300 trials' "$OUT/faults.txt"
}

for step in $STEPS; do
  start=$(date +%s)
  $step
  echo "== $step, $(($(date +%s) - start)) s"
done
