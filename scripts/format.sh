#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0

# scripts/format.sh [--check]: formats all C++ and CUDA sources in place, or only says which are not formatted.
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

formatter=${CLANG_FORMAT:-}
for candidate in clang-format-14 clang-format; do
  if [[ -z $formatter ]] && command -v "$candidate" >/dev/null; then
    formatter=$candidate
  fi
done
[[ -n $formatter ]] || die "needs clang-format 14 (Debian: clang-format-14), or its path in CLANG_FORMAT"

mode=(-i)
case ${1:-} in
  '') ;;
  --check) mode=(--dry-run --Werror) ;;
  *) die "usage: scripts/format.sh [--check]" ;;
esac

directories=()
for directory in include src cuda tools bench tests mpi_tests fuzz examples python/src; do
  if [[ -d $directory ]]; then
    directories+=("$directory")
  fi
done
find "${directories[@]}" -type f \( -name '*.[ch]pp' -o -name '*.cu' -o -name '*.cuh' -o -name '*.h' -o -name '*.c' \) -print0 |
  xargs -0 -r "$formatter" --style=file "${mode[@]}"
