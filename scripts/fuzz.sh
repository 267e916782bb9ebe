#!/usr/bin/env bash
# scripts/fuzz.sh [SECONDS [TARGET...]]: builds the fuzz preset and runs each libFuzzer target for SECONDS (60), one
# after the other. The seeds are testdata/golden; what it learns stays in build/fuzz/corpus, findings in
# build/fuzz/findings.
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

seeds=()
for directory in testdata/golden/good testdata/golden/bad; do
  if [[ -d $directory ]]; then
    seeds+=("$directory")
  fi
done

findings=$repository/build/fuzz/findings
mkdir -p "$findings"
for target in "${targets[@]}"; do
  corpus=build/fuzz/corpus/$target
  mkdir -p "$corpus"
  description="run $target for $seconds s"
  step "$description" "build/fuzz/bin/$target" -max_total_time="$seconds" -rss_limit_mb=4096 -timeout=30 \
    -print_final_stats=1 -artifact_prefix="$findings/$target-" "$corpus" "${seeds[@]}"
  grep -h 'stat::number_of_executed_units' "$(log_of "$description")"
done
