#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0

# sysroot.sh PREFIX: the libraries of glibc 2.27 and libgcc_s to link a wheel against, from Ubuntu 18.04's packages, which are
# unpacked, not installed. The compiler and its headers stay those of this machine: a function that glibc 2.27 lacks is an
# error of the linker, unless scripts/wheel/newer_than_glibc.cpp has it. Prints the flags for the linker; the libraries that
# glibc 2.34 took into libc, and that this one still has, are named after the objects: -lpthread -ldl -lrt.
source "$(dirname "${BASH_SOURCE[0]}")/../lib.sh"
source scripts/wheel/sources.sh

prefix=$(realpath -m "$1")

make_sysroot() {
  local link
  rm -rf "$prefix"
  unpack_packages bionic-updates main "$prefix" libc6 libc6-dev libgcc1 || return
  # Links name their targets from the root.
  find "$prefix" -type l -lname '/*' | while read -r link; do
    ln -sfn "$prefix$(readlink "$link")" "$link" || return
  done
}

[[ -e $prefix/lib/x86_64-linux-gnu/libgcc_s.so.1 ]] || step "glibc 2.27 in ${prefix##*/}" make_sysroot
libraries=$prefix/usr/lib/x86_64-linux-gnu
echo "--sysroot=$prefix -B$libraries -L$libraries -L$prefix/lib/x86_64-linux-gnu"
