#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0

# describe.sh WHEEL TOOLS: prints what a wheel asks for (auditwheel, in the folder TOOLS), its size, what lies in it, and its
# device code.
set -euo pipefail

wheel=$1 tools=$2
directory=$(mktemp -d)
trap 'rm -rf "$directory"' EXIT

echo "== ${wheel##*/}: $(stat -c %s "$wheel") bytes"
"$tools/auditwheel" show "$wheel"
"$tools/python3" -m zipfile -e "$wheel" "$directory"
binaries=("$directory"/sparsecast/_core*.so "$directory"/*.data/scripts/sparsecast)
for binary in "${binaries[@]}"; do
  printf '%s: %s bytes; needs:' "${binary#"$directory"/}" "$(stat -c %s "$binary")"
  readelf -d "$binary" | sed -n 's/.*(NEEDED).*\[\(.*\)\]/ \1/p' | tr -d '\n'
  printf '\n'
done
# What no library of the link has would be looked for at run time, and auditwheel knows only what has a version.
unknown=$(nm -D --undefined-only "${binaries[@]}" | awk '$1 == "U" && $2 !~ /@/ && $2 !~ /^_?Py/ {print $2}')
[[ -z $unknown ]] || { echo "asked for, and not in glibc 2.27: $unknown" >&2 && exit 1; }
echo "exported by the module: $(nm -D --defined-only "${binaries[0]}" | awk '{print $3}' | tr '\n' ' ')"
objcopy -O binary --only-section=.nv_fatbin "${binaries[0]}" "$directory/fatbin" 2>/dev/null || true
if [[ ! -s $directory/fatbin ]]; then
  echo "device code: none"
else
  echo "device code: $(stat -c %s "$directory/fatbin") bytes, $(gzip -9 <"$directory/fatbin" | wc -c) compressed"
  cuobjdump=$(command -v cuobjdump || echo "$tools"/../lib/python3.*/site-packages/nvidia/cu13/bin/cuobjdump)
  if [[ -x $cuobjdump ]]; then
    # PTX 8 is of CUDA 12, PTX 9 of CUDA 13.
    ptx=$("$cuobjdump" --dump-ptx "${binaries[0]}" | sed -n 's/^\.version //p' | sort -u)
    echo "PTX $ptx: drivers from $([[ $ptx == 8.* ]] && echo 525 || echo 580) on"
    "$cuobjdump" --list-elf --list-ptx "${binaries[0]}" | sed -E 's/.*\.(sm_[0-9a-z]+)\.(cubin|ptx)$/\2 \1/' | sort | uniq -c
  fi
fi
