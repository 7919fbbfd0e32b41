#!/usr/bin/env bash
# Counts the bytes that each kernel reads from and writes to device memory on a GPU, with flushed caches, beside those of the plan's model:
#   scripts/ncu-bytes.sh [MODEL] [CONTEXTxBATCH]     default llama-3.1-8b 131072x1
# KVLOOM is the binary (default: kvloom beside bin/), NCU is Nsight Compute; FLAGS go to kvloom bench (such as --rank 8 or --family page_score).
set -euo pipefail
model=${1:-llama-3.1-8b}
workload=${2:-131072x1}
here=$(cd "$(dirname "$0")/.." && pwd)
kvloom=${KVLOOM:-$here/bin/kvloom}
ncu=${NCU:-$(command -v ncu || echo /usr/local/cuda/bin/ncu)}
counts=$(mktemp)
trap 'rm -f "$counts"' EXIT
# Clocks stay as they are: bytes do not depend on them, and containers may not set them.
"$ncu" --clock-control none --csv --print-units base --metrics dram__bytes_read.sum,dram__bytes_write.sum --log-file "$counts" \
  "$kvloom" bench "$model" --bytes --device cuda --workload "$workload" ${FLAGS:-} >&2
"$kvloom" bench "$model" --bytes --ncu "$counts" --workload "$workload" ${FLAGS:-}
