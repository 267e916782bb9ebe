#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0

# Runs the tests with the code of trainers that have no package on the index, from checkouts that you have made
# (docs/integrations.md). Not part of scripts/test.sh, which downloads no sources.
#   SPARSECAST_NEMO_RL_SOURCE   a checkout of NVIDIA-NeMo/RL
#   SPARSECAST_STITCH_SOURCE    the folder src of a checkout of modal-projects/stitch
# One of them is enough. Arguments go to pytest. Example:
#   git clone https://github.com/NVIDIA-NeMo/RL nemo-rl
#   SPARSECAST_NEMO_RL_SOURCE=$PWD/nemo-rl scripts/trainer_sources.sh
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

nemo_rl=${SPARSECAST_NEMO_RL_SOURCE:+$(realpath "$SPARSECAST_NEMO_RL_SOURCE")}
stitch=${SPARSECAST_STITCH_SOURCE:+$(realpath "$SPARSECAST_STITCH_SOURCE")}
[[ -n $nemo_rl$stitch ]] || die "set SPARSECAST_NEMO_RL_SOURCE or SPARSECAST_STITCH_SOURCE to a checkout"
[[ -z $nemo_rl || -d $nemo_rl/nemo_rl ]] || die "$nemo_rl has no folder nemo_rl: name the root of the checkout"
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
export SPARSECAST_CLI=$repository/build/release/bin/sparsecast
tests=python/tests/integrations
if [[ -n $stitch ]]; then
  SPARSECAST_STITCH_SOURCE=$stitch .venv-verl/bin/python3 -m pytest -q -p no:cacheprovider "$tests/test_stitch.py" "$@"
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
