#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0

# scripts/test.sh [--quick] [--no-install] [CTEST ARGUMENT...]
#
# Installs what is missing, builds everything and runs every test; TESTING.md says what these are.
#   --quick                  only the unit tests of core, codecs, layouts and syncs, in a build of their own without
#                            device code and Python: build/quick
#   --no-install             take the machine as it is; without .venv the Python package is left out
#   SPARSECAST_TEST_ASAN=1   the unit tests once more under AddressSanitizer and UndefinedBehaviorSanitizer
#   SPARSECAST_TEST_TSAN=1   and under ThreadSanitizer
#   SPARSECAST_WERROR=ON     warnings are errors
#   SPARSECAST_JOBS=N        instead of all cores
#   SPARSECAST_ENGINES=ON    fail where the packages of vLLM or SGLang cannot be installed, instead of leaving their
#                            tests out
# Other arguments go to the first ctest, for example: scripts/test.sh -R Safetensors
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

quick=0 install=1
while [[ ${1:-} == --quick || ${1:-} == --no-install ]]; do
  if [[ $1 == --quick ]]; then quick=1; else install=0; fi
  shift
done

results=()

# run_tests PRESET [CTEST ARGUMENT...]: remembers the line that ctest closes with.
run_tests() {
  local preset=$1
  shift
  # Many tests wait for a deadline or a process rather than work.
  step "test $preset" ctest --preset "$preset" --parallel $((jobs + 1)) "$@"
  results=("$preset: $(grep -E 'tests passed' "$(log_of "test $preset")")" "${results[@]}")
}

# build PRESET [CMAKE ARGUMENT...]
build() {
  step "configure build/$1" cmake --preset "$1" -DSPARSECAST_WERROR="${SPARSECAST_WERROR:-OFF}" -DSPARSECAST_UNITY=ON \
    -DSPARSECAST_NCCL_PYTHON="$repository/.venv/bin/python3" "${@:2}"
  step "build $1" cmake --build "build/$1" --parallel "$jobs"
}

((!install)) || install_packages
require_cmake
if ((quick)); then
  step "configure build/quick" cmake --preset release -B build/quick -DSPARSECAST_CUDA=OFF -DSPARSECAST_NCCL=OFF \
    -DSPARSECAST_UNITY=ON
  step "build quick" cmake --build build/quick --parallel "$jobs" --target sparsecast_tests
  step "test quick" ctest --test-dir build/quick --label-regex quick --output-on-failure --parallel $((jobs + 1)) "$@"
  grep -E 'tests passed' "$(log_of "test quick")"
  exit
fi
((!install)) || prepare_python

python=()
if [[ -x .venv/bin/python3 ]]; then
  python=(-DSPARSECAST_PYTHON=ON -DPython_EXECUTABLE="$repository/.venv/bin/python3")
fi
build release "${python[@]}"
run_tests release "$@"

for sanitizer in asan tsan; do
  wanted=SPARSECAST_TEST_${sanitizer^^}
  if [[ ${!wanted:-0} == 1 ]]; then
    build "$sanitizer"
    run_tests "$sanitizer"
  fi
done

printf '%s\n' "${results[@]}"
