# SPDX-License-Identifier: Apache-2.0

# shellcheck shell=bash disable=SC2154
# What gpu_check.sh says of its steps, sourced by it: limits, outcomes, logs, and the report after each. Uses its
# variables: stage, build, bin, raw, out, within, python, commit, sources.

# record STAGE STEP OUTCOME SECONDS NOTE
record() {
  printf '%s\t%s\t%s\t%s\t%s\n' "$@" >>"$raw/steps.$1.tsv"
  printf '%-9s %-28s %-7s %5d s  %s\n' "$@"
  report >/dev/null
}

begin_stage() {
  stage=$1
  : >"$raw/steps.$1.tsv"
}

# Seconds that are kept for ending a step that does not want to, and for the report.
reserve=15

# What a command exits with that this machine does not permit; the last line that it printed says why.
export refused=69

# try STEP SECONDS COMMAND...: runs the command for at most so long, and notes how it ended.
try() {
  local name=$1 limit=$(($2 * ${SPARSECAST_PATIENCE:-1})) start=$SECONDS code outcome=PASS note=
  shift 2
  local log=$raw/logs/$stage-${name//[^a-zA-Z0-9_]/-}.log
  if [[ -n $within ]] && ((within - SECONDS - reserve < limit)); then
    limit=$((within - SECONDS - reserve))
    if ((limit < 5)); then
      : >"$log"
      record "$stage" "$name" FAIL 0 "no time left of $within s"
      return 1
    fi
  fi
  timeout --kill-after=10 "$limit" "$@" >"$log" 2>&1 </dev/null
  code=$?
  if ((code == 124 || code == 137)); then
    outcome=FAIL note="ran past $limit s"
  elif ((code == refused)); then
    outcome=SKIPPED note=$(tail -n 1 "$log")
  elif ((code != 0)); then
    outcome=FAIL note="exit code $code"
  fi
  record "$stage" "$name" "$outcome" $((SECONDS - start)) "$note"
  [[ $outcome != FAIL ]] || tail -n 25 "$log"
  return "$code"
}

skip() { record "$stage" "$1" SKIPPED 0 "$2"; }

# needs PROGRAM STEP: records the step as failed when the program was not built.
needs() {
  [[ -x $bin/$1 ]] && return
  record "$stage" "$2" FAIL 0 "$1 is not built; run --stage build"
  return 1
}

smi() { timeout 30 nvidia-smi "$@" 2>/dev/null; }

# A device that answers. Its description goes to machine.json and smi.txt.
has_device() {
  smi --query-gpu=name,driver_version,clocks.sm,clocks.mem,temperature.gpu,power.draw --format=csv >"$raw/smi.txt"
  if [[ -x $bin/cuda_bench ]]; then
    timeout 60 "$bin/cuda_bench" --machine >"$raw/machine.json" 2>"$raw/machine.txt"
  else
    # What else is built can be tried all the same.
    echo "cuda_bench is not built (--stage build)" >"$raw/machine.txt"
    smi -L | grep -q '^GPU'
  fi
}

# Steps may end at the same time.
report() {
  (
    flock 9
    for name in "${all_stages[@]}"; do
      [[ ! -f $raw/steps.$name.tsv ]] || cat "$raw/steps.$name.tsv"
    done >"$raw/steps.tsv"
    # The beginning and the end of each log: a program that prints without end must not hide the others.
    cd "$raw/logs" && for log in *.log; do
      [[ -f $log ]] || continue
      printf '==> %s <==\n' "$log"
      if (($(wc -c <"$log") > 400000)); then
        head -c 200000 "$log" && printf '\n[...]\n' && tail -c 200000 "$log"
      else
        cat "$log"
      fi
    done >"$out/logs.txt" 2>/dev/null
    cd "$repository" &&
      "$python" scripts/gpu_report.py --raw "$raw" --out "$out" --commit "$commit" --sources "$sources"
  ) 9>"$raw/lock"
}
