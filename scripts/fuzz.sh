#!/usr/bin/env bash
# scripts/fuzz.sh [SECONDS [TARGET...]]: builds the fuzz preset and runs each libFuzzer target for SECONDS (60), one
# after the other. The seeds are testdata/golden and, for the other targets, small files made here; what it learns
# stays in build/fuzz/corpus, findings in build/fuzz/findings.
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

seconds=${1:-60}
shift || true
[[ $seconds =~ ^[0-9]+$ ]] || die "usage: scripts/fuzz.sh [SECONDS [TARGET...]]"

compiler=${CLANG:-}
for candidate in clang++ clang++-{21..14}; do
  if [[ -z $compiler ]] && command -v "$candidate" >/dev/null; then
    compiler=$candidate
  fi
done
if [[ -z $compiler ]]; then
  packages+=(clang)
  compiler=clang++
fi

install_packages
step "configure build/fuzz" cmake --preset fuzz -DCMAKE_CXX_COMPILER="$compiler"
step "build fuzz" cmake --build build/fuzz --parallel "$jobs"

targets=("$@")
if ((${#targets[@]} == 0)); then
  for source in fuzz/*_fuzz.cpp; do
    targets+=("$(basename "$source" .cpp)")
  done
fi

# safetensors_seed NAME DATA_BYTES HEADER: a valid file whose data are zeros.
safetensors_seed() {
  local length=${#3}
  {
    printf "$(printf '\\x%02x\\x%02x\\0\\0\\0\\0\\0\\0' $((length % 256)) $((length / 256)))"
    printf '%s' "$3"
    head -c "$2" /dev/zero
  } >"build/fuzz/seeds/safetensors/$1.safetensors"
}

# What golden checkpoints lack: a sparse step, the forms of an empty tensor, escapes, and a header with padding.
mkdir -p build/fuzz/seeds/safetensors
safetensors_seed empty 0 '{}'
safetensors_seed scalar 8 '{"s":{"dtype":"F64","shape":[],"data_offsets":[0,8]}}   '
safetensors_seed no_elements 0 '{"e":{"dtype":"I64","shape":[3,0],"data_offsets":[0,0]}}'
safetensors_seed escapes 2 '{"__metadata__":{"format":"pt","a\u00e9":"\"\\\ud83d\ude00"},"\u0077":{"dtype":"F8_E5M2","shape":[2],"data_offsets":[0,2]}}'
safetensors_seed sparse_step 24 '{"__metadata__":{"sparse":"True"},"w.indices":{"dtype":"I32","shape":[4],"data_offsets":[0,16]},"w.values":{"dtype":"BF16","shape":[4],"data_offsets":[16,24]}}'

# One of each kind of input; the first byte chooses.
mkdir -p build/fuzz/seeds/bootstrap build/fuzz/seeds/channel
{
  printf '\0sparsecU\1\0\0\0\xd8\x72\0\0%032d127.0.0.1' 0
  head -c 71 /dev/zero
} >build/fuzz/seeds/bootstrap/unique_id
printf '\1\2\3\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\2\0\0\0\0\0\0\0aaabb' >build/fuzz/seeds/bootstrap/blobs
printf '\2\2\0\0\0\0\0\0\0\4\0\0\0\0\0\0\0abcdefghijklmnopqrst' >build/fuzz/seeds/bootstrap/unsealed
printf '\3\7\5\r\0\0\0x\2\3abc' >build/fuzz/seeds/bootstrap/sealed
printf '\4sparsecR\1\0\0\0\1\0\0\0\2\0\0\0\0\0\0\0%064d' 0 >build/fuzz/seeds/bootstrap/door
printf '\0\0\2\0\7\0\3\0\4\0' >build/fuzz/seeds/channel/count_table
printf '\1\0\0\2\0\7\0\3\0\4' >build/fuzz/seeds/channel/opening
printf '\2\2\x2c\0\0\x2c\0\2\x2c\0\3' >build/fuzz/seeds/channel/presences

# seeds_of TARGET: directories of the inputs that it starts from.
seeds_of() {
  case $1 in
    safetensors_fuzz) printf '%s\n' build/fuzz/seeds/safetensors testdata/golden/states ;;
    bootstrap_fuzz) printf '%s\n' build/fuzz/seeds/bootstrap ;;
    channel_fuzz) printf '%s\n' build/fuzz/seeds/channel ;;
    *) printf '%s\n' testdata/golden/good testdata/golden/bad ;;
  esac
}

findings=$repository/build/fuzz/findings
mkdir -p "$findings"
for target in "${targets[@]}"; do
  corpus=build/fuzz/corpus/$target
  mkdir -p "$corpus"
  mapfile -t seeds < <(seeds_of "$target")
  description="run $target for $seconds s"
  step "$description" "build/fuzz/bin/$target" -max_total_time="$seconds" -rss_limit_mb=4096 -timeout=30 \
    -print_final_stats=1 -artifact_prefix="$findings/$target-" "$corpus" "${seeds[@]}"
  grep -h 'stat::number_of_executed_units' "$(log_of "$description")"
done
