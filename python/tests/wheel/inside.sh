#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0

# Runs in the bare root, where /wheels has our wheel (and perhaps torch's, and those that it needs) and /test has the programs.
set -euo pipefail

. /etc/os-release
echo "$PRETTY_NAME, $(python3 --version), $(ldd --version | head -1)"
for program in cc c++ gcc g++ clang cmake make ninja ld nvcc mpirun; do
  if command -v "$program"; then
    echo "the root is not bare" && exit 1
  fi
done
if dpkg-query -W -f '${Package}\n' | grep -E -- '-dev$|^(libcurl|libfmt|libhwy|libsodium|libopenmpi|nlohmann|libnccl|nvidia|cuda)'; then
  echo "the root is not bare" && exit 1
fi
echo "no compiler, none of our packages, $(dpkg-query -W | wc -l) packages in all"

python3 -m venv /venv
PATH=/venv/bin:$PATH
pip install --quiet --no-index --find-links /wheels sparsecast
pip list 2>/dev/null
python3 /test/without_torch.py

sparsecast --version
sparsecast --help >/dev/null
code=0
sparsecast doctor || code=$?
((code <= 1)) # 1: a check failed, which a root without a network may well do; any other is a broken command.
cd "$(mktemp -d)"
python3 /test/two_checkpoints.py one.safetensors two.safetensors
sparsecast diff one.safetensors two.safetensors -o two.scd
sparsecast apply one.safetensors two.scd -o copy.safetensors
sparsecast compare two.safetensors copy.safetensors
cmp two.safetensors copy.safetensors
log=$PWD/log
sparsecast log init "$log" one.safetensors --mirror mirror.safetensors
sparsecast log publish "$log" two.safetensors --mirror mirror.safetensors
sparsecast log pull "$log" pulled.safetensors
sparsecast log verify "$log"
sparsecast compare two.safetensors pulled.safetensors
# curl is inside: it asks, and a server that has no such log answers.
python3 -u -m http.server --bind 127.0.0.1 8099 >server 2>&1 &
server=$!
for _ in {1..50}; do
  sleep 0.2
  grep -q Serving server && break
done
code=0
AWS_ACCESS_KEY_ID=a AWS_SECRET_ACCESS_KEY=b AWS_REGION=us-east-1 AWS_ENDPOINT_URL=http://127.0.0.1:8099 \
  sparsecast log status s3://bucket/run || code=$?
kill "$server"
cat server
((code == 3 || code == 4))
grep -q 'GET /bucket/run/' server

if [[ -e /test/readme.py ]]; then
  pip install --quiet --no-index --find-links /wheels 'sparsecast[torch]'
  python3 /test/readme.py
fi
echo "installed and used"
