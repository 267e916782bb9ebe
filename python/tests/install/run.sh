#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0

# run.sh PYTHON COMPILER DIRECTORY BUILD WERROR UNITY: installs the package from this checkout into a fresh virtual environment, as
# the README says, and runs the README's first program there. Torch is not built anew: it comes from PYTHON's
# environment. The compiler, its warnings, joined sources and how deep BUILD lies are those of the main build, so that the compiler's cache
# has everything.
set -euo pipefail

python=$1 compiler=$2 directory=$3 build=$4 werror=$5 unity=$6
site=$("$python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')

rm -rf "$directory" "$build"
mkdir -p "$directory"
"$python" -m venv "$directory/venv"
fresh=$directory/venv/bin/python3
# Only what is not sparsecast: the build tools and torch.
echo "$site" >"$("$fresh" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/shared.pth"

CXX=$compiler "$fresh" -m pip install --quiet --no-deps --no-build-isolation --disable-pip-version-check \
  -Ccmake.define.SPARSECAST_WERROR="$werror" -Ccmake.define.SPARSECAST_UNITY="$unity" -Cbuild-dir="$build" .

# The README's program, word for word: the first block of Python in it.
awk '/^```python$/ && !done {inside = 1; next} /^```$/ && inside {inside = 0; done = 1} inside' README.md \
  >"$directory/readme.py"
[[ -s $directory/readme.py ]]
cd "$directory"
env -u PYTHONPATH "$fresh" readme.py
env -u PYTHONPATH "$fresh" -c 'import sparsecast, sys; assert sparsecast.__file__.startswith(sys.prefix), sparsecast.__file__'
venv/bin/sparsecast --version
