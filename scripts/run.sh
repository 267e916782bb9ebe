#!/usr/bin/env bash
# Installs what is missing, builds, and broadcasts the training run in testdata/trace from one trainer rank to three
# receiver ranks, under mpirun, or over TCP where there is no MPI. Arguments go to sparsecast_perf, for example:
# scripts/run.sh --json result.json
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

install_packages
step "configure build/release" cmake --preset release
step "build sparsecast_perf and the command" \
  cmake --build build/release --parallel "$jobs" --target sparsecast_perf sparsecast_cli

ranks=${SPARSECAST_RANKS:-4}
perf=(build/release/bin/sparsecast_perf --checkpoints testdata/trace)
if command -v mpirun >/dev/null && grep -q ' MPI ON' "$(log_of "configure build/release")"; then
  mpi_run "$ranks" "${perf[@]}" "$@"
else
  "${perf[@]}" --ranks "$ranks" "$@"
fi
