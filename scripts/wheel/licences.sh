#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0

# licences.sh THIRD_PARTY PYTHON CUDA: prints the notices of all that is inside a wheel and not ours. THIRD_PARTY is what
# third_party.sh made, PYTHON has nanobind, CUDA is ON or OFF.
set -euo pipefail

third_party=$1 python=$2 cuda=$3

# notice TITLE FILE
notice() {
  [[ -s $2 ]] || { echo "${0##*/}: no licence of $1 in $2" >&2 && exit 1; }
  printf '%s\n%s\n%s\n\n' "================================================================" "$1" \
    "================================================================"
  cat "$2"
  printf '\n\n'
}

# debian PACKAGE TITLE
debian() {
  notice "$2" "/usr/share/doc/$1/copyright"
}

echo "What is inside this wheel beside sparsecast, compiled into its module and its command, and under which licences."
echo "Debian's copyright files cover whole source packages: parts that they name may not be in here."
echo
notice "fmt" "$third_party/licences/fmtlib"
notice "Highway" "$third_party/licences/highway"
notice "Zstandard" "$third_party/licences/libzstd"
notice "libsodium" "$third_party/licences/libsodium"
notice "curl" "$third_party/licences/curl"
debian libssl-dev "OpenSSL"
debian libxxhash-dev "xxHash (header)"
debian nlohmann-json3-dev "JSON for Modern C++ (header)"
debian libcli11-dev "CLI11 (header)"
debian libstdc++6 "libstdc++ and libgcc, under the GCC Runtime Library Exception"
notice "nanobind" "$("$python" -c '
import importlib.metadata as m
print(next(f.locate() for f in m.files("nanobind") if f.name.upper().startswith("LICENSE")))')"
if [[ $cuda == ON ]]; then
  printf '%s\n' "The CUDA runtime (cudart_static), CCCL's headers, and NVTX's and NCCL's headers are NVIDIA's." \
    "The runtime is redistributed under the NVIDIA CUDA Toolkit End User License Agreement, attachment A:" \
    "https://docs.nvidia.com/cuda/eula/. CCCL, NVTX and NCCL: BSD-3-Clause, Apache-2.0 with LLVM exceptions."
fi
