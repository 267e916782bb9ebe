#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0

# run.sh WHEEL [RELEASE]: installs the wheel into a bare root of that release of Debian (bookworm) or Ubuntu, which root.sh
# makes, and uses it there: inside.sh says how. Needs root. Where PyPI's torch for the root's Python can be had by this
# machine's python3 it goes in, too, for the README's program; else that program is left out, and this says so.
source "$(dirname "${BASH_SOURCE[0]}")/../../../scripts/lib.sh"

wheel=$(realpath "$1") release=${2:-bookworm}
cache=$repository/.cache/wheel
pristine=$cache/roots/$release
path=/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
python/tests/wheel/root.sh "$release" "$pristine"
their_python=$(PATH=$path chroot "$pristine" python3 -c 'import sys; print("%d.%d" % sys.version_info[:2])')
our_python=$(python3 -c 'import sys; print("%d.%d" % sys.version_info[:2])')
their_glibc=$(chroot "$pristine" ldd --version | sed -n '1s/.* //p')

root=$(mktemp -d "$cache/root.XXXXXX")
cleanup() {
  umount "$root/proc" 2>/dev/null || true
  rm -rf --one-file-system "$root"
}
trap cleanup EXIT
cp -a "$pristine/." "$root"
mount -t proc proc "$root/proc" || echo "going on without /proc"

mkdir -p "$root/wheels" "$root/test"
cp "$wheel" "$root/wheels/"
cp python/tests/wheel/inside.sh python/tests/wheel/*.py "$root/test/"
if [[ $their_python == "$our_python" && $(printf '2.28\n%s\n' "$their_glibc" | sort -V | head -n 1) == 2.28 ]]; then
  mkdir -p "$cache/torch-$our_python"
  python3 -m pip download --quiet --disable-pip-version-check --only-binary :all: -d "$cache/torch-$our_python" \
    "$(grep '^torch==' python/tests/requirements.txt)"
  cp "$cache/torch-$our_python"/*.whl "$root/wheels/"
  # The README's program, word for word: the first block of Python in it.
  awk '/^```python$/ && !done {inside = 1; next} /^```$/ && inside {inside = 0; done = 1} inside' README.md >"$root/test/readme.py"
  [[ -s $root/test/readme.py ]]
else
  echo "no torch for Python $their_python and glibc $their_glibc from Python $our_python: the README's program is left out"
fi

env -i PATH=$path HOME=/root LANG=C.UTF-8 chroot "$root" bash /test/inside.sh
