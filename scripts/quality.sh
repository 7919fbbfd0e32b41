#!/usr/bin/env bash
# Writes the tables and pictures of docs/quality with the float64 reference: no GPU, two cores, a few minutes.
#
#   scripts/quality.sh KVLOOM OUT FILE...
#
# FILES are dumps named TEXT_layerNN.safetensors. Where a layer is there of two texts, each serves the other as "another text".
set -euo pipefail

kvloom=$1 out=$2
shift 2
files=("$@")
mkdir -p "$out"
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

# Files that have a counterpart of another text, and the counterparts in the same order.
paired=() others=() calibrations=()
for file in "${files[@]}"; do
  layer=${file##*_}
  for other in "${files[@]}"; do
    if [ "$other" != "$file" ] && [ "${other##*_}" = "$layer" ]; then
      "$kvloom" calibrate "$other" -o "$work/$(basename "$other")" >/dev/null
      paired+=("$file") others+=("$other") calibrations+=("$work/$(basename "$other")")
      break
    fi
  done
done
join() { local IFS=,; echo "$*"; }

forms=r1w,r2w,r4w,r8w,r2c4,r1c4m4,r2c4w,r2c4s16w,r1c4w,r1c4m4w,r1c4m4s16w,r1c4m4wp2,r1wg2,r2wg2,r2wp2
measure() { "$kvloom" quality "$@" --queries 32 --markdown; }
section() { # title, sentence
  printf '\n## %s\n\n%s\n' "$1" "$2"
}

{
  echo "# Tables of ${#files[@]} files"
  echo
  for file in "${files[@]}"; do echo "- $(basename "$file")"; done
  echo
  echo "Made by \`make quality\`; [README.md](../README.md) says what the columns mean. The last 32 queries of each file are"
  echo "measured, those before them give the second moment of weighted forms."

  section "Scores, forms and the exact rerank" "Means over the files."
  measure "${files[@]}" --form $forms --rerank 1,1.5,2,3 --plot "$out"
  "$kvloom" quality "${files[@]}" --queries 32 --form $forms --rerank 1,1.5,2,3 --budget 256 --context 131072 --json --plot "$work/long" >/dev/null
  for format in png svg; do cp "$work/long/pareto.$format" "$out/pareto-128k.$format"; done

  if [ ${#paired[@]} -gt 0 ]; then
    section "Second moment and mean key of another text" "Calibrated with \`kvloom calibrate\` on the same layer of the other text: ${#paired[@]} files."
    measure "${paired[@]}" --scorer exact_lse,page_local --rank 1,4 --form r1w,r4w,r2c4s16w,r1c4m4w --rerank 1,2 --budget 256,1024 \
      --calibration "$(join "${calibrations[@]}")"
    section "The same files by their own moment" "For comparison with the section above."
    measure "${paired[@]}" --scorer exact_lse,page_local --rank 1,4 --form r1w,r4w,r2c4s16w,r1c4m4w --rerank 1,2 --budget 256,1024
    section "Bases of another text" "\`hybrid_global\` and \`shared_global\` are fitted to the same layer of the other text."
    measure "${paired[@]}" --scorer page_local,hybrid,hybrid_global,shared,shared_global --rank 4,8 --budget 256,512,1024 --other "$(join "${others[@]}")"
  fi

  section "Before the rotary embedding" "\`pre_rope\` is \`page_local\` fitted to keys turned back by their positions."
  measure "${files[@]}" --scorer page_local,pre_rope --rank 1,2,4,8 --budget 256,1024

  section "Scans" "\`two_level\`: rank-1 summaries of 4 pages, then a quarter of the groups.
\`previous_step\`: a quarter of the pages, all of them every 8 steps."
  measure "${files[@]}" --scorer page_local --rank 4 --form r4w,r1c4m4w --scan full,two_level,previous_step --rerank 1,2 --budget 256,1024

  section "Combine rules" "Recall is against the exact choice of \`share_average\`, for \`per_head\` against each head's own."
  measure "${files[@]}" --scorer exact_lse,page_local --rank 4,8 --budget 256,512,1024 \
    --combine share_average,peak_normalised,group_mass,group_max,per_head

  section "Page sizes" "Bytes are those of one page: a page of 64 has a quarter of the pages of 16."
  measure "${files[@]}" --scorer exact_lse,page_local,quest,mean_key --rank 4 --page-size 8,16,32,64 --budget 1024

  section "Basis widths" "\`float\` leaves centroid and coefficients unquantised as well."
  measure "${files[@]}" --scorer page_local --rank 4 --bits 2,4,8,16,float --budget 256,1024

  section "KIVI caches" "Attention reads quantised pages, summaries are of the keys in 16 bits or (\`pre\`) of the quantised ones. Mass and recall
are those of the keys in 16 bits, the error is against dense attention in 16 bits."
  measure "${files[@]}" --scorer exact_lse,page_local --rank 4,8 --budget 256,1024,2048 --cache bf16,kivi4,kivi4-pre,kivi2,kivi2-pre
} >"$out/tables.md.part"
mv "$out/tables.md.part" "$out/tables.md"

{
  echo "# Tables of each file"
  echo
  echo "Made by \`make quality\`, as [tables.md](tables.md)."
  for file in "${files[@]}"; do
    section "$(basename "$file" .safetensors)" "The last 32 queries."
    measure "$file" --budget 256,1024 --form r2c4s16w,r1c4m4w --rerank 1,2
  done
} >"$out/files.md.part"
mv "$out/files.md.part" "$out/files.md"
