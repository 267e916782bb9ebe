#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0

# run.sh WHEEL [RELEASE]: installs the wheel into a bare root of that Debian release (bookworm), made by debootstrap with
# Python and nothing else, and uses it there: inside.sh says how. Needs root. Where PyPI's torch for the root's Python can be
# had by this machine's python3 it goes in, too, for the README's program; else that program is left out, and this says so.
source "$(dirname "${BASH_SOURCE[0]}")/../../../scripts/lib.sh"

wheel=$(realpath "$1") release=${2:-bookworm}
cache=$repository/.cache/wheel
pristine=$cache/roots/$release
[[ $(id -u) -eq 0 ]] || die "a root of another system needs root"

mapfile -t missing < <(missing_of debootstrap)
((${#missing[@]} == 0)) || apt_install "${missing[@]}"
if [[ ! -d $pristine ]]; then
  rm -rf "$pristine.partial"
  mkdir -p "$cache/roots"
  debootstrap --variant=minbase --include=python3,python3-venv "$release" "$pristine.partial" \
    "${SPARSECAST_DEBIAN:-http://deb.debian.org/debian}" >"$cache/roots/$release.log"
  mv "$pristine.partial" "$pristine"
fi
their_python=$(chroot "$pristine" python3 -c 'import sys; print("%d.%d" % sys.version_info[:2])')
our_python=$(python3 -c 'import sys; print("%d.%d" % sys.version_info[:2])')

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
if [[ $their_python == "$our_python" ]]; then
  mkdir -p "$cache/torch-$our_python"
  python3 -m pip download --quiet --disable-pip-version-check --only-binary :all: -d "$cache/torch-$our_python" \
    "$(grep '^torch==' python/tests/requirements.txt)"
  cp "$cache/torch-$our_python"/*.whl "$root/wheels/"
  # The README's program, word for word: the first block of Python in it.
  awk '/^```python$/ && !done {inside = 1; next} /^```$/ && inside {inside = 0; done = 1} inside' README.md >"$root/test/readme.py"
  [[ -s $root/test/readme.py ]]
else
  echo "no torch for Python $their_python from Python $our_python: the README's program is left out"
fi

env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin HOME=/root LANG=C.UTF-8 chroot "$root" bash /test/inside.sh
