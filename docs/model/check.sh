#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0

# docs/model/check.sh [small|large]: the models of the delta log, of the sync and of an engine's ranks that follow a log,
# checked by spin (README.md). small: every property at a small size, and that every seeded mistake is found; well under a minute. large: for as long as
# SECONDS_EACH (900) and MEGABYTES (12000) go. Leaves its files in a temporary directory. Exit status 77: spin or gcc is
# absent.
set -euo pipefail

size=${1:-small}
model=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
seconds=${SECONDS_EACH:-900}
megabytes=${MEGABYTES:-12000}

for program in spin gcc; do
  if ! command -v "$program" >/dev/null; then
    echo "skipped: no $program here"
    exit 77
  fi
done
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cp "$model"/*.pml "$work"
cd "$work"

checked=delta_log.pml  # The model that build() takes.

# build COMPILER_FLAGS DEFINES...: makes ./pan.
build() {
  local flags=$1
  shift
  spin -a "$@" "$checked" >spin.log || { cat spin.log; exit 2; }
  # shellcheck disable=SC2086
  gcc -w $flags -DMEMLIM="$megabytes" -o pan pan.c
}

# search PAN_FLAGS: its result is in pan.log.
search() {
  local status=0
  # shellcheck disable=SC2086
  timeout -s INT "$seconds" ./pan $1 >pan.log 2>&1 || status=$?
  # What runs out of time prints what it has when it is told to stop; out of memory is no error of the model either.
  if ! grep -q 'errors: ' pan.log; then
    tail -5 pan.log
    echo "the search ended with status $status and no result"
    exit 2
  fi
}

figures() {
  awk '/states, stored/ {states = $1} /depth reached/ {sub(",", "", $6); depth = $6} /elapsed time/ {time = $4}
       END {printf "%.0f states, depth %s, %s s", states, depth, time}' pan.log
}

failed=0

# holds NAME COMPILER_FLAGS PAN_FLAGS DEFINES...
holds() {
  local name=$1 compiler=$2 flags=$3
  shift 3
  build "$compiler" "$@"
  search "$flags"
  if grep -q 'errors: 0' pan.log; then
    printf 'holds      %-34s %s\n' "$name" "$(figures)"
    if grep -qE 'out of memory|max search depth too small|Search not completed' pan.log; then
      echo '           (not all of it was searched)'
      [[ $size == large ]] || failed=1
    fi
  else
    printf 'VIOLATED   %-34s %s\n' "$name" "$(grep -m1 '^pan:' pan.log)"
    failed=1
  fi
}

# finds BUG DEFINES...: a counterexample.
finds() {
  local bug=$1
  shift
  build "-O0 -DSAFETY" -D"$bug" "$@"
  search -m200000
  if grep -q 'errors: 1' pan.log; then
    printf 'found      %-34s %s\n' "$bug" "$(grep -m1 '^pan:1:' pan.log | sed 's/^pan:1: //')"
  else
    printf 'NOT FOUND  %-34s %s\n' "$bug" "$(figures)"
    failed=1
  fi
}

publishing=(-DVERSIONS=2 -DFOLLOWERS=0 -DKEEPERS=0)
following=(-DVERSIONS=2 -DPUBLISHERS=1 -DLIVES=1 -DFAULTS=0 -DTWO_STATES)

case $size in
  small)
    holds "two publishers" "-O2 -DSAFETY" -m200000 "${publishing[@]}"
    holds "follower and keeper" "-O2 -DSAFETY" -m200000 "${following[@]}"
    holds "follower, publisher with faults" "-O2 -DSAFETY" -m200000 -DVERSIONS=2 -DPUBLISHERS=1 -DKEEPERS=0 -DTWO_STATES
    holds "everybody recovers" "-O2 -DNFAIR=3" "-a -f -m200000" -DCALM -DKEEPERS=0 "${following[@]}"
    for bug in OVERWRITE EXISTS_IS_OWN NEW_BYTES TAKEOVER_WITHOUT_COMMIT; do
      finds "BUG_$bug" "${publishing[@]}"
    done
    finds BUG_COMMIT_FIRST -DKEEPERS=0 "${following[@]}"
    for bug in NO_UNDO UNDO_NOT_DURABLE UNDO_REMOVED_BEFORE_SYNC NO_RECOVERY STATE_FILE_BELIEVED STATE_FILE_FIRST \
      FLOOR_BEFORE_LEASE LEASES_READ_ONCE FLOOR_LATE FLOOR_LOWERED LEASES_BELOW_FLOOR_IGNORED \
      FLOOR_WITHOUT_ANCHOR ANCHOR_RECORD_FIRST \
      COLLECTS_UNCOMMITTED; do
      finds "BUG_$bug" "${following[@]}"
    done
    finds BUG_FOUND_AND_NOT_RECORDED -DVERSIONS=3 "${following[@]:1}"
    checked=sync.pml
    holds "sync, two engines, one dies" "-O2 -DSAFETY" -m200000 -DSPOILS=0
    holds "sync, two engines, one apply fails" "-O2 -DSAFETY" -m200000 -DKILLS=0
    holds "sync, one engine, both" "-O2 -DSAFETY" -m200000 -DENGINES=1
    for bug in VOTE_BEFORE_APPLY STAGED_SKIPPED DIGEST_NOT_COMPARED UNDO_FORGOTTEN NO_ABORT DECISION_EARLY \
      DECIDES_BY_DEADLINE COMMIT_WITHOUT_DECISION DOUBT_IS_NO DOUBT_IS_YES DOUBT_FORGOTTEN ATTEMPT_REUSED \
      BASE_NOT_COMPARED; do
      finds "BUG_$bug" -DENGINES=1
    done
    checked=engine.pml
    holds "ranks of an engine behind a log" "-O2 -DSAFETY" -m200000
    for bug in NOT_TORN NO_UNDO RANK_0_SPEAKS RESUMES_UNASKED RANK_0_HAS_STAGED; do
      finds "BUG_$bug"
    done
    finds BUG_BASE_NOT_COMPARED -DVERSIONS=3 -DSPOILS=3
    ;;
  large)
    holds "two publishers, three versions" "-O2 -DSAFETY -DCOLLAPSE" -m200000 -DVERSIONS=3 -DFOLLOWERS=0 -DKEEPERS=0
    holds "follower and keeper" "-O2 -DSAFETY -DCOLLAPSE" -m2000000 -DVERSIONS=4 -DPUBLISHERS=1 -DLIVES=1 -DFAULTS=0 \
      -DTWO_STATES
    holds "two keepers, but for I9" "-O2 -DSAFETY -DCOLLAPSE" -m2000000 -DKEEPERS=2 -DGONE_IS_FINE "${following[@]}"
    holds "everybody recovers" "-O2 -DNFAIR=4 -DCOLLAPSE" "-a -f -m2000000" -DCALM "${following[@]}"
    # Too large for all states: two bits a state in a table of 4 GiB.
    holds "all at once (hashed states)" "-O3 -DSAFETY -DBITSTATE" "-m4000000 -w35" -DVERSIONS=2
    holds "two followers (hashed states)" "-O3 -DSAFETY -DBITSTATE" "-m4000000 -w35" -DVERSIONS=3 -DFOLLOWERS=2
    checked=sync.pml
    holds "sync, one engine, three faulty worlds" "-O2 -DSAFETY -DCOLLAPSE" -m2000000 -DENGINES=1 -DCALM=3 -DKILLS=2
    holds "sync, two engines, all faults" "-O2 -DSAFETY -DCOLLAPSE" -m2000000 -DKILLS=2
    checked=engine.pml
    holds "ranks of an engine, three versions" "-O2 -DSAFETY -DCOLLAPSE" -m2000000 -DVERSIONS=3 -DSPOILS=3 -DCLOSES=2
    ;;
  *)
    echo "usage: docs/model/check.sh [small|large]" >&2
    exit 2
    ;;
esac
exit "$failed"
