/* SPDX-License-Identifier: Apache-2.0 */
// The protocol of the delta log (docs/delta-log.md) as a model for spin. README.md beside this says what is modelled;
// check.sh runs it. Each step between two semicolons that is not in an atomic block is one call to the store or to the
// disk, before and after which a process may crash and all others may go on.
//
// Sizes: VERSIONS, PUBLISHERS, FOLLOWERS, KEEPERS (processes that write anchors and collect), LIVES of each publisher.
// FAULTS: publishers crash, and their requests and replies are lost or late. CALM: for the liveness check, all faults
// end at some time. BUG_...: one of the mistakes that the model must find.

#ifndef VERSIONS
#define VERSIONS 3
#endif
#ifndef PUBLISHERS
#define PUBLISHERS 2
#endif
#ifndef FOLLOWERS
#define FOLLOWERS 1
#endif
#ifndef KEEPERS
#define KEEPERS 1
#endif
#ifndef LIVES
#define LIVES 2
#endif
#ifndef FAULTS
#define FAULTS 1
#endif

// Lengths of arrays are literals.
#define MOST 2  // Of publishers, of followers.
#if VERSIONS <= 3
#define ROOM 5
#else
#define ROOM 8
#endif

// ---- The store ----
// Commit objects exist for versions 0 to `head`. The weights of a version are a small number; a delta is the exclusive
// or of two, and is named by its content: bit s of delta[v] is the delta from the version before to weights s.
byte head = 0;
byte commit_state[ROOM];
byte commit_epoch[ROOM];
byte commit_by[ROOM];  // The publisher object that wrote it; 0: the genesis.
byte delta[ROOM];
byte anchor_files = 0;    // Bit v: the files of an anchor of version v.
byte anchor_records = 0;  // Bit v: the record that commits it.
byte collect_floor = 0;
byte lease[MOST];  // 0: none, else the version + 1.

// Requests that their sender has given up on and that may still arrive; 0: none, else the version.
byte late_version[MOST];
byte late_state[MOST];
byte late_epoch[MOST];
byte late_by[MOST];

// ---- What the assertions need to know ----
byte led = 1;                    // The highest epoch whose publisher knows that it leads.
bool expired[MOST];  // Its lease has run out.
bool covered[MOST];  // It holds a live lease, and has read a floor at or below that since it wrote it.
byte reported[MOST];
bool calm = false;

#define CREATED 1
#define EXISTS 2
#define LOST 3
#define HAS(set, i) (((set) >> (i)) & 1)

// put_if_absent of a commit. I5: a version has one commit, for ever; none of an epoch that has been superseded.
inline create(version, state, epoch, by, outcome) {
  if
  :: version == head + 1 ->
    assert(epoch >= led);
    commit_state[version] = state;
    commit_epoch[version] = epoch;
    commit_by[version] = by;
    head = version;
    outcome = CREATED
  :: else ->
    assert(version <= head);
#ifdef BUG_OVERWRITE
    assert(commit_by[version] == by && commit_state[version] == state);
    outcome = CREATED
#else
    outcome = EXISTS
#endif
  fi
}

// ---- Publishing ----
// restart: head -> take over (a commit of its own, one epoch higher, empty delta) -> publish, publish, ...
#define PUBLISHER_CRASH :: FAULTS && !calm && lives < LIVES -> goto crash

