# SPDX-License-Identifier: Apache-2.0

# shellcheck shell=bash
# Shared by the scripts; source it. Everything here is idempotent, and quiet when there is nothing to do.

set -euo pipefail

repository=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
cd "$repository"

jobs=${SPARSECAST_JOBS:-$(nproc)}
logs=$repository/build/logs

packages=(
  ccache cmake g++ make ninja-build pkg-config
  libcurl4-openssl-dev libfmt-dev libhwy-dev libsodium-dev libxxhash-dev libzstd-dev nlohmann-json3-dev
  libbenchmark-dev libcli11-dev libgmock-dev libgtest-dev
  python3-dev python3-venv spin
)
# Everything but what is about MPI works without these.
mpi_packages=(libopenmpi-dev openmpi-bin)

# CUDA's compiler and tools are often installed and not on the path. What nobody names is looked for as
# cmake/DeviceCompiler.cmake does.
if [[ ${CUDACXX:-} == */nvcc && $(command -v nvcc) != "$CUDACXX" ]]; then
  PATH=${CUDACXX%/nvcc}:$PATH
fi
for toolkit in ${CUDA_HOME:+"$CUDA_HOME"} ${CUDA_PATH:+"$CUDA_PATH"} /usr/local/cuda; do
  for directory in "$toolkit/bin" "$toolkit/compute-sanitizer"; do
    [[ ! -d $directory || :$PATH: == *:$directory:* ]] || PATH+=:$directory
  done
done
unset toolkit directory

# Two builds in one checkout (the library's, and pip's) share what the compiler made.
export CCACHE_BASEDIR=${CCACHE_BASEDIR:-$repository}

# Open MPI refuses root unless it is told twice. One machine needs no remote shell, and containers often forbid the
# kernel's cross-process copy, of which Open MPI would complain. Other launchers ignore all of these.
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
export OMPI_MCA_plm_rsh_agent=${OMPI_MCA_plm_rsh_agent:-false}
export OMPI_MCA_btl_vader_single_copy_mechanism=${OMPI_MCA_btl_vader_single_copy_mechanism:-none}

die() {
  printf '%s: %s\n' "${0##*/}" "$*" >&2
  exit 1
}

# log_of DESCRIPTION: where that step leaves its output.
log_of() {
  printf '%s/%s.log' "$logs" "$(printf '%s' "$1" | tr -cs 'a-zA-Z0-9_' '-')"
}

# step DESCRIPTION COMMAND...: runs the command with its output in a log; shows the end of the log when it fails.
step() {
  local description=$1 start=$SECONDS log
  shift
  mkdir -p "$logs"
  log=$(log_of "$description")
  printf '%-44s ' "$description" >&2
  if "$@" >"$log" 2>&1 </dev/null; then
    printf 'ok %5d s\n' "$((SECONDS - start))" >&2
  else
    printf 'FAILED after %d s; the end of %s:\n' "$((SECONDS - start))" "${log#"$repository"/}" >&2
    tail -n "${SPARSECAST_LOG_LINES:-60}" "$log" >&2
    exit 1
  fi
}

as_root() {
  if [[ $(id -u) -eq 0 ]]; then
    "$@"
  elif command -v sudo >/dev/null; then
    sudo -n "$@"
  else
    die "needs root or sudo for: $*"
  fi
}

# For a node of a cluster.
without_root="without root or network 'scripts/gpu_check.sh' builds and tests the device code with what is there, or \
with packages that '--debs DIRECTORY' unpacks and '--fetch DIRECTORY' has downloaded elsewhere"

apt_install() {
  as_root env DEBIAN_FRONTEND=noninteractive apt-get update -qq
  as_root env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "$@"
}

# why_not_cmake: prints why this cmake cannot configure the project; nothing when it can.
why_not_cmake() {
  local wanted version
  wanted=$(sed -n 's/^cmake_minimum_required(VERSION \(.*\))$/\1/p' "$repository/CMakeLists.txt")
  version=$(cmake --version 2>/dev/null | sed -n '1s/^cmake version //p') || true
  [[ $(printf '%s\n' "$wanted" "${version:-0}" | sort -V | head -n 1) == "$wanted" ]] ||
    echo "needs CMake $wanted or newer, not ${version:-none}; 'pip install cmake ninja' brings it without root"
}

