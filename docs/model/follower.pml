/* SPDX-License-Identifier: Apache-2.0 */
// One follower with a checkpoint on disk that is patched in place. The checkpoint has two halves, so that a torn one
// can be told; what was written and not synced may or may not survive a crash.
#ifdef GONE_IS_FINE
#define MISSING skip
#else
#define MISSING assert(!covered[me])  // I9
#endif
#define FOLLOWER_CRASH :: !calm -> goto crash

proctype Follower(byte me) {
  byte position, target, seen, i;
  byte state_file = 0;
  byte cache[2], disk[2];
  bool undo = false;
  byte undo_state;
  goto recover;

crash:
  atomic {
    covered[me] = false;
    i = 0;
    do
    :: i < 2 ->
      if
      :: disk[i] = cache[i]
      :: cache[i] = disk[i]
      fi;
      i++
    :: else -> break
    od;
    i = 0;
    target = 0;
    seen = 0;
#ifdef BUG_UNDO_NOT_DURABLE
    if
    :: undo = false; undo_state = 0  // It was never synced.
    :: skip
    fi;
#endif
    position = 0
  }

recover:
#ifndef BUG_NO_RECOVERY
  if
  :: undo ->
    if
    :: cache[0] = undo_state
    FOLLOWER_CRASH
    fi;
    if
    :: cache[1] = undo_state
    FOLLOWER_CRASH
    fi;
    if
    :: atomic { true -> disk[0] = cache[0]; disk[1] = cache[1] }
    FOLLOWER_CRASH
    fi;
    if
    :: atomic { true -> undo = false; undo_state = 0 }
    FOLLOWER_CRASH
    fi
  :: else
  fi;
#endif
  atomic {
#ifdef BUG_STATE_FILE_BELIEVED
    position = state_file;
#else
    // Whole (I4: no crash costs more than the remaining deltas), and of a version from the state file's on.
    assert(cache[0] == cache[1]);
    position = state_file;
    do
    :: position <= head && commit_state[position] != cache[0] -> position++
    :: else -> break
    od;
    assert(position <= head);
#endif
  }
  // Digests may come again, so what is found is written down before anything rests on it.
  if
  :: position != state_file ->
#ifndef BUG_FOUND_AND_NOT_RECORDED
    if
    :: state_file = position
    FOLLOWER_CRASH
    fi
#endif
  :: else
  fi;
  atomic {
    assert(position >= reported[me]);  // I6.
#ifndef BUG_STATE_FILE_BELIEVED
    if
    :: position > reported[me] -> reported[me] = position  // A notification that was due.
    :: else
    fi
#endif
  }

take_lease:
#ifdef BUG_FLOOR_BEFORE_LEASE
  if
  :: atomic { collect_floor <= position -> covered[me] = !expired[me] }
  :: collect_floor > position -> goto join
  FOLLOWER_CRASH
  fi;
#endif
  if
  :: atomic { true -> lease[me] = position + 1; expired[me] = false }
  FOLLOWER_CRASH
  fi;
#ifndef BUG_FLOOR_BEFORE_LEASE
  if
  :: atomic { collect_floor <= position -> covered[me] = !expired[me] }
  :: collect_floor > position -> covered[me] = false; goto join
  FOLLOWER_CRASH
  fi;
#endif
  if
  :: head == position
  :: atomic { head > position -> seen = head }
  :: atomic { !calm && (anchor_records >> (position + 1)) != 0 -> goto join }  // The anchor may be the cheaper path.
  FOLLOWER_CRASH
  fi;
  if
  :: seen == 0 ->
end_idle:
    head > position || expired[me]
  :: else
  fi;

next_delta:
  if
  :: position >= seen -> seen = 0; goto take_lease
  :: else
  fi;
  // What a covered follower needs is there. Else it is gone, and an anchor helps.
  if
  :: atomic {
    HAS(delta[position + 1], commit_state[position + 1]) ->
    assert(cache[0] == commit_state[position] && cache[1] == commit_state[position]);  // Base digest.
    target = commit_state[position + 1]
  }
  :: atomic { !HAS(delta[position + 1], commit_state[position + 1]) -> MISSING; goto join }
  FOLLOWER_CRASH
  fi;
#ifdef BUG_STATE_FILE_FIRST
  if
  :: state_file = position + 1
  FOLLOWER_CRASH
  fi;
#endif
#ifndef BUG_NO_UNDO
  if
  :: atomic { true -> undo = true; undo_state = cache[0] }
  FOLLOWER_CRASH
  fi;
#endif
  if
  :: cache[0] = cache[0] ^ (commit_state[position] ^ target)
  FOLLOWER_CRASH
  fi;
#ifdef BUG_UNDO_REMOVED_BEFORE_SYNC
  if
  :: atomic { true -> cache[1] = cache[1] ^ (commit_state[position] ^ target) }
  FOLLOWER_CRASH
  fi;
  if
  :: atomic { true -> undo = false; undo_state = 0 }
  FOLLOWER_CRASH
  fi;
  if
  :: atomic { true -> disk[0] = cache[0]; disk[1] = cache[1] }
  FOLLOWER_CRASH
  fi;
#else
  if
  :: cache[1] = cache[1] ^ (commit_state[position] ^ target)
  FOLLOWER_CRASH
  fi;
  if
  :: atomic {
    true ->
    disk[0] = cache[0];
    disk[1] = cache[1];
    assert(disk[0] == target && disk[1] == target)  // Result digest, read back.
  }
  FOLLOWER_CRASH
  fi;
  if
  :: atomic { true -> undo = false; undo_state = 0 }
  FOLLOWER_CRASH
  fi;
#endif
#ifndef BUG_STATE_FILE_FIRST
  if
  :: state_file = position + 1
  FOLLOWER_CRASH
  fi;
#endif
  atomic {
    // I1, I2: what is reported is the trainer's, all of it, and on disk. I6: never an older version.
    position++;
    assert(disk[0] == commit_state[position] && disk[1] == commit_state[position]);
    assert(position > reported[me]);
    reported[me] = position;
    target = 0;
    goto next_delta
  }

  // Gone, or a better way: from the newest anchor.
join:
  atomic {
    covered[me] = false;
    seen = 0;
    i = VERSIONS;
    do
    :: i > 0 && !HAS(anchor_records, i) -> i--
    :: else -> break
    od;
    assert(i > 0 || collect_floor == 0);  // The floor leads to an anchor, always.
    if
    :: i <= position -> i = 0; goto take_lease
    :: else
    fi
  }
#ifdef BUG_FLOOR_BEFORE_LEASE
  if
  :: atomic { collect_floor <= i -> covered[me] = !expired[me] }
  :: collect_floor > i -> goto join
  FOLLOWER_CRASH
  fi;
#endif
  if
  :: atomic { true -> lease[me] = i + 1; expired[me] = false }
  FOLLOWER_CRASH
  fi;
#ifndef BUG_FLOOR_BEFORE_LEASE
  if
  :: atomic { collect_floor <= i -> covered[me] = !expired[me] }
  :: collect_floor > i -> goto join
  FOLLOWER_CRASH
  fi;
#endif
  if
  :: HAS(anchor_files, i)
  :: atomic { !HAS(anchor_files, i) -> MISSING; goto join }
  FOLLOWER_CRASH
  fi;
  if
  :: atomic {  // Renamed into place.
    true ->
    cache[0] = commit_state[i];
    cache[1] = cache[0];
    disk[0] = cache[0];
    disk[1] = cache[0]
  }
  FOLLOWER_CRASH
  fi;
  if
  :: state_file = i
  FOLLOWER_CRASH
  fi;
  atomic {
    position = i;
    i = 0;
    assert(disk[0] == commit_state[position] && disk[1] == commit_state[position]);
    assert(position > reported[me]);
    reported[me] = position
  }
  goto take_lease
}
