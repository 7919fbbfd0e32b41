#!/usr/bin/env bash
# On a GPU machine: tunes three models from nothing in three runs that share one budget of tuning time and one database; the first two runs
# are killed with SIGKILL, as a runner that is taken away. Then tables, bundles, the page and the choices are written.
# K: the tool (default .gpu/kvloom). OUT: folder for results. MODELS, BUDGET, KILL (seconds after which a run is killed), FLAGS: below.
set -u
cd "$(dirname "$0")/.." || exit 2
K=${K:-$PWD/.gpu/kvloom}
OUT=${OUT:-$PWD/.gpu/out}/three
MODELS=${MODELS:-llama-3.1-8b smollm2-135m glm-4-9b-chat-1m}
BUDGET=${BUDGET:-5m}
KILL=${KILL:-100}
FLAGS=${FLAGS:-}
mkdir -p "$OUT"
rm -f "$OUT"/tune.db*
run() { # run LIMIT: one run; 0 lets it end
  # shellcheck disable=SC2086 # lists of words
  "$K" tune $MODELS --budget "$BUDGET" --db "$OUT/tune.db" --out "$OUT/" --tables "$OUT/tables" $FLAGS >"$OUT/run$n.txt" 2>"$OUT/run$n.err" &
  pid=$!
  if [ "$1" -gt 0 ]; then
    (sleep "$1" && kill -KILL $pid) 2>/dev/null &
    watch=$!
  fi
  wait $pid
  code=$?
  [ "$1" -gt 0 ] && kill $watch 2>/dev/null
  echo "run $n ended with $code after $(($(date +%s) - start)) s: $("$K" db show "$OUT/tune.db" --json 2>/dev/null | grep -c '"class"') trials"
}
start=$(date +%s)
for n in 1 2; do run "$KILL"; done
n=3
run 0
"$K" db check "$OUT/tune.db"
for m in $MODELS; do "$K" db best "$OUT/tune.db" --model "$m"; done >"$OUT/best.txt"
"$K" report "$OUT/tune.db" -o "$OUT/report.html"
tail -n 3 "$OUT/run3.err"
