#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0

# Makes the wheels and the sdist: docs/installing.md says what is in them. Installs what is missing, in .venv-wheel and by apt.
#   scripts/wheel.sh [--cuda ON|OFF|AUTO] [--nvcc NVCC] [--python PYTHON ...] [--out DIRECTORY] [--no-sdist]
#                    [--test [RELEASE ...]]
#   --cuda     device code: AUTO (the default) where nvcc is, ON fails without
#   --nvcc     the compiler of device code, with its toolkit around it, in place of CUDACXX or the PATH's. One of CUDA 12
#              makes wheels for drivers from 525 on, one of 13 for drivers from 580 on (scripts/wheel/cuda.sh has one of 12)
#   --python   an interpreter to make a wheel for, once or more; python3 if none. One of 3.12 or newer makes the wheel that
#              serves 3.12 and all later ones (scripts/wheel/python.sh builds one where there is none)
#   --out      dist, if not said
#   --test     then installs each wheel into a bare root of that release of Debian or Ubuntu and uses it there (root only,
#              debootstrap): those that have its Python, if none is said
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
source scripts/wheel/sources.sh

# Each Python would have its own, and the compiler's cache takes them for different ones.
export CC=${CC:-gcc} CXX=${CXX:-g++}

cuda=AUTO pythons=() out=dist sdist=1 test=0 releases=()
# What others' wheels ask for, torch's among them. These would do with less, which auditwheel adds to the name.
platform=manylinux_2_28_x86_64
third_party=$repository/.cache/wheel/third_party
tools=.venv-wheel/bin

while (($#)); do
  case $1 in
    --cuda) cuda=$2 && shift ;;
    --nvcc) CUDACXX=$(realpath "$2") && export CUDACXX PATH=${CUDACXX%/*}:$PATH && shift ;;
    --python) pythons+=("$2") && shift ;;
    --out) out=$2 && shift ;;
    --no-sdist) sdist=0 ;;
    --test)
      test=1
      while [[ ${2:---} != --* ]]; do releases+=("$2") && shift; done
      ;;
    *) die "unknown argument $1; the first lines of this script say which there are" ;;
  esac
  shift
done
[[ $cuda == @(ON|OFF|AUTO) ]] || die "--cuda is ON, OFF or AUTO, not $cuda"
((${#pythons[@]})) || pythons=(python3)
[[ $cuda != ON ]] || command -v nvcc >/dev/null || die "--cuda ON, but there is no nvcc"
[[ $cuda != AUTO ]] || cuda=$(command -v nvcc >/dev/null && echo ON || echo OFF)
# The generations that the compiler knows of three, by name, and portable code of the newest for what comes after.
architectures=${SPARSECAST_WHEEL_ARCHITECTURES:-}
if [[ $cuda == ON && -z $architectures ]]; then
  architectures='80-real;90'
  [[ $(nvcc --list-gpu-arch) != *compute_100* ]] || architectures='80-real;90-real;100'
fi

fill_tools() {
  python3 -m venv .venv-wheel &&
    "$tools/pip" install --quiet --upgrade -r scripts/wheel/requirements.txt -r scripts/wheel/build_requirements.txt &&
    { [[ $cuda != ON ]] || "$tools/pip" install --quiet --no-deps -r "$(nccl_requirements)" -r scripts/wheel/requirements-cuda.txt; }
}

# releases_with WHEEL: prints the releases with a Python that the wheel is for, bionic's a compiled one.
releases_with() {
  case $1 in
    *-cp310-*) echo jammy ;;
    *-cp311-*) echo bookworm bionic ;;
    *-abi3-*) echo trixie forky ;;
    *) die "no root for ${1##*/}" ;;
  esac
}

# fill_environment PYTHON ENVIRONMENT
fill_environment() {
  "$1" -m venv --clear --without-pip "$2" &&
    "$tools/pip" --python "$2/bin/python3" install --quiet -r scripts/wheel/build_requirements.txt
}

