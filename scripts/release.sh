#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0

# Makes the files of a release from a tag, in a clean checkout of it: the sdist, wheels, what is inside them (CycloneDX), and
# SHA256SUMS.
#   scripts/release.sh TAG [--out DIRECTORY] [ARGUMENT ...]
#   TAG        v and the version in pyproject.toml, which CHANGELOG.md must know
#   --out      dist/TAG, if not said; must not be there
#   ARGUMENT   of scripts/wheel.sh: --python, --nvcc, --cuda, --test
# All wheels, on Debian 12, with device code for drivers from 525 on:
#   scripts/release.sh v0.1.0 --nvcc "$(scripts/wheel/cuda.sh trixie .cache/wheel/cuda)" --python python3.11 \
#     --python "$(scripts/wheel/python.sh jammy python3.10 .cache/wheel/python3.10)" \
#     --python "$(scripts/wheel/python.sh trixie python3.13 .cache/wheel/python3.13)" --test
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

(($#)) || die "which tag?"
tag=$1 out=dist/$1 arguments=()
shift
while (($#)); do
  case $1 in
    --out) out=$2 && shift ;;
    # A path is one from here, not from the checkout.
    --nvcc | --python)
      program=$(command -v "$2") || die "$1 $2: there is no such program"
      arguments+=("$1" "$(realpath -s "$program")") && shift
      ;;
    *) arguments+=("$1") ;;
  esac
  shift
done
out=$(realpath -m "$out")
checkout=$repository/.cache/release/$tag
git rev-parse --quiet --verify "refs/tags/$tag^{commit}" >/dev/null || die "there is no tag $tag here"
version=$(git show "$tag:pyproject.toml" | sed -n 's/^version = "\(.*\)"$/\1/p')
[[ $tag == "v$version" ]] || die "$tag has version $version in pyproject.toml: the tag must be v$version"
git show "$tag:CHANGELOG.md" | grep -q "^## .*${version//./\\.}" || die "CHANGELOG.md of $tag has no section of $version"
[[ ! -e $out ]] || die "$out is there already: a release is made once"

# The checkout shares what is independent of our sources: static libraries, toolkits, interpreters, roots.
rm -rf "$checkout" "$out.partial"
mkdir -p "$repository/.cache/wheel" "$checkout"
git -c advice.detachedHead=false clone --quiet --depth 1 --branch "$tag" "file://$repository" "$checkout"
mkdir "$checkout/.cache"
ln -s "$repository/.cache/wheel" "$checkout/.cache/wheel"
SOURCE_DATE_EPOCH=$(git show -s --format=%ct "$tag^{commit}")
export SOURCE_DATE_EPOCH CCACHE_BASEDIR=$checkout
"$checkout/scripts/wheel.sh" --out "$out.partial" "${arguments[@]}"
mv "$out.partial/sparsecast.cdx.json" "$out.partial/sparsecast-$version.cdx.json"
(cd "$out.partial" && sha256sum -- * >SHA256SUMS)
mv "$out.partial" "$out"
rm -rf "$checkout"
cat "$out/SHA256SUMS"
