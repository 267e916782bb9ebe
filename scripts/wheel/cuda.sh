#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0

# cuda.sh RELEASE PREFIX: the CUDA toolkit that another Debian release has (trixie: 12.4), as a toolkit of its own in PREFIX:
# nvcc, the runtime's headers and static library, CCCL, and NVTX of 13.5 (headers), because that of 12.4 has no payloads. The packages, one
# gigabyte, are unpacked, not installed. Device code of a toolkit 12.x runs with drivers from 525 on, that of 13 with 580.
# Prints the path of nvcc.
source "$(dirname "${BASH_SOURCE[0]}")/../lib.sh"
source scripts/wheel/sources.sh

release=$1 prefix=$(realpath -m "$2")

nvtx() {
  local download=$prefix.packages/nvtx version=13.5.25
  python3 -m pip download --quiet --disable-pip-version-check --no-deps -d "$download" "nvidia-nvtx==$version" &&
    python3 -m zipfile -e "$download"/*.whl "$download" &&
    rm -rf "$prefix/include/nvtx3" &&
    mv "$download"/nvidia/*/include/nvtx3 "$prefix/include/" &&
    echo "$version" >"$prefix/versions/nvtx"
}

lay_out() {
  local usr=$prefix.packages/usr
  local toolkit=$usr/lib/nvidia-cuda-toolkit libraries=$usr/lib/x86_64-linux-gnu
  rm -rf "$prefix"
  mkdir -p "$prefix/bin" "$prefix/nvvm/bin" "$prefix/lib64" "$prefix/licences" "$prefix/versions"
  mv "$usr/bin"/{ptxas,fatbinary,cudafe++,nvlink,cuobjdump,nvdisasm,bin2c} "$toolkit/bin"/{nvcc,crt} "$prefix/bin/" &&
    mv "$toolkit/bin/cicc" "$prefix/nvvm/bin/" &&
    mv "$toolkit/libdevice" "$prefix/nvvm/" &&
    mv "$usr/include" "$prefix/" &&
    nvtx &&
    mv "$libraries"/lib{cudart,culibos,cudadevrt}* "$prefix/lib64/" &&
    mv "$usr/share/doc/nvidia-cuda-dev/copyright" "$prefix/licences/cuda" &&
    cat >"$prefix/bin/nvcc.profile" <<'END'
TOP                = $(_HERE_)/..
NVVMIR_LIBRARY_DIR = $(TOP)/nvvm/libdevice
PATH              += $(TOP)/nvvm/bin:$(_HERE_):
INCLUDES          += "-I$(TOP)/include" $(_SPACE_)
LIBRARIES         =+ $(_SPACE_) "-L$(TOP)/lib64"
END
}

if [[ ! -e $prefix/bin/nvcc.profile ]]; then
  step "CUDA of Debian $release" unpack_packages "$release" "main contrib non-free" "$prefix.packages" \
    nvidia-cuda-toolkit nvidia-cuda-dev libcudart12 libcub-dev libthrust-dev libcu++-dev
  step "toolkit in ${prefix##*/}" lay_out
  rm -rf "$prefix.packages"
fi
"$prefix/bin/nvcc" --version | sed -n 's/.*release /CUDA /p' >&2
echo "$prefix/bin/nvcc"
