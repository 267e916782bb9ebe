#!/bin/sh
# SPDX-License-Identifier: Apache-2.0

# Regenerates the fine-tuning traces of bench/results: pretrains once, then records each learning rate, from the fp32
# weights as they are and from their bf16 roundings; prints the reports, and what the command sparsecast makes of them.
#
#     bench/traces/record.sh [DIRECTORY]        (default: bench/traces/data, which git ignores)
#
# Needs the Python package with its extra "record", torch, and sparsecast on the PATH. What is there already is kept.
set -eu
directory=${1:-$(dirname "$0")/data}
rates="1e-06 3e-06 1e-05"
steps=${STEPS:-30}
skip=${SKIP:-12}

for start in "" -rounded; do
  for rate in $rates; do
    trace=$directory/lr$rate$start
    [ -d "$trace" ] || sparsecast-record train -o "$directory" --learning-rate "$rate" --steps "$steps" --skip "$skip" \
      ${start:+--from-rounded}
  done
done

cd "$directory"
sparsecast-record report lr1e-06 lr3e-06 lr1e-05 --plot traces.png
for rate in $rates; do
  sparsecast-record report "lr$rate-rounded"
done

anchor=$(printf 'step_%06d.safetensors' "$skip")
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
for trace in lr*; do
  sparsecast convert "$trace" --from trl --to scd --base "$trace/$anchor" --base-version "$skip" \
    --positions packed --values ulp -o "$work/$trace" --json >"$work/$trace.json"
  python3 - "$trace" "$work/$trace.json" <<'PYTHON'
import json, sys
steps = json.load(open(sys.argv[2]))["steps"]
changed = sum(step["changed"] for step in steps)
print(f"{sys.argv[1]}: {sum(step['bytes'] for step in steps) / changed:.3f} bytes a change in .scd files")
PYTHON
done
