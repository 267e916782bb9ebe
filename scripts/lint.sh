#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0

# scripts/lint.sh [--all] [--fix] [CHECK...]: installs the tools that are missing and runs the checks that need no build:
#   spdx          every source file begins with its license line
#   directions    dependencies point one way (scripts/include_directions.txt)
#   places        calls that decide about a device's context or memory are made where they are guarded
#   format        clang-format changes nothing
#   ruff          ruff finds nothing, and its formatter changes nothing
#   mypy          the Python package's types
#   tidy          clang-tidy, over the C++ files that changed
# All of them, unless CHECKs are named. --fix lets the first, format and ruff mend what they can before they look.
#   --all                        clang-tidy looks at every file, however long it takes
#   SPARSECAST_LINT_BASE=COMMIT  what "changed" is measured from; else the merge base with origin's main branch
#   SPARSECAST_TIDY_FILES=N, SPARSECAST_TIDY_SECONDS=S   at most so many files (40), begun within so long (120)
#   SPARSECAST_LINT=ON           fail where a tool cannot be installed, instead of going on without it
#   CLANG_FORMAT, CLANG_TIDY     programs to use instead of version 14, which the checks are written for
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

checks=(spdx directions places format ruff mypy tidy)
all=0 fix=0 wanted=()
for argument in "$@"; do
  case $argument in
    --all) all=1 ;;
    --fix) fix=1 ;;
    *)
      [[ " ${checks[*]} " == *" $argument "* ]] || die "usage: scripts/lint.sh [--all] [--fix] [${checks[*]}]"
      wanted+=("$argument")
      ;;
  esac
done
((${#wanted[@]})) || wanted=("${checks[@]}")

failed=()

# look CHECK COMMAND...: a step; a failure is remembered, and the other checks still run.
look() {
  (step "lint: $1" "${@:2}") || failed+=("$1")
}

# without CHECK: says that it is left out because its tool cannot be had.
without() {
  [[ ${SPARSECAST_LINT:-AUTO} != ON ]] || die "cannot install what the check '$1' needs"
  echo "going on without the check '$1'" >&2
}

# clang_tool VARIABLE NAME: the program of that variable, else NAME-14, which is installed if it is missing.
clang_tool() {
  if [[ -n ${!1:-} ]]; then
    printf '%s' "${!1}"
  elif command -v "$2-14"; then
    return
  else
    command -v apt-get >/dev/null && (step "install $2-14" apt_install "$2-14") && command -v "$2-14"
  fi
}

fill_lint_environment() {
  python3 -m venv .venv-lint &&
    .venv-lint/bin/python3 -m pip install --quiet --disable-pip-version-check -r python/tests/requirements-lint.txt &&
    cp python/tests/requirements-lint.txt .venv-lint/installed-requirements.txt
}

prepare_lint_environment() {
  cmp -s python/tests/requirements-lint.txt .venv-lint/installed-requirements.txt ||
    (step "Python environment in .venv-lint" fill_lint_environment)
}

check_spdx() {
  if ((fix)); then scripts/spdx.py --fix; fi
  look spdx scripts/spdx.py --check
}

check_directions() {
  look directions scripts/include_directions.py
}

# only_in CALL FILE...: no other file of what is shipped or measured makes this call.
only_in() {
  local others
  others=$(find src cuda python/src tools bench -type f | grep -vxF -e "$(printf '%s\n' "${@:2}")" |
    xargs grep -nE "\b$1\(" /dev/null) || return 0
  printf '%s is for %s alone:\n%s\n' "$1" "${*:2}" "$others"
  return 1
}

cuda_calls_have_their_places() {
  local code=0
  only_in cudaSetDevice cuda/common/device_guard.hpp src/transport/nccl/cuda_device_api.cpp || code=1
  only_in 'cuda(Malloc|MallocHost|HostAlloc|MallocAsync)' cuda/common/device_memory.hpp src/transport/nccl/cuda_device_api.cpp ||
    code=1
  only_in cudaGraphInstantiate cuda/common/graph.hpp || code=1
  return $code
}

check_places() {
  look places cuda_calls_have_their_places
}

check_format() {
  local program
  program=$(clang_tool CLANG_FORMAT clang-format) || { without format; return; }
  if ((fix)); then CLANG_FORMAT=$program scripts/format.sh; fi
  look format env CLANG_FORMAT="$program" scripts/format.sh --check
}

ruff_finds_nothing() {
  .venv-lint/bin/ruff check . && .venv-lint/bin/ruff format --check .
}

check_ruff() {
  prepare_lint_environment || { without ruff; return; }
  if ((fix)); then
    .venv-lint/bin/ruff check --quiet --fix-only . || true
    .venv-lint/bin/ruff format --quiet .
  fi
  look ruff ruff_finds_nothing
}

# Types of other packages are those of .venv.
check_mypy() {
  prepare_lint_environment && (prepare_package_environment) || { without mypy; return; }
  look mypy env MYPYPATH=python .venv-lint/bin/mypy --python-executable .venv/bin/python3 -p sparsecast
}

# The commit from which changed files are counted.
base_commit() {
  local branch base=${SPARSECAST_LINT_BASE:-}
  if [[ -z $base ]]; then
    for branch in origin/HEAD origin/main origin/master; do
      base=$(git merge-base HEAD "$branch" 2>/dev/null) && break
    done
    if [[ -z $base || $base == "$(git rev-parse HEAD)" ]]; then
      base=HEAD~1
    fi
  fi
  git rev-parse --verify --quiet "$base^{commit}"
}

check_tidy() {
  local program base arguments=(--build build/lint --jobs "$jobs")
  program=$(clang_tool CLANG_TIDY clang-tidy) || { without tidy; return; }
  if ((!all)); then
    base=$(base_commit) || { echo "nothing to compare with: the check 'tidy' is left out" >&2; return; }
    arguments+=(--since "$base" --most-files "${SPARSECAST_TIDY_FILES:-40}" --seconds "${SPARSECAST_TIDY_SECONDS:-120}")
  fi
  (install_packages) || { without tidy; return; }
  # Without nvcc and NCCL's headers the same files are looked at on every machine.
  step "configure build/lint" cmake --preset release -B build/lint -DSPARSECAST_CUDA=OFF -DSPARSECAST_NCCL=OFF
  look tidy scripts/tidy.py --clang-tidy "$program" "${arguments[@]}"
  grep -E '^(clang-tidy: |no time for )' "$(log_of "lint: tidy")" | cut -c 1-400 >&2 || true
}

for check in "${wanted[@]}"; do
  "check_$check"
done
((${#failed[@]} == 0)) || die "failed: ${failed[*]}"
