#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0

# Everything that only a device can show, in one run: builds with device code, runs the device tests, the sanitizers of
# CUDA, the benchmarks, Nsight Compute on the hot kernels, a group of ranks over NCCL on one GPU, two more through the
# drop-in for NCCL, and a group over all GPUs where there are several; prints a short table last.
#   scripts/gpu_check.sh                     all stages; exit code 0 when every step passed
#   scripts/gpu_check.sh --stage STAGE       one stage (may be repeated): build, test, python, sanitize, bench,
#                                            profile, nccl
#   scripts/gpu_check.sh --fetch DIRECTORY   nothing but download the packages that --debs unpacks
# Options:
#   --quick            smaller benchmarks, fewer sanitizers
#   --out DIRECTORY    results.json, table.txt, logs.txt (default: build/gpu_check/results)
#   --build DIRECTORY  build tree, used again when it is there (default: build/gpu_check)
#   --arch LIST        CUDA architectures (default: those of the devices here, else 90)
#   --debs DIRECTORY   *.deb files and *.whl wheels of what the machine lacks, unpacked below the build tree, not
#                      installed
#   --commit ID        for the record, where there is no git
#   --within SECONDS   all of this call: steps are ended early, or do not start, so that the report is written in time
# A step that fails does not stop the others. Stages may run one after another in separate calls: rows of earlier stages
# are kept in the build tree until the stage runs again. Every step has a time limit, which the environment's
# SPARSECAST_PATIENCE multiplies on a slow machine. The report is written after every step, so that a call which is
# killed leaves one as well. SPARSECAST_JOBS: build processes.
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
set +e

all_stages=(build test python sanitize bench profile nccl)
# The development packages that a build without MPI needs, and the shared libraries that its programs load.
carried=(
  libbenchmark-dev libbenchmark1debian libcli11-dev libfmt-dev libfmt9 libgmock-dev libgtest-dev googletest
  libhwy-dev libhwy1 libsodium-dev libsodium23 libxxhash-dev libxxhash0 libzstd-dev libzstd1 nlohmann-json3-dev
)

# For the Python module and its tests; torch is there.
carried_wheels=(nanobind==3.1.0 pytest==9.2.0 pluggy iniconfig packaging pygments)

quick=0
stages=()
build=build/gpu_check
out=
arch=
debs=${SPARSECAST_DEBS:-}
commit=
fetch=
within=
while (($#)); do
  case $1 in
    --quick) quick=1 ;;
    --stage | --out | --build | --arch | --debs | --commit | --within | --fetch)
      (($# > 1)) || die "$1 needs a value"
      case $1 in
        --stage) stages+=("$2") ;;
        --out) out=$2 ;;
        --build) build=$2 ;;
        --arch) arch=$2 ;;
        --debs) debs=$2 ;;
        --commit) commit=$2 ;;
        --within) within=$2 ;;
        --fetch) fetch=$2 ;;
      esac
      shift
      ;;
    -h | --help)
      sed -n '2,/^source/{/^source/d;/^# SPDX/d;s/^# \{0,1\}//p}' "${BASH_SOURCE[0]}"
      exit 0
      ;;
    *) die "unknown argument $1 (--help)" ;;
  esac
  shift
done

if [[ -n $fetch ]]; then
  mkdir -p "$fetch" && cd "$fetch" && apt-get download "${carried[@]}" || exit
  exec "${PYTHON:-python3}" -m pip download --quiet --no-deps --dest . "${carried_wheels[@]}"
fi

