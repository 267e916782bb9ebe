/* SPDX-License-Identifier: Apache-2.0 */
// The ranks of an engine that follow a delta log together (src/log/follower/engine_target.cpp,
// python/sparsecast/engines/log_receiver.py), and the server that pauses for them (log_following.py), as a model for
// spin. README.md beside this says what is modelled; check.sh runs it. Rank 0 leads: it orders "stage", "apply" and
// "reseed", and all ranks exchange how each step went. Each rank has a follower's thread (Rank) and an engine's thread
// (Engine), which lets the follower write only while it is asked to by the server.
//
// An exchange may break the channel: then it fails on any of the ranks, also on one alone, and for good (BREAKS). SPOILS
// writes fail: loudly, leaving the weights half-written or untouched, or with wrong bytes; an undo may fail as well.
// CLOSES ranks refuse a pause because they are closed. BUG_...: one of the mistakes that the model must find.

#ifndef VERSIONS
#define VERSIONS 2
#endif
#ifndef BREAKS
#define BREAKS 1
#endif
#ifndef SPOILS
#define SPOILS 1
#endif
#ifndef CLOSES
#define CLOSES 1
#endif
#ifdef BUG_RANK_0_HAS_STAGED
#define EVERY(what) (what[0])
#else
#define EVERY(what) (what[0] && what[1])
#endif
#define OTHER (1 - r)
#define WRONG 100  // Weights of no version: written as told, from other bytes.
#define HALF 200   // Weights that are half-written.

#ifdef BUG_BASE_NOT_COMPARED
#define FROM_BASE true
#else
#define FROM_BASE (weights[0] == target - 1 && weights[1] == target - 1)
#endif

// Orders of rank 0.
#define NONE 0
#define STAGE 1
#define APPLY 2
#define RESEED 3
#define RECOVER 4
#define END 5
byte order = NONE;
byte target;       // Version to which the order leads.
bool taken[2];     // Whether a rank has taken the order.

// ---- The channel ----
bool broken;       // No exchange that has not ended succeeds from now on.
byte said[2];      // Answer of a rank in the exchange that it has entered: 0 none, else one of these.
#define YES 1
#define NO 2
bool heard[2];     // Whether a rank has left the exchange with all answers.
byte breaks = BREAKS;
byte spoils = SPOILS;
byte closes = CLOSES;

// ---- What a rank has ----
byte weights[2];
byte before[2];    // What an undo brings back.
bool written[2];
bool torn[2];      // The other rank may hold another version.
bool staged[2];    // The follower's thread waits for the engine's.
bool granted[2];   // The engine's thread lets it write, and waits for the end of the write.
bool closed[2];    // Its receiver was closed.
bool ended[2];     // The follower's thread has ended: the channel is broken, or the rank is closed.

// ---- The server ----
bool paused;
bool looked;       // It has asked both ranks since the last write.

#define IS_WHOLE_PART(r) (weights[r] < WRONG)
#define IS_WHOLE(r) (!torn[r] && weights[r] < WRONG)
#ifdef BUG_RANK_0_SPEAKS
#define RESUMES whole0
#elif defined(BUG_RESUMES_UNASKED)
#define RESUMES true
#else
#define RESUMES (whole0 && whole1)
#endif

// Rank r gives `answer` to the other rank. ok: it has the answers of both; all: both are YES.
inline exchange(r, answer) {
  atomic {
    (!heard[r] && said[r] == 0 || broken);  // The exchange before has ended on both.
    if
    :: broken -> ok = false
    :: else -> said[r] = answer; ok = true
    fi
  }
  if
  :: !ok -> skip
  :: else ->
    atomic {
      (broken || said[OTHER] != 0);
      if
      :: said[OTHER] != 0 && (!broken || heard[OTHER]) ->  // Its part is here, whatever has happened since.
        ok = true;
        all = (said[0] == YES && said[1] == YES);
        heard[r] = true;
        if
        :: heard[OTHER] -> said[0] = 0; said[1] = 0; heard[0] = false; heard[1] = false
        :: else
        fi
      :: broken -> ok = false
      :: !broken && breaks > 0 -> breaks--; broken = true; ok = false
      fi
    }
  fi
}

// The end of the write, or of the wait for it: the engine's thread goes on.
inline end_pause(r) { staged[r] = false; granted[r] = false }

// Waits for the engine's thread. may: it lets the weights be written.
inline begin_pause(r) {
  staged[r] = true;
  if
  :: granted[r] -> may = true
  :: atomic { closes > 0 -> closes--; closed[r] = true; may = false }
  :: ended[OTHER] && !granted[r] -> may = false  // It waits until the server is shut down.
  fi
}

