#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0

# python.sh RELEASE PACKAGE PREFIX: builds the interpreter of another release of Debian or Ubuntu from its source package (for
# example trixie python3.13, jammy python3.10) for this machine's glibc, so that wheels for that Python can be built here.
# About three minutes on two cores. Without optimisations and pip: it only drives a build. Prints the path of the interpreter.
source "$(dirname "${BASH_SOURCE[0]}")/../lib.sh"
source scripts/wheel/sources.sh

release=$1 package=$2 prefix=$(realpath -m "$3")

build() {
  (cd "$prefix.build" && "$prefix.source/configure" --quiet --prefix="$prefix" --without-ensurepip --disable-test-modules \
    CC="$(command -v ccache || true) cc" && make -s -j"$jobs" && make -s install)
}

if [[ ! -x $prefix/bin/python3 ]]; then
  need dpkg-dev g++ libffi-dev libssl-dev make xz-utils zlib1g-dev
  step "source of $package in $release" source_of "$release" "$package" "$prefix.source"
  mkdir -p "$prefix.build"
  step "build $package" build
  rm -rf "$prefix.build" "$prefix.source"
fi
echo "$prefix/bin/python3"