proctype Publisher(byte me) {
  byte known, epoch, now, next, outcome, lives;
  bool leading;

crash:
  lives++;
restart:
  atomic {
    known = head;
    now = commit_state[known];
    epoch = commit_epoch[known] + 1;
    next = now;
    outcome = 0;
    leading = false;
#ifdef BUG_TAKEOVER_WITHOUT_COMMIT
    leading = true;
    if
    :: epoch > led -> led = epoch
    :: else
    fi;
    goto choose
#endif
  }
put_object:
  if
  :: known == VERSIONS -> goto done
  :: else
  fi;
#ifndef BUG_COMMIT_FIRST
  if
  :: atomic { true -> delta[known + 1] = delta[known + 1] | (1 << next) }
  PUBLISHER_CRASH
  fi;
#endif
  if
  :: atomic { true -> create(known + 1, next, epoch, me + 1 + PUBLISHERS * lives, outcome) }
  :: atomic { FAULTS && !calm -> create(known + 1, next, epoch, me + 1 + PUBLISHERS * lives, outcome); outcome = LOST }
  :: atomic { FAULTS && !calm -> outcome = LOST }
  :: atomic {
    FAULTS && !calm && late_version[me] == 0 ->
    late_version[me] = known + 1;
    late_state[me] = next;
    late_epoch[me] = epoch;
    late_by[me] = me + 1 + PUBLISHERS * lives;
    outcome = LOST
  }
  PUBLISHER_CRASH
  fi;
  if
  :: outcome == LOST ->
#ifdef BUG_NEW_BYTES
    if
    :: leading -> goto choose
    :: else
    fi;
#endif
    goto put_object  // Unsettled: the same bytes again.
  :: outcome == CREATED
  :: outcome == EXISTS ->  // Read it back.
#ifndef BUG_EXISTS_IS_OWN
    if
    :: commit_by[known + 1] == me + 1 + PUBLISHERS * lives && commit_state[known + 1] == next
    :: else ->
      // Fenced, by another than itself; a new publisher object may take over.
      assert(commit_by[known + 1] != me + 1 + PUBLISHERS * lives);
      if
      :: lives < LIVES -> lives++; goto restart
      :: goto done
      fi
    fi
#else
    skip
#endif
  fi;
#ifdef BUG_COMMIT_FIRST
  if
  :: atomic { true -> delta[known + 1] = delta[known + 1] | (1 << next) }
  PUBLISHER_CRASH
  fi;
#endif
  atomic {
    // Durable: it is told to the trainer, and must be true.
    known++;
    assert(commit_by[known] == me + 1 + PUBLISHERS * lives && commit_state[known] == next);
    now = next;
    outcome = 0;
    if
    :: leading
    :: else ->
      leading = true;  // Perhaps it has been superseded already, and does not know.
      if
      :: epoch > led -> led = epoch
      :: else
      fi
    fi
  }
choose:
  if
  :: atomic { now != 0 -> next = 0 }
  :: atomic { now != 1 -> next = 1 }
#ifndef TWO_STATES
  :: atomic { now != 2 -> next = 2 }
#endif
  PUBLISHER_CRASH
  fi;
  goto put_object;
done:
  skip
}

// Delivers what was late.
proctype Network(byte me) {
  byte outcome;
end_idle:
  do
  :: atomic {
    late_version[me] != 0 ->
    create(late_version[me], late_state[me], late_epoch[me], late_by[me], outcome);
    late_version[me] = 0;
    late_state[me] = 0;
    late_epoch[me] = 0;
    late_by[me] = 0;
    outcome = 0
  }
  od
}

#include "follower.pml"
#include "keeper.pml"

proctype Calm() { calm = true }

init {
  byte i = 0;
  atomic {
    commit_epoch[0] = 1;
    do
    :: i < PUBLISHERS -> run Publisher(i); run Network(i); i++
    :: else -> break
    od;
    i = 0;
    do
    :: i < FOLLOWERS -> run Follower(i); i++
    :: else -> break
    od;
    i = 0;
    do
    :: i < KEEPERS -> run Keeper(); i++
    :: else -> break
    od;
#ifdef CALM
    run Calm()
#endif
  }
}

#ifdef CALM
// Once nothing fails any more, every follower reaches the newest version, whatever state the faults have left it in.
ltl recovers { [] (calm -> <> (reported[0] == head && reported[FOLLOWERS - 1] == head)) }
#endif
