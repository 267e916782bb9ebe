#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0

# scripts/interop_packages.sh [ARGUMENT...]: holds `sparsecast convert` to the released packages of other systems
# (docs/interop.md). It builds the command, makes build/interop/venv with PyTorch for CPUs and what ModelExpress imports,
# unpacks the wheels (some 400 MB) without installing them, and runs tests/interop/packages_check.py. Not part of
# scripts/test.sh: the downloads are large.
#   SPARSECAST_VLLM, SPARSECAST_VERL, SPARSECAST_TRL, SPARSECAST_SGLANG, SPARSECAST_MODELEXPRESS
#                               other versions than those below
# Arguments go to the check: --slime-receiver FILE and --slime-publisher FILE name a local_checkpoint.py and a
# disk_delta.py of a slime or miles checkout, which no package has.
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

versions=(
  "vllm==${SPARSECAST_VLLM:-0.33.0}" "verl==${SPARSECAST_VERL:-0.9.1}"
  "trl==${SPARSECAST_TRL:-1.16.0}" "sglang==${SPARSECAST_SGLANG:-0.5.23}"
  "modelexpress==${SPARSECAST_MODELEXPRESS:-0.7.0}"
)
folder=$repository/build/interop

make_environment() {
  python3 -m venv "$folder/venv"
  "$folder/venv/bin/python3" -m pip install --quiet -r tests/requirements.txt safetensors torch==2.13.0 \
    boto3==1.44.8 grpcio==1.85.3 huggingface_hub==2.4.0 protobuf==6.33.6
}

# unpack NAME==VERSION: only the Python sources of its wheel.
unpack() {
  local name=${1%%==*} target=$folder/wheels/$1
  if [[ -d $target ]]; then
    return
  fi
  "$folder/venv/bin/python3" -m pip download --quiet --no-deps --only-binary :all: -d "$folder/download" "$1"
  "$folder/venv/bin/python3" - "$folder/download" "$name" "$target" <<'PYTHON'
import pathlib, sys, zipfile
folder, name, target = sys.argv[1:]
wheel, = pathlib.Path(folder).glob(f"{name}-*.whl")
with zipfile.ZipFile(wheel) as archive:
    archive.extractall(target, [n for n in archive.namelist() if n.endswith(".py")])
wheel.unlink()
PYTHON
}

install_packages
step "configure build/release" cmake --preset release
step "build the command" cmake --build build/release --parallel "$jobs" --target sparsecast_cli
mkdir -p "$folder"
step "Python environment in build/interop" make_environment
arguments=()
for version in "${versions[@]}"; do
  step "unpack $version" unpack "$version"
  arguments+=("--${version%%==*}" "$folder/wheels/$version")
done
"$folder/venv/bin/python3" tests/interop/packages_check.py build/release/bin/sparsecast "${arguments[@]}" "$@"
