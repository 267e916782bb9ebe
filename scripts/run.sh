#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0

# Installs what is missing, builds sparsecast_perf alone (build/run), and broadcasts two training runs from one trainer
# rank to three receiver ranks over TCP on this machine, paced as over a link of 1 Gb/s: the recorded one in
# testdata/trace, then a simulated AdamW run of 0.1 billion weights. Fails when a weight is wrong.
#   SPARSECAST_RANKS=N       instead of 4
#   SPARSECAST_LINK_GBPS=X   instead of 1
#   SPARSECAST_JOBS=N        instead of all cores
# With arguments, runs sparsecast_perf once with these instead, for example:
# scripts/run.sh --ranks 4 --checkpoints testdata/trace --json result.json
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

# Less than what lib.sh names: no tests, no Python, no MPI.
packages=(
  cmake g++ ninja-build
  libcli11-dev libfmt-dev libhwy-dev libsodium-dev libxxhash-dev libzstd-dev nlohmann-json3-dev
)
mpi_packages=()

# show_progress DESCRIPTION: copies ninja's output to standard output, and its [n/m] to standard error: in one line that
# is written again and again on a terminal, as a number for every tenth of the work elsewhere.
show_progress() {
  local line tenth=0
  while IFS= read -r line; do
    printf '%s\n' "$line"
    [[ $line =~ ^\[([0-9]+)/([0-9]+)\] ]] || continue
    local done=${BASH_REMATCH[1]} all=${BASH_REMATCH[2]}
    if [[ -t 2 ]]; then
      printf '\r%-44s [%d/%d] ' "$1" "$done" "$all" >&2
    elif ((done * 10 / all > tenth)); then
      tenth=$((done * 10 / all))
      printf '%d%% ' "$((tenth * 10))" >&2
    fi
  done
}

build() {
  local description="build sparsecast_perf" start=$SECONDS log
  log=$(log_of "$description")
  [[ -t 2 ]] || printf '%-44s ' "$description" >&2
  if NINJA_STATUS='[%f/%t] ' cmake --build build/run --parallel "$jobs" --target sparsecast_perf 2>&1 </dev/null |
    show_progress "$description" >"$log"; then
    [[ ! -t 2 ]] || printf '\r\033[K%-44s ' "$description" >&2
    printf 'ok %5d s\n' "$((SECONDS - start))" >&2
  else
    printf 'FAILED after %d s; the end of %s:\n' "$((SECONDS - start))" "${log#"$repository"/}" >&2
    tail -n "${SPARSECAST_LOG_LINES:-60}" "$log" >&2
    exit 1
  fi
}

# Device code takes minutes to compile: it is left out unless a GPU that it runs on is here.
device_settings=(-DSPARSECAST_CUDA=OFF)
architectures=$(device_architectures)
if [[ -n $architectures ]]; then
  device_settings=(-DSPARSECAST_CUDA=AUTO "-DCMAKE_CUDA_ARCHITECTURES=$architectures")
fi

install_packages
require_cmake
step "configure build/run" cmake --preset run "${device_settings[@]}"
build

if (($#)); then
  exec build/run/bin/sparsecast_perf "$@"
fi
paced=(build/run/bin/sparsecast_perf --ranks "${SPARSECAST_RANKS:-4}" --link-gbps "${SPARSECAST_LINK_GBPS:-1}")
printf '\nA recorded training run: AdamW, learning rate 1e-6\n'
"${paced[@]}" --checkpoints testdata/trace
printf '\nA larger one, simulated: AdamW on 0.1 billion weights\n'
"${paced[@]}" --synthetic --layers 6 --width 1024 --vocabulary 32000 --steps 3
