/* SPDX-License-Identifier: Apache-2.0 */
// Writes anchors, lets leases run out, and collects. It crashes between any two steps, which loses only what it knows.
#ifdef BUG_LEASES_BELOW_FLOOR_IGNORED
#define HOLDS(f) (lease[f] != 0 && !expired[f] && lease[f] - 1 < bound && lease[f] - 1 >= before)
#else
#define HOLDS(f) (lease[f] != 0 && !expired[f] && lease[f] - 1 < bound)
#endif
#define KEEPER_CRASH :: true -> goto end_forget

proctype Keeper() {
  byte bound, old, i, f;
#ifdef BUG_LEASES_BELOW_FLOOR_IGNORED
  byte before;
#endif

end_forget:
  atomic {
    bound = 0;
    old = 0;
    i = 0;
    f = 0
  }
end_idle:
  do
  :: atomic { !calm && head > 0 && !HAS(anchor_records, head) -> i = head };  // An anchor: its files, then its record.
#ifdef BUG_ANCHOR_RECORD_FIRST
    if
    :: atomic { true -> anchor_records = anchor_records | (1 << i) }
    KEEPER_CRASH
    fi;
    if
    :: atomic { true -> anchor_files = anchor_files | (1 << i) }
    KEEPER_CRASH
    fi;
#else
    if
    :: atomic { true -> anchor_files = anchor_files | (1 << i) }
    KEEPER_CRASH
    fi;
    if
    :: atomic { true -> anchor_records = anchor_records | (1 << i) }
    KEEPER_CRASH
    fi;
#endif
    goto end_forget
#if FOLLOWERS > 0
  :: atomic { !calm && !expired[0] -> expired[0] = true; covered[0] = false }
#if FOLLOWERS > 1
  :: atomic { !calm && !expired[1] -> expired[1] = true; covered[1] = false }
#endif
#endif
  :: atomic { !calm && head > 0 -> old = collect_floor; bound = head; f = 0 };
#ifdef BUG_LEASES_BELOW_FLOOR_IGNORED
    before = collect_floor;
#endif
    goto collect
  od;

collect:
  // The leases, one by one.
  do
  :: atomic {
    f < FOLLOWERS ->
    if
    :: HOLDS(f) -> bound = lease[f] - 1
    :: else
    fi;
    f++
  }
  :: f == FOLLOWERS -> break
  KEEPER_CRASH
  od;
  // The newest anchor at or below that; never below the floor that there is.
#ifndef BUG_FLOOR_WITHOUT_ANCHOR
  atomic {
    do
    :: bound > 0 && !HAS(anchor_records, bound) -> bound--
    :: else -> break
    od
  }
#endif
#ifndef BUG_FLOOR_LATE
  if
  :: atomic { bound > old -> collect_floor = bound; old = bound }
  :: atomic { bound <= old -> bound = old }
  KEEPER_CRASH
  fi;
#endif
#ifndef BUG_LEASES_READ_ONCE
  // The leases again: one that came in between keeps what it needs, although the floor is above it.
  f = 0;
  do
  :: atomic {
    f < FOLLOWERS ->
    if
    :: HOLDS(f) -> bound = lease[f] - 1
    :: else
    fi;
    f++
  }
  :: f == FOLLOWERS -> break
  KEEPER_CRASH
  od;
#endif
#ifdef BUG_FLOOR_LOWERED
  if
  :: atomic {
    bound < old ->
    do
    :: bound > 0 && !HAS(anchor_records, bound) -> bound--
    :: else -> break
    od;
    collect_floor = bound
  }
  :: atomic { bound >= old }
  KEEPER_CRASH
  fi;
#endif
  // Deltas that lead to the bound or below, anchors below it.
  i = 1;
  do
  :: atomic {
    i <= bound ->
    delta[i] = 0;
    if
    :: i < bound -> anchor_records = anchor_records & (255 - (1 << i))
    :: else
    fi
  };
    if
    :: atomic {
      true ->
      if
      :: i < bound -> anchor_files = anchor_files & (255 - (1 << i))
      :: else
      fi;
      i++
    }
    KEEPER_CRASH
    fi
  :: i > bound -> break
  KEEPER_CRASH
  od;
  // Deltas that lost the race for a version that is settled.
  atomic {
    i = 1;
    do
    :: i <= head -> delta[i] = delta[i] & (1 << commit_state[i]); i++
#ifdef BUG_COLLECTS_UNCOMMITTED
    :: i == head + 1 -> delta[i] = 0; break
#endif
    :: i > head -> break
    od
  }
#ifdef BUG_FLOOR_LATE
  if
  :: atomic { bound > old -> collect_floor = bound }
  :: bound <= old
  KEEPER_CRASH
  fi;
#endif
  goto end_forget
}