// Writes `target`, or fails.
inline write(r) {
  assert(paused);
  before[r] = weights[r];
  if
  :: weights[r] = target; written[r] = true; good = true
  :: atomic { spoils > 0 -> spoils--; good = false }
    if
    :: weights[r] = WRONG; written[r] = true
    :: weights[r] = HALF
    :: skip
    fi
  fi
}

inline undo(r) {
  if
  :: written[r] ->
    if
    :: weights[r] = before[r]
    :: weights[r] = HALF
    fi
  :: else
  fi;
  written[r] = false
}

// in_pause() of engine_target.cpp: 0 done, 1 refused or undone, 2 the channel is broken, 3 a part is dirty.
inline in_pause(r, undoes) {
  begin_pause(r);
  exchange(r, (may -> YES : NO));
  if
  :: !ok -> result = 2
  :: ok && !all -> result = (closed[r] -> 2 : 1)
  :: else ->
#ifndef BUG_NOT_TORN
    torn[r] = true;
#endif
    write(r);
    exchange(r, (good && weights[r] == target -> YES : NO));
    if
    :: !ok -> result = 2
    :: ok && all -> result = 0; torn[r] = false; written[r] = false
    :: else ->
#ifdef BUG_NO_UNDO
      torn[r] = false; result = 1
#else
      if
      :: undoes ->
        undo(r);
        exchange(r, (IS_WHOLE_PART(r) -> YES : NO));
        if
        :: !ok -> result = 2
        :: ok && all -> result = 1; torn[r] = false
        :: else -> result = 3
        fi
      :: else -> result = 3
      fi
#endif
    fi
  fi;
  end_pause(r)
}

// Does the order on rank r; result as in_pause().
inline obey(r) {
  if
  :: order == STAGE ->
    good = true;
    if
    :: skip
    :: atomic { spoils > 0 -> spoils--; good = false }
    fi;
    exchange(r, (good -> YES : NO));
    // The digests of the parts must add up to that of the version from which the delta leads.
    result = (!ok -> 2 : (all && FROM_BASE -> 0 : 1))
  :: order == APPLY -> in_pause(r, true)
  :: order == RESEED -> in_pause(r, false)
  :: order == RECOVER ->
    exchange(r, (IS_WHOLE(r) -> YES : NO));
    result = (!ok -> 2 : (all -> 0 : 3))
  fi
}

// Rank 0 gives an order to all ranks, and does it.
inline command(what, version) {
  if
  :: broken -> result = 2
  :: atomic {
       !taken[1] -> order = what; target = version; taken[1] = true  // Which a broken channel may have taken, too.
     }
     obey(0)
  fi
}

proctype Rank0() {
  bool ok, all, may, good;
  byte result, next, position;
  do
  :: position < VERSIONS ->
    next = position + 1;
    command(STAGE, next);
    if
    :: result == 0 ->
      command(APPLY, next)
    :: else
    fi;
    if
    :: result == 0 -> position = next
    :: result == 2 -> break
    :: else ->  // The target is recovered before anything else, and an anchor is taken if a part is dirty.
      command(RECOVER, position);
      if
      :: result == 2 -> break
      :: result == 3 ->
        command(RESEED, next);
        if
        :: result == 0 -> position = next
        :: result == 2 -> break
        :: else
        fi
      :: else
      fi
    fi
  :: else -> atomic { (!taken[1] || broken); order = END; taken[1] = true }; break
  od;
  ended[0] = true;
  broken = true  // Closing a channel tells the other rank.
}

proctype Rank1() {
  bool ok, all, may, good;
  byte result;
  do
  :: taken[1] && order == END -> break
  :: taken[1] && order != END ->
    obey(1);
    taken[1] = false;
    if
    :: result == 2 -> break
    :: else
    fi
  :: broken && !taken[1] -> break
  od;
  ended[1] = true;
  broken = true
}

// A server: pauses when all ranks have staged, has them write, and resumes when all of them answer that their weights
// are whole. It asks one rank after the other.
proctype Server() {
  bool whole0, whole1;
  do
  :: EVERY(staged) ->
    paused = true;
    granted[0] = staged[0];
    granted[1] = staged[1];
    (!granted[0]);  // The engine's thread waits for the end of the write.
    (!granted[1]);
    looked = false
  :: paused && !looked ->
    whole0 = IS_WHOLE(0);
    whole1 = IS_WHOLE(1);
    looked = true;
    if
    :: RESUMES ->
      assert(weights[0] == weights[1] && weights[0] < WRONG);
      paused = false
    :: else
    fi
  :: ended[0] && ended[1] && (looked || !paused) -> break
  od;
  // Nobody is stuck: only weights that are not known to be whole keep a server paused when all has ended.
  assert(!paused || !IS_WHOLE(0) || !IS_WHOLE(1))
}

init {
  atomic { run Rank0(); run Rank1(); run Server() }
}
