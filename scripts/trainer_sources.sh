#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0

# Runs the tests with the code of trainers that have no package on the index, from checkouts that you have made
# (docs/integrations.md). Not part of scripts/test.sh, which downloads no sources.
#   SPARSECAST_NEMO_RL_SOURCE   a checkout of NVIDIA-NeMo/RL
#   SPARSECAST_STITCH_SOURCE    the folder src of a checkout of modal-projects/stitch
#   SPARSECAST_SLIME_SOURCE     a checkout of THUDM/slime, for its receiver (a patch of SGLang there) and its encoder
#   SPARSECAST_MILES_SOURCE     a checkout of radixark/miles, for its encoder (its receiver is in a branch of SGLang)
# One of them is enough. Arguments go to pytest. Example:
#   git clone https://github.com/NVIDIA-NeMo/RL nemo-rl
#   SPARSECAST_NEMO_RL_SOURCE=$PWD/nemo-rl scripts/trainer_sources.sh
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

nemo_rl=${SPARSECAST_NEMO_RL_SOURCE:+$(realpath "$SPARSECAST_NEMO_RL_SOURCE")}
stitch=${SPARSECAST_STITCH_SOURCE:+$(realpath "$SPARSECAST_STITCH_SOURCE")}
slime=${SPARSECAST_SLIME_SOURCE:+$(realpath "$SPARSECAST_SLIME_SOURCE")}
miles=${SPARSECAST_MILES_SOURCE:+$(realpath "$SPARSECAST_MILES_SOURCE")}
[[ -n $nemo_rl$stitch$slime$miles ]] || die "set SPARSECAST_NEMO_RL_SOURCE, or one of the others that it names"
[[ -z $nemo_rl || -d $nemo_rl/nemo_rl ]] || die "$nemo_rl has no folder nemo_rl: name the root of the checkout"
receiver_patch=$slime/docker/patch/latest/sglang-pull_weights.patch
[[ -z $slime || -e $receiver_patch ]] || die "there is no $receiver_patch: name the root of a checkout of 2026-08"
for each in "$slime/slime" "$miles/miles"; do
  [[ $each == /slime || $each == /miles || -e $each/utils/disk_delta.py ]] || die "there is no $each/utils/disk_delta.py"
done
[[ -z $stitch || -d $stitch/stitch ]] || die "$stitch has no folder stitch: name the folder src of the checkout"

# NeMo-RL wants an older transformers than verl; everything else comes from verl's environment.
fill_nemo_rl_environment() {
  local environment=$1 site=lib/python3.*/site-packages
  python3 -m venv "$environment" &&
    (cd -P .venv-verl && printf 'import site; site.addsitedir("%s")\n' "$PWD"/$site) \
      >"$(echo "$environment"/$site)/shared.pth" &&
    "$environment/bin/python3" -m pip install --quiet --disable-pip-version-check --no-deps \
      -r python/tests/requirements-nemo-rl.txt &&
    touch "$environment/complete"
}

install_packages
prepare_python
step "configure build/release" cmake --preset release -DSPARSECAST_PYTHON=ON -DSPARSECAST_UNITY=ON \
  -DPython_EXECUTABLE="$repository/.venv/bin/python3" -DSPARSECAST_NCCL_PYTHON="$repository/.venv/bin/python3"
step "build the command and the Python package" cmake --build build/release --parallel "$jobs" \
  --target sparsecast_cli sparsecast_python

export PYTHONPATH=$repository/build/release/python PYTHONDONTWRITEBYTECODE=1
export CUDA_VISIBLE_DEVICES= # As ctest does: host code takes the same path on a machine with GPUs.
export SPARSECAST_CLI=$repository/build/release/bin/sparsecast
tests=python/tests/integrations
if [[ -n $stitch ]]; then
  SPARSECAST_STITCH_SOURCE=$stitch .venv-verl/bin/python3 -m pytest -q -p no:cacheprovider "$tests/test_stitch.py" "$@"
fi
# check_encoder FOLDER ARGUMENT...: what slime's or miles' encoder writes, read by `sparsecast convert`, and more.
check_encoder() {
  .venv/bin/python3 tests/interop/packages_check.py "$SPARSECAST_CLI" --slime-publisher "$1/utils/disk_delta.py" "${@:2}"
}
if [[ -n $slime ]]; then
  receiver=$(mktemp -d)
  trap 'rm -rf "$receiver"' EXIT
  # The receiver is a new file of the patch; the rest of it wants a checkout of SGLang.
  (cd "$receiver" && GIT_CEILING_DIRECTORIES=$receiver git apply --include='*/local_checkpoint.py' "$receiver_patch")
  check_encoder "$slime/slime" --slime-receiver "$receiver/python/sglang/srt/weight_sync/local_checkpoint.py"
fi
if [[ -n $miles ]]; then
  check_encoder "$miles/miles"
fi
if [[ -n $nemo_rl ]]; then
  environment=build/interop/nemo-rl
  if [[ ! -e $environment/complete ]]; then
    rm -rf "$environment"
    mkdir -p build/interop
    step "Python environment in $environment" fill_nemo_rl_environment "$environment"
  fi
  SPARSECAST_NEMO_RL_SOURCE=$nemo_rl "$environment/bin/python3" -m pytest -q -p no:cacheprovider \
    "$tests/test_nemo_rl.py" "$@"
fi
