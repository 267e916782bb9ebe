#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0

# Installs what is missing, builds everything and runs every test; TESTING.md says what these are.
#   SPARSECAST_TEST_ASAN=1   the unit tests once more under AddressSanitizer and UndefinedBehaviorSanitizer
#   SPARSECAST_TEST_TSAN=1   and under ThreadSanitizer
#   SPARSECAST_WERROR=ON     warnings are errors
#   SPARSECAST_JOBS=N        instead of all cores
#   SPARSECAST_ENGINES=ON    fail where the packages of vLLM or SGLang cannot be installed, instead of leaving their
#                            tests out
# Arguments go to the first ctest, for example: scripts/test.sh -R Safetensors
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

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

install_packages
prepare_python

build release -DSPARSECAST_PYTHON=ON -DPython_EXECUTABLE="$repository/.venv/bin/python3"
run_tests release "$@"

for sanitizer in asan tsan; do
  wanted=SPARSECAST_TEST_${sanitizer^^}
  if [[ ${!wanted:-0} == 1 ]]; then
    build "$sanitizer"
    run_tests "$sanitizer"
  fi
done

printf '%s\n' "${results[@]}"