# build_wheel ENVIRONMENT TAG: into build/wheel/raw. MPI is left out: there is no one library of that name to load. Nothing
# of what is linked statically is exported, so that it meets no other copy in the process.
build_wheel() {
  local link="-static-libstdc++ -Wl,--exclude-libs,ALL -Wl,--gc-sections -Wl,--as-needed $sysroot"
  link+=" $third_party/lib/newer_than_glibc.o"
  local libraries="-lpthread -ldl -lrt -lm"
  local settings=(
    SPARSECAST_UNITY=ON SPARSECAST_MPI=OFF SPARSECAST_RENDEZVOUS=ON SPARSECAST_LOG=ON SPARSECAST_S3=ON
    SPARSECAST_CUDA="$cuda" SPARSECAST_NCCL="$cuda" SPARSECAST_NVTX="${cuda/ON/AUTO}"
    CMAKE_CUDA_ARCHITECTURES="$architectures" SPARSECAST_NCCL_PYTHON="$repository/$tools/python3"
    OPENSSL_USE_STATIC_LIBS=ON
    CMAKE_MODULE_LINKER_FLAGS="$link -Wl,--version-script=$repository/scripts/wheel/exports.map" CMAKE_EXE_LINKER_FLAGS="$link"
    CMAKE_CXX_STANDARD_LIBRARIES="$libraries" CMAKE_CUDA_STANDARD_LIBRARIES="$libraries"
    SPARSECAST_WHEEL_LICENSES="$repository/build/wheel/THIRD_PARTY_LICENSES"
  )
  local environment=$1 tag=$2
  CMAKE_PREFIX_PATH=$third_party CMAKE_BUILD_PARALLEL_LEVEL=$jobs \
    "$tools/pip" --python "$environment/bin/python3" wheel --verbose --no-build-isolation --no-deps \
    -w build/wheel/raw -Cbuild-dir="build/wheel-$tag" "${settings[@]/#/-Ccmake.define.}" .
}

# Headers alone, and what compiles; the libraries are made here.
need ccache cmake g++ libcli11-dev libssl-dev libxxhash-dev ninja-build nlohmann-json3-dev pkg-config python3-venv
require_cmake
step "tools in .venv-wheel" fill_tools
scripts/wheel/third_party.sh "$third_party"
sysroot=$(scripts/wheel/sysroot.sh .cache/wheel/sysroot)
mkdir -p build/wheel "$out"
toolkit=OFF
[[ $cuda != ON ]] || toolkit=$(nvcc --version | sed -n 's/.*release \([0-9.]*\).*/\1/p')
"$tools/python3" scripts/wheel/inventory.py notices "$third_party" "$toolkit" >build/wheel/THIRD_PARTY_LICENSES
"$tools/python3" scripts/wheel/inventory.py sbom "$third_party" "$toolkit" >"$out/sparsecast.cdx.json"

wheels=()
for python in "${pythons[@]}"; do
  tag=$("$python" -c 'import sys; print("cp%d%d" % sys.version_info[:2])')
  environment=.venv-wheel/$tag
  rm -rf build/wheel/raw build/wheel/repaired
  step "environment for $tag" fill_environment "$python" "$environment"
  step "wheel for $tag, device code $cuda" build_wheel "$environment" "$tag"
  step "auditwheel repair" env PATH="$repository/$tools:$PATH" "$tools/auditwheel" repair --plat "$platform" -w build/wheel/repaired build/wheel/raw/*.whl
  made=(build/wheel/repaired/*.whl)
  mv "${made[0]}" "$out/"
  wheels+=("$out/${made[0]##*/}")
done
if ((sdist)); then
  step "sdist" "$tools/python3" -m build --sdist --no-isolation --outdir "$out" .
fi

for wheel in "${wheels[@]}"; do
  scripts/wheel/describe.sh "$wheel" "$tools"
done
ls -l "$out"
if ((test)); then
  for wheel in "${wheels[@]}"; do
    for release in ${releases[@]:-$(releases_with "$wheel")}; do
      step "$release, ${wheel##*/}" python/tests/wheel/run.sh "$wheel" "$release"
      cat "$(log_of "$release, ${wheel##*/}")"
    done
  done
fi