((${#stages[@]})) || stages=("${all_stages[@]}")
for stage in "${stages[@]}"; do
  [[ " ${all_stages[*]} " == *" $stage "* ]] || die "no stage '$stage'; there are: ${all_stages[*]}"
done
[[ $within =~ ^[0-9]*$ ]] || die "--within takes seconds, not '$within'"
out=${out:-$build/results}
mkdir -p "$build" "$out" || die "cannot create $build and $out"
build=$(cd "$build" && pwd)
out=$(cd "$out" && pwd)
raw=$build/raw # Everything that the report is made of.
mkdir -p "$raw/logs"
prefix=$build/prefix
bin=$build/bin
python=${PYTHON:-python3}

if [[ -z $commit ]]; then
  commit=$(git rev-parse HEAD 2>/dev/null) || commit=unknown
  [[ $commit == unknown ]] || git diff --quiet HEAD 2>/dev/null || commit+=-modified
fi
export SPARSECAST_COMMIT=$commit # What programs that are built without git record.
sources=$(find cuda -type f | LC_ALL=C sort | xargs sha256sum | sha256sum | cut -d ' ' -f 1)

export LD_LIBRARY_PATH=$prefix/usr/lib/x86_64-linux-gnu:$prefix/lib/x86_64-linux-gnu${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
# The wheel's library, unless the caller has chosen one: it is the one that torch loads, and whose headers are used.
if [[ -z ${SPARSECAST_NCCL_LIBRARY:-} ]]; then
  wheel=$("$python" -c 'import nvidia.nccl; print(list(nvidia.nccl.__path__)[0])' 2>/dev/null) &&
    [[ -f $wheel/lib/libnccl.so.2 ]] && export SPARSECAST_NCCL_LIBRARY=$wheel/lib/libnccl.so.2
fi

source scripts/gpu_steps.sh

# --- Stages ---

unpack_debs() {
  local deb
  compgen -G "$debs/*.deb" >/dev/null || { echo "no *.deb in $debs"; return 1; }
  mkdir -p "$prefix" || return 1
  for deb in "$debs"/*.deb; do
    if command -v dpkg-deb >/dev/null; then
      dpkg-deb -x "$deb" "$prefix" || return 1
    else
      # Without dpkg: an ar archive whose data member is a tar.
      "$python" - "$deb" "$prefix/data.tar" <<'PYTHON' && tar -xf "$prefix/data.tar" -C "$prefix" || return 1
import sys
data = open(sys.argv[1], "rb").read()
at = 8
while at < len(data):
    name, size = data[at:at + 16].decode().strip(), int(data[at + 48:at + 58])
    if name.startswith("data.tar"):
        open(sys.argv[2], "wb").write(data[at + 60:at + 60 + size])
    at += 60 + size + size % 2
PYTHON
      rm -f "$prefix/data.tar"
    fi
  done
  local wheel
  for wheel in "$debs"/*.whl; do
    [[ ! -f $wheel ]] || "$python" -m zipfile -e "$wheel" "$prefix/wheels" || return 1
  done
}

configure() {
  local flags=(-S "$repository" -B "$build" -DCMAKE_BUILD_TYPE=Release -DSPARSECAST_CUDA=ON -DSPARSECAST_MPI=OFF
    -DSPARSECAST_S3=OFF -DSPARSECAST_PYTHON=OFF -DSPARSECAST_TESTS=ON -DSPARSECAST_BENCH=ON
    "-DCMAKE_CUDA_ARCHITECTURES=$arch" "-DSPARSECAST_NCCL_PYTHON=$(command -v "$python")")
  command -v ninja >/dev/null && flags+=(-G Ninja)
  [[ -d $prefix ]] && flags+=("-DCMAKE_PREFIX_PATH=$prefix/usr")
  cmake "${flags[@]}"
}

stage_build() {
  begin_stage build
  [[ -n $arch ]] || arch=$(device_architectures)
  arch=${arch:-90}
  if [[ -n $debs ]]; then
    export -f unpack_debs
    export debs prefix python
    try "unpack packages" 60 bash -c unpack_debs || return
  fi
  export -f configure
  export repository build arch python prefix
  local why_not target
  why_not=$(why_not_cmake)
  if [[ -n $why_not ]]; then
    record build configure FAIL 0 "$why_not"
    return
  fi
  try "configure for sm_$arch" 120 bash -c configure || return
  # Each for itself: what does not compile, or is not part of the configuration, does not keep the others from being
  # tried.
  for target in cuda_bench sparsecast_gpu_tests sparsecast_cli gpu_group_test sparsecast_perf sparsecast_tests \
    sparsecast_nccl; do
    try "build $target" 540 cmake --build "$build" --parallel "$jobs" --target "$target"
  done
}

# device_suite NAME: one test suite in a process of its own, because a fault on the device fails all that follows in the
# same process. Prints one line; none of its tests may be skipped.
device_suite() {
  local log=$raw/logs/test-suite-${1//[^a-zA-Z0-9_]/-}.log start=$SECONDS code
  # In the foreground: the step's own limit ends it as well.
  timeout --foreground --kill-after=5 100 "$bin/sparsecast_gpu_tests" "--gtest_filter=$1*" >"$log" 2>&1
  code=$?
  if ((code == 0)) && grep -q '^\[  SKIPPED \]' "$log"; then
    code=skipped
  elif ((code == 0)); then
    code=ok
  else
    printf '%s: exit code %s; %s\n' "$1" "$code" "$(grep -a '^\[ *\(FAILED\|RUN\) ' "$log" | tail -n 1)"
    grep -a -m 8 -A 6 -E 'Failure$|C\+\+ exception|error' "$log"
  fi
  printf 'suite %-36s %-8s %4d s\n' "$1" "$code" $((SECONDS - start))
  [[ $code == ok ]]
}

# Four at a time.
device_suites() {
  local suites
  suites=$("$bin/sparsecast_gpu_tests" --gtest_list_tests | sed -n 's/^\([^ ]*\.\).*/\1/p') && [[ -n $suites ]] || return 1
  xargs -P 4 -I SUITE bash -c 'device_suite "$1"' - SUITE <<<"$suites"
}

stage_test() {
  begin_stage test
  rm -f "$raw"/logs/test-suite-*.log
  export -f device_suite device_suites
  export bin raw
  needs sparsecast_gpu_tests "device tests" && try "device tests" 400 bash -c device_suites
  needs sparsecast_tests "CPU codec and golden tests" && try "CPU codec and golden tests" 200 "$bin/sparsecast_tests" \
    --gtest_brief=1 "--gtest_filter=Bf16FromF32*:*Property*:Golden*:OrderedForm*:Quotient*:RiceParameter*:Size*:UlpDifference*"
}

# The build tree of the other stages, with the Python module in it.
build_module() {
  cmake -S "$repository" -B "$build" -DSPARSECAST_PYTHON=ON "-DPython_EXECUTABLE=$(command -v "$python")" &&
    cmake --build "$build" --parallel "$jobs" --target sparsecast_python && return
  cmake -S "$repository" -B "$build" -DSPARSECAST_PYTHON=OFF
  return 1
}

device_python_tests() {
  "$python" -m pytest -q -p no:cacheprovider python/tests/gpu | tee "$raw/pytest.txt"
  ((PIPESTATUS[0] == 0)) && ! grep -q 'skipped' "$raw/pytest.txt"
}

# device_engine_tests ENGINE: its own kernels' repacks; what it does not load on this device is skipped, and said.
device_engine_tests() {
  SPARSECAST_TEST_DEVICE=cuda "$python" -m pytest -q -rs -s -p no:cacheprovider python/tests/engines/test_gpu_kernels.py \
    -k "$1" | tee "$raw/pytest_$1.txt"
  return "${PIPESTATUS[0]}"
}

stage_python() {
  begin_stage python
  export -f build_module device_python_tests device_engine_tests
  export repository build python jobs raw
  export PYTHONPATH=$build/python:$prefix/wheels${PYTHONPATH:+:$PYTHONPATH}
  export PYTHONDONTWRITEBYTECODE=1
  try "build the Python module" 540 bash -c build_module || return
  NCCL_NET=Socket NCCL_SOCKET_IFNAME=lo NCCL_IB_DISABLE=1 NCCL_P2P_DISABLE=1 NCCL_SHM_DISABLE=1 NCCL_MAX_CTAS=4 \
    try "Python tests on the device" 400 bash -c device_python_tests
  NCCL_NET=Socket NCCL_SOCKET_IFNAME=lo NCCL_IB_DISABLE=1 NCCL_P2P_DISABLE=1 NCCL_SHM_DISABLE=1 NCCL_MAX_CTAS=4 \
    try "GRPO example over NCCL" 200 "$python" examples/grpo_cpu/train.py --quick --steps 3 --transport nccl
  local engine
  for engine in vllm sglang; do
    if "$python" -c "import $engine" 2>/dev/null; then
      try "kernels of $engine on the device" 540 bash -c 'device_engine_tests "$1"' - $engine
    else
      skip "kernels of $engine on the device" "no $engine for $python"
    fi
  done
}

# sanitize TOOL FILTER. What the tests print must be there: a sanitizer that cannot start the program finds no errors.
sanitize() {
  local log=$raw/sanitize_$1.txt code
  compute-sanitizer --tool "$1" --error-exitcode 77 --print-limit 20 --report-api-errors no "$bin/sparsecast_gpu_tests" \
    --gtest_brief=1 "--gtest_filter=$2" 2>&1 | tee "$log"
  code=${PIPESTATUS[0]}
  if ((code != 77)) && grep -qi 'device not supported' "$log"; then
    echo "compute-sanitizer does not support this device"
    return "$refused"
  fi
  if ((code == 0)) && ! grep -q '^\[  PASSED  \] [1-9]' "$log"; then
    echo "no test ran"
    return 1
  fi
  return "$code"
}

stage_sanitize() {
  begin_stage sanitize
  if ! command -v compute-sanitizer >/dev/null; then
    skip compute-sanitizer "not on the PATH"
    return
  fi
  needs sparsecast_gpu_tests memcheck || return
  export -f sanitize
  export bin raw
  # One pass over each kernel and codec; the rest of the random cases would take hours here.
  local few='DeviceApplierGolden.GoodVectorsApply:DeviceApplierShapes.*:Order/DeviceBlocks.*/0'
  few+=':Random/DeviceEncoderTest.*/0:Random/DeviceApplierTest.AppliesAnyStepAndTakesItBack/0:Random/DeviceViews.*/0'
  few+=':Random/DeviceContextEncoder.*/0'
  few+=':Random/DeviceContext.AppliesAndTakesBackAnyDTypeAtAnyDensityAndAlignment/0:Random/DeviceContext.ReadsViews/0'
  few+=':Random/DevicePublisherTest.*/0:Values/DeviceNanMasked.*/0:DeviceMaskedCopy.*:DeviceShardMemory.*'
  local tools=(memcheck racecheck) tool hostile=
  ((quick)) || tools+=(synccheck initcheck)
  # All at once: what takes the time is one thread of each on the host. The library checks the result of every call of
  # the runtime, and a stream that is not done yet is no error.
  for tool in "${tools[@]}"; do
    # Corrupt frames must not be read or written out of bounds.
    hostile=
    [[ $tool != memcheck ]] || hostile=:DeviceApplierGolden.*:Random/DeviceApplierTest.DirectoriesMayBeWrongInAnyWay/0
    [[ $tool != memcheck ]] || hostile+=:Random/DeviceContext.AnyFlippedBitOfASmallBlockIsWhatTheCpuSays/0
    SPARSECAST_SEED=1 try "$tool" 480 bash -c 'sanitize "$@"' - "$tool" "$few$hostile" &
  done
  wait
}

bench() { "$bin/cuda_bench" --commit "$commit" --sources "$sources" "$@"; }

stage_bench() {
  begin_stage bench
  needs cuda_bench cuda_bench || return
  rm -f "$raw"/bench*.json "$raw/torch.json"
  export -f bench
  export bin commit sources
  if ((quick)); then
    try "cuda_bench" 180 bash -c 'bench "$@"' - --quick --json "$raw/bench.json"
    try "cuda_bench variants" 90 bash -c 'bench "$@"' - --gib 1 --repeat 5 --percent 1 --dtypes BF16 --variants --small-tensors 0 \
      --json "$raw/bench_variants.json"
  else
    try "cuda_bench" 270 bash -c 'bench "$@"' - --gib 4 --json "$raw/bench.json"
    try "cuda_bench 16 GiB" 90 bash -c 'bench "$@"' - --gib 16 --percent 1 --dtypes BF16 --json "$raw/bench_16gib.json"
    local fetch_bytes
    try "cuda_bench variants" 120 bash -c 'bench "$@"' - --percent 1 --dtypes BF16 --variants --small-tensors 0 \
      --json "$raw/bench_variants.json"
    for fetch_bytes in 32 64 128; do
      try "cuda_bench L2 fetch $fetch_bytes" 40 bash -c 'bench "$@"' - --percent 1 --dtypes BF16 --l2-fetch "$fetch_bytes" \
        --json "$raw/bench_l2_$fetch_bytes.json"
    done
  fi
  if ! "$python" -c 'import torch' 2>/dev/null; then
    skip "torch baseline" "no torch for $python"
  elif ((quick)); then
    try "torch baseline" 120 "$python" bench/torch_baseline.py --gib 1 --percent 0.1,1,20 --repeat 5 --json "$raw/torch.json"
  else
    try "torch baseline" 180 "$python" bench/torch_baseline.py --gib 4 --json "$raw/torch.json"
  fi
}

# profile KERNEL REGEX: every figure of one launch of a kernel, at the device's own clocks, by its demangled name. The
# program is ended then, so that only what was written tells whether it went well.
profile() {
  rm -f "$raw/ncu_$1".*
  ncu --set full --clock-control none --kernel-name-base demangled --kernel-name "regex:$2" --launch-skip 1 \
    --launch-count 1 --kill yes --force-overwrite --export "$raw/ncu_$1" "$bin/cuda_bench" --gib 1 --percent 1 \
    --dtypes BF16 2>&1 | tee "$raw/ncu_$1.txt"
  if grep -q ERR_NVGPUCTRPERM "$raw/ncu_$1.txt"; then
    echo "only root may read this GPU's counters (https://developer.nvidia.com/ERR_NVGPUCTRPERM)"
    return "$refused"
  fi
  [[ -s $raw/ncu_$1.ncu-rep ]] && ncu --import "$raw/ncu_$1.ncu-rep" --csv --page raw >"$raw/ncu_$1.csv"
}

stage_profile() {
  begin_stage profile
  if ! command -v ncu >/dev/null; then
    skip ncu "not on the PATH"
    return
  fi
  needs cuda_bench ncu || return
  export -f profile
  export bin raw
  try "ncu detect" 120 bash -c 'profile "$@"' - detect '\bdetect<'
  try "ncu encode" 120 bash -c 'profile "$@"' - encode '\bencode_runs<unsigned short'
  try "ncu apply" 120 bash -c 'profile "$@"' - apply '\bwrite_entries<unsigned short'
}

# Two ranks of `doctor` that share the device: what docs/nccl.md asks for, ended within a minute.
doctor_pair() {
  local rank codes=0 port=$((20000 + RANDOM % 20000)) pids=()
  export SPARSECAST_SECRET
  SPARSECAST_SECRET=$(od -An -N24 -tx1 /dev/urandom | tr -d ' \n')
  for rank in 0 1; do
    NCCL_HOSTID=r$rank timeout --foreground --kill-after=5 60 "$bin/sparsecast" doctor --rendezvous "127.0.0.1:$port" --rank $rank \
      --size 2 --device 0 --timeout 45 &
    pids+=($!)
  done
  for rank in 0 1; do wait "${pids[rank]}" || codes=1; done
  return $codes
}

stage_nccl() {
  begin_stage nccl
  export NCCL_NET=Socket NCCL_SOCKET_IFNAME=lo NCCL_IB_DISABLE=1 NCCL_P2P_DISABLE=1 NCCL_SHM_DISABLE=1
  export NCCL_MNNVL_ENABLE=0 NCCL_NVLS_ENABLE=0 NCCL_MAX_CTAS=4
  if needs sparsecast "doctor, two ranks"; then
    export -f doctor_pair
    export bin
    try "doctor, two ranks" 90 bash -c doctor_pair
  fi
  local group=() model=()
  if ((quick)); then
    group=(--width 64)
    model=(--layers 1 --width 64 --vocabulary 256)
  fi
  if needs gpu_group_test "group of ranks"; then
    try "two ranks, 10 versions" 120 "$bin/gpu_group_test" --ranks 2 --kill 0 "${group[@]}"
    try "four ranks, 10 versions" 120 "$bin/gpu_group_test" --ranks 4 --kill 0 "${group[@]}"
    try "four ranks, device memory" 120 "$bin/gpu_group_test" --ranks 4 --kill 0 --memory device "${group[@]}"
    try "four ranks, trainer and engine of other cuts" 120 "$bin/gpu_group_test" --ranks 4 --kill 0 --sharded 1
    try "a rank is killed, another comes late" 180 "$bin/gpu_group_test" --ranks 4 --kill 1 --memory device "${group[@]}"
  fi
  local caller drop_in=$build/lib/libsparsecast_nccl.so
  for caller in torch ctypes; do
    if [[ -f $drop_in ]]; then
      try "drop-in, two ranks, $caller" 150 "$python" tests/nccl_dropin/gpu_ranks.py $caller "$drop_in"
    else
      record nccl "drop-in, two ranks, $caller" FAIL 0 "sparsecast_nccl is not built; run --stage build"
    fi
  done
  if needs sparsecast_perf "sparsecast_perf over NCCL"; then
    local detector
    for detector in snapshot pinned fused; do
      try "perf, 4 ranks, $detector" 90 "$bin/sparsecast_perf" --ranks 4 --share-gpu --backend cuda --transport nccl \
        --detector "$detector" --synthetic --steps 5 "${model[@]}" --json "$raw/perf_$detector.json"
    done
    try "perf, 4 ranks, trace" 90 "$bin/sparsecast_perf" --ranks 4 --share-gpu --backend cuda --transport nccl \
      --checkpoints testdata/trace --json "$raw/perf_trace.json"
    local gpus
    gpus=$(smi -L | grep -c '^GPU')
    if ((gpus > 1)); then
      # By the links that NCCL finds.
      unset NCCL_NET NCCL_SOCKET_IFNAME NCCL_IB_DISABLE NCCL_P2P_DISABLE NCCL_SHM_DISABLE NCCL_MNNVL_ENABLE \
        NCCL_NVLS_ENABLE NCCL_MAX_CTAS
      try "perf, a GPU a rank" 120 "$bin/sparsecast_perf" --ranks $((gpus < 8 ? gpus : 8)) --backend cuda \
        --transport nccl --synthetic --steps 5 "${model[@]}" --json "$raw/perf_gpus.json"
    else
      skip "perf, a GPU a rank" "one GPU"
    fi
  fi
}

for stage_name in "${stages[@]}"; do
  if [[ $stage_name != build ]] && ! has_device; then
    report
    cat "$raw/machine.txt" 2>/dev/null
    die "no device answers here (or --stage build has not been run): stage $stage_name needs one"
  fi
  "stage_$stage_name"
done
report