require_cmake() {
  local why_not
  why_not=$(why_not_cmake)
  [[ -z $why_not ]] || die "$why_not"
}

# device_architectures: prints the compute capabilities of this machine's GPUs that device code is made for, as CMake
# takes them ("80;90"); nothing when there are none.
device_architectures() {
  local capabilities
  capabilities=$(timeout 30 nvidia-smi --query-gpu=compute_cap --format=csv,noheader 2>/dev/null | tr -d '. \r' |
    grep -Ex '[0-9]+' | sort -nu | awk '$1 >= 80') || true
  printf '%s' "${capabilities//$'\n'/;}"
}

# missing_of PACKAGE...: those that this machine lacks.
missing_of() {
  local package
  for package in "$@"; do
    if [[ $(dpkg-query -W -f '${db:Status-Status}' "$package" 2>/dev/null) != installed ]]; then
      printf '%s\n' "$package"
    fi
  done
}

# install_packages [PACKAGE...]: what `packages`, `mpi_packages` and the arguments name and this machine lacks. Where
# there is an MPI of another origin, or none to be had, it goes on without Open MPI.
install_packages() {
  if ! command -v dpkg-query >/dev/null; then
    echo "no dpkg here: install by hand what is missing of: ${packages[*]} ${mpi_packages[*]} $*" >&2
    return
  fi
  local missing
  mapfile -t missing < <(missing_of "${packages[@]}" "$@")
  if ((${#missing[@]})); then
    (step "install ${#missing[@]} packages" apt_install "${missing[@]}") || die "cannot install ${missing[*]}: $without_root"
  fi
  if command -v mpicc >/dev/null && command -v mpirun >/dev/null; then
    return
  fi
  mapfile -t missing < <(missing_of "${mpi_packages[@]}")
  if ((${#missing[@]})); then
    (step "install Open MPI" apt_install "${missing[@]}") || echo "going on without MPI" >&2
  fi
}

# nccl_requirements: prints the file that names NCCL's package. The one for CUDA 13 contains a runtime that drivers of
# CUDA 12 refuse; the one for CUDA 12 runs on both.
nccl_requirements() {
  local compiler driver
  compiler=$(nvcc --version 2>/dev/null | sed -n 's/.*release \([0-9]*\).*/\1/p') || true
  driver=$(timeout 30 nvidia-smi 2>/dev/null | sed -n 's/.*CUDA Version: *\([0-9]*\).*/\1/p') || true
  if ((${compiler:-13} < 13 || ${driver:-13} < 13)); then
    echo tests/requirements-nccl-cu12.txt
  else
    echo tests/requirements-nccl.txt
  fi
}

# Prints the files that say what .venv holds: for the Python package and its tests, those of other parts, and, where
# device code can be compiled, NCCL's headers and library and what reads the code.
python_requirements() {
  printf '%s\n' tests/requirements.txt python/tests/requirements.txt python/tests/requirements-control.txt \
    python/tests/requirements-megatron.txt
  if command -v nvcc >/dev/null; then
    printf '%s\n' "$(nccl_requirements)" tests/requirements-cuda.txt
  fi
}

# Environments lie in the user's cache, under a name made of what they hold, so that every checkout shares them; the
# checkout has links to them: .venv, .venv-vllm, .venv-sglang, .venv-live, .venv-trl, .venv-verl, .venv-megatron.
environments=${XDG_CACHE_HOME:-$HOME/.cache}/sparsecast

# link_environment NAME REQUIREMENT-FILE...: makes NAME a link to the environment of these files. Returns 1 when it has
# still to be filled.
link_environment() {
  local name=$1 digest
  shift
  digest=$({ python3 -V; command -v python3; cat "$@"; } | sha256sum | cut -c1-16)
  mkdir -p "$environments"
  [[ -L $name ]] || rm -rf "$name"
  ln -sfn "$environments/${name#.}-$digest" "$name"
  [[ -e $name/complete ]]
}

# Commands of a step follow one another by `&&`: the shell does not stop at one that fails there.
fill_python_environment() {
  local target pip=(.venv/bin/python3 -m pip install --quiet --disable-pip-version-check)
  target=$(readlink .venv)
  rm -rf "$target" && python3 -m venv "$target" &&
    "${pip[@]}" -r tests/requirements.txt -r python/tests/requirements.txt &&
    "${pip[@]}" --no-deps -r python/tests/requirements-megatron.txt &&
    { ! command -v nvcc >/dev/null || "${pip[@]}" -r "$(nccl_requirements)" -r tests/requirements-cuda.txt; } &&
    touch .venv/complete
}

# fill_engine_environment ENGINE: its released package without dependencies, whose torch would be another one, and what
# its layers and loaders need on a CPU; the rest comes from .venv. Also for verl, a trainer, and for trl: the vLLM that
# TRL installs, and the rest from .venv-live, which may be filled meanwhile.
fill_engine_environment() {
  local target site each shared=(.venv)
  target=$(readlink ".venv-$1")
  [[ $1 != trl ]] || shared=(.venv-live .venv)
  rm -rf "$target" && python3 -m venv "$target" && site=$(cd "$target" && echo lib/python3.*/site-packages) &&
    for each in "${shared[@]}"; do echo "$(readlink "$each")/$site"; done >"$target/$site/shared.pth" &&
    "$target/bin/python3" -m pip install --quiet --disable-pip-version-check --no-deps \
      -r "python/tests/requirements-$1.txt" &&
    touch "$target/complete"
}

# fill_engine_environments ENGINE...: side by side; one that cannot be filled is removed.
fill_engine_environments() {
  local engine code=0 fillers=()
  for engine in "$@"; do
    fill_engine_environment "$engine" &
    fillers+=($!)
  done
  for engine in "$@"; do
    wait "${fillers[0]}" || { rm -rf "$(readlink ".venv-$engine")" ".venv-$engine"; echo "no environment for $engine"; code=1; }
    fillers=("${fillers[@]:1}")
  done
  return $code
}

# The package alone, beside no interpreter: it is read by that of .venv-sglang.
fill_newest_megatron() {
  local target
  target=$(readlink .venv-megatron)
  rm -rf "$target" && .venv/bin/python3 -m pip install --quiet --disable-pip-version-check --no-deps --no-compile \
    --ignore-requires-python --only-binary :all: --python-version 3.12 --target "$target" \
    -r python/tests/requirements-megatron-newest.txt &&
    touch "$target/complete"
}

# Creates or refreshes .venv.
prepare_package_environment() {
  local requirements
  mapfile -t requirements < <(python_requirements)
  link_environment .venv "${requirements[@]}" || (step "Python environment in .venv" fill_python_environment) ||
    die "cannot make .venv: $without_root"
}

# Creates or refreshes .venv, those of the engines, of verl and of TRL, and the newest Megatron-core. Where a package of
# theirs cannot be had, its tests are left out, unless SPARSECAST_ENGINES=ON.
prepare_python() {
  local engine engines=() requirements
  mapfile -t requirements < <(python_requirements)
  prepare_package_environment
  if ! link_environment .venv-megatron python/tests/requirements-megatron-newest.txt &&
    ! (step "newest Megatron-core" fill_newest_megatron); then
    [[ ${SPARSECAST_ENGINES:-AUTO} != ON ]] || die "cannot unpack the newest Megatron-core"
    echo "going on without its tests" >&2
  fi
  for engine in vllm sglang live verl trl; do
    [[ $engine != trl ]] || requirements+=(python/tests/requirements-live.txt)
    link_environment ".venv-$engine" "${requirements[@]}" "python/tests/requirements-$engine.txt" || engines+=("$engine")
  done
  ((${#engines[@]})) || return 0
  if ! (step "Python environments for ${engines[*]}" fill_engine_environments "${engines[@]}"); then
    [[ ${SPARSECAST_ENGINES:-AUTO} != ON ]] || die "no environment for the tests with an engine"
    echo "going on without that engine's tests" >&2
  fi
}

# mpi_run RANKS PROGRAM...
mpi_run() {
  local ranks=$1 flags=()
  shift
  if [[ $(mpirun --version 2>/dev/null) == *"Open MPI"* ]]; then
    flags+=(--oversubscribe)
  fi
  mpirun "${flags[@]}" -np "$ranks" "$@"
}
