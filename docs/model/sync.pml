/* SPDX-License-Identifier: Apache-2.0 */
// The sync of a sharded trainer with its engines, and the regroup that follows a failure (docs/fanout.md), as a model
// for spin. README.md beside this says what is modelled; check.sh runs it. Ranks 0 (the coordinator) and 1 are the
// trainer's, each with one part of the weights; the others are engines of one rank, which hold both parts.
//
// A world is what one regroup makes: every rank says who it is, doubts are settled, engines without a version are
// seeded, bases are compared, and one sync follows. In worlds below CALM every wait may end by its deadline (a message
// that is lost is one that came after it), KILLS ranks die at any wait, and SPOILS applies fail. In later worlds
// nothing fails, so all must be well by world WORLDS: no rank may need another one, and the last state is checked.
// BUG_...: one of the mistakes that the model must find.

#ifndef ENGINES
#define ENGINES 2
#endif
#ifndef KILLS
#define KILLS 1
#endif
#ifndef SPOILS
#define SPOILS 1
#endif
#ifndef CALM
#define CALM 2
#endif
#define WORLDS (CALM + 3)  // A trainer that is not whole, a base that differs, and then one that works.

// Lengths of arrays are literals: worlds, phases of all worlds, ranks, and ranks of all worlds.
#define MOST_WORLDS 7
#define MOST_PHASES 42
#define MOST_RANKS 4
#define RANKS (2 + ENGINES)
#define ALL ((1 << RANKS) - 1)
#define TORN 255
#define HAS(set, i) (((set) >> (i)) & 1)

// Messages of the ranks of a world, in this order: who they are; that their bases are equal; that the group is formed;
// that all is staged; that it is applied, with digests; and their wait for the decision.
#define MEET 0
#define BASES 1
#define FORMED 2
#define STAGED 3
#define VOTES 4
#define DECISION 5
#define AT(phase) (6 * world + (phase))
byte said[MOST_PHASES];  // By world and phase, the ranks whose message has come.
byte against[MOST_WORLDS];  // Bit p: somebody said no in phase p.
bool left[MOST_WORLDS];  // Somebody failed, so the others' deadlines will pass.
byte newest = 0;

// ---- What a rank keeps ----
byte version[MOST_RANKS];
byte attempt[MOST_RANKS];  // Number of the last one.
bool doubt[MOST_RANKS];    // Whether `attempt` was committed is not known.
bool blank[MOST_RANKS];    // Needs an anchor.
byte base[2];              // Snapshot of a trainer's rank: what receivers hold of its part.
byte offer[2];             // What it has published and not yet committed.
byte trained[2];           // The last weights that it ever had; no two are the same.
byte held0[MOST_RANKS];    // The two parts of an engine's weights,
byte held1[MOST_RANKS];
byte undo0[MOST_RANKS];    // what undoing the last attempt makes of them,
byte undo1[MOST_RANKS];
bool applied[MOST_RANKS];  // and whether there is anything to undo.

// ---- What a world knows ----
byte info_version[MOST_WORLDS];  // The coordinator's.
bool info_partner[MOST_WORLDS];  // Trainer rank 1 is at another.
byte info_attempt[MOST_WORLDS];  // The largest number that anybody knows.
byte info_blank[MOST_WORLDS];    // The engines to be seeded.
byte sent_base0[MOST_WORLDS];
byte sent_base1[MOST_WORLDS];
byte sent0[MOST_WORLDS];
byte sent1[MOST_WORLDS];
byte base_sent[MOST_WORLDS];  // Bit i: trainer rank i has sent its base's digest (or the anchor).
byte sent[MOST_WORLDS];       // Bit i: it has sent its delta.

// ---- What the assertions need to know ----
byte committed = 1;  // Versions that the coordinator has decided for.
byte kills = 0;
byte spoils = 0;
byte known[MOST_RANKS];   // The last attempt that an engine applied, and its bytes.
byte known0[MOST_RANKS];
byte known1[MOST_RANKS];
byte formed[MOST_RANKS];  // The last world whose sync the rank has finished.

#define FAULTY (world < CALM)
// A deadline passes, though what is waited for may have come; in later worlds only if it never will.
#define EXPIRED(heard) (FAULTY || ((left[world] || newest > world) && !(heard)))
#define LATE(heard) :: EXPIRED(heard) -> goto failed
#define KILLED :: FAULTY && kills < KILLS -> kills++; goto killed

inline say(phase, good) {
  said[AT(phase)] = said[AT(phase)] | (1 << me);
  if
  :: good -> skip
  :: else -> against[world] = against[world] | (1 << (phase))
  fi
}

#define HEARD(phase) (said[AT(phase)] == ALL)
#define ANSWER(phase) (HAS(against[world], phase) == 0)

// ---- Meeting ----
// Last rank info of each rank. A rank that dies after it has sent it sends nothing else in this world.
byte said_version[MOST_RANKS];
byte said_attempt[MOST_RANKS];
bool said_doubt[MOST_RANKS];
bool said_blank[MOST_RANKS];
// Whether a rank will hold the coordinator's version once its doubt is settled.
#define SAYS_TO_HOLD(r) (said_version[r] == said_version[0] || (said_doubt[r] && said_attempt[r] == said_version[0]))

// Ends an attempt: commits it, or rolls it back.
inline settle(yes) {
  if
  :: me < 2 && yes -> base[me] = offer[me]
  :: me >= 2 && !yes && applied[me] ->
#ifndef BUG_UNDO_FORGOTTEN
    held0[me] = undo0[me];
    held1[me] = undo1[me]
#else
    skip
#endif
  :: else
  fi;
#ifdef BUG_NO_ABORT
  if
  :: me < 2 && !yes && offer[me] != 0 -> base[me] = offer[me]
  :: else
  fi;
#endif
  if
  :: yes ->
    version[me] = attempt[me];
    assert(HAS(committed, version[me]))  // Nobody is at a version that the coordinator did not decide for.
  :: else
  fi;
  if
  :: me < 2 -> offer[me] = 0
  :: else -> applied[me] = false
  fi;
  doubt[me] = false
}

// Makes the memory of engine `me` undefined: it was written in part, and cannot be rolled back; or the engine is new.
inline lose_memory() {
  held0[me] = TORN;
  held1[me] = TORN;
  applied[me] = false;
  doubt[me] = false;
  blank[me] = true
}

proctype Rank(byte me) {
  byte world = 0;
  bool good;
  byte r;

join:
  // To the newest world that it has not been in, or to a new one.
  atomic {
    if
    :: newest > world -> world = newest
    :: else ->
      assert(newest < WORLDS);  // Nobody needs another regroup.
      newest++;
      world = newest
    fi;
    said_version[me] = version[me];
    said_attempt[me] = attempt[me];
    said_doubt[me] = doubt[me];
    said_blank[me] = blank[me];
    say(MEET, true);
    if
    :: HEARD(MEET) ->
      info_version[world] = said_version[0];
      info_partner[world] = !SAYS_TO_HOLD(1);
      r = 0;
      do
      :: r < RANKS ->
        if
        :: said_attempt[r] > info_attempt[world] -> info_attempt[world] = said_attempt[r]
        :: else
        fi;
        if
        :: r >= 2 && (said_blank[r] || !SAYS_TO_HOLD(r)) -> info_blank[world] = info_blank[world] | (1 << r)
        :: else
        fi;
        r++
      :: else -> break
      od;
      r = 0
    :: else
    fi
  }
  if
  :: atomic { HEARD(MEET) -> skip }
  LATE(HEARD(MEET))
  KILLED
  fi;
  atomic {
    if
    :: info_partner[world] ->
      // The trainer is not whole: its ranks are made anew. It never comes to that without a rank that died.
      assert(kills > 0);
      left[world] = true;
      if
      :: me < 2 -> goto restarted
      :: else -> goto failed
      fi
    :: else
    fi;
    if
    :: doubt[me] ->
#ifdef BUG_DOUBT_FORGOTTEN
      doubt[me] = false;
      if
      :: me < 2 -> offer[me] = 0
      :: else
      fi;
      applied[me] = false
#else
      good = (info_version[world] == attempt[me]);
      settle(good)
#endif
    :: else
    fi;
#ifndef BUG_ATTEMPT_REUSED
    attempt[me] = info_attempt[world];
#else
    attempt[me] = version[me];
#endif
    if
    :: me < 2 ->
      if
      :: me == 0 -> sent_base0[world] = base[0]
      :: else -> sent_base1[world] = base[1]
      fi;
      base_sent[world] = base_sent[world] | (1 << me);
      good = true
    :: HAS(info_blank[world], me) ->
      // A lost message or a late rank costs no anchor.
      assert(kills + spoils > 0);
      lose_memory()
    :: else
    fi
  }
  if
  :: me < 2
  :: else ->
    if
    :: atomic { base_sent[world] == 3 ->
         if
         :: blank[me] ->
           held0[me] = sent_base0[world];
           held1[me] = sent_base1[world]
         :: else
         fi;
         version[me] = info_version[world];
         good = (held0[me] == sent_base0[world] && held1[me] == sent_base1[world]);
#ifdef BUG_BASE_NOT_COMPARED
         good = true;
#endif
         if
         :: !good ->
           // Refused: what is here is another's. It comes again as an engine that holds nothing.
           assert(kills + spoils > 0);
           lose_memory()
         :: else
         fi }
    LATE(base_sent[world] == 3)
    KILLED
    fi
  fi;
  atomic { say(BASES, good) }
  if
  :: atomic { HEARD(BASES) ->
       if
       :: !ANSWER(BASES) -> goto failed
       :: else -> blank[me] = false
       fi }
  LATE(HEARD(BASES))
  KILLED
  fi;

  // The decision that the group is formed.
  if
  :: me == 0 ->
    if
    :: atomic { (said[AT(FORMED)] | 1) == ALL -> say(FORMED, true) }
    LATE((said[AT(FORMED)] | 1) == ALL)
    KILLED
    fi
  :: else ->
    atomic { say(FORMED, true) }
    if
    :: HAS(said[AT(FORMED)], 0)
    LATE(HAS(said[AT(FORMED)], 0))
    KILLED
    fi
  fi;

  // ---- The sync ----
  atomic {
    attempt[me]++;
    good = true;
    if
    :: me < 2 ->
      trained[me]++;
      offer[me] = trained[me];
      if
      :: me == 0 -> sent0[world] = offer[0]
      :: else -> sent1[world] = offer[1]
      fi;
      sent[world] = sent[world] | (1 << me)
    :: else
    fi
  }
  if
  :: me < 2
  :: else ->
    if
    :: atomic { sent[world] == 3 ->
         // The base of a delta is what its receiver holds, and its number is of no other bytes.
         assert(held0[me] == sent_base0[world] && held1[me] == sent_base1[world]);
         assert(version[me] == info_version[world]);
         assert(known[me] != attempt[me] || (known0[me] == sent0[world] && known1[me] == sent1[world])) }
    LATE(sent[world] == 3)
    KILLED
    fi
  fi;
  atomic { say(STAGED, true) }
#ifndef BUG_STAGED_SKIPPED
  if
  :: HEARD(STAGED)
  LATE(HEARD(STAGED))
  KILLED
  fi;
#endif
#ifdef BUG_VOTE_BEFORE_APPLY
  atomic { say(VOTES, true) }
#endif
  if
  :: me < 2
  :: else ->
    atomic {
      assert(HEARD(STAGED));  // Nothing is written before everybody has everything.
      undo0[me] = held0[me];
      undo1[me] = held1[me];
      if
      :: true ->
        held0[me] = sent0[world];
        held1[me] = sent1[world];
        applied[me] = true;
        known[me] = attempt[me];
        known0[me] = sent0[world];
        known1[me] = sent1[world]
      :: FAULTY && spoils < SPOILS -> spoils++; good = false  // It says so, and wrote nothing,
      :: FAULTY && spoils < SPOILS ->                          // or wrote something else.
        spoils++;
        held0[me] = TORN;
        applied[me] = false;
        blank[me] = true;
#ifndef BUG_DIGEST_NOT_COMPARED
        good = false
#endif
      fi
    }
  fi;
#ifndef BUG_VOTE_BEFORE_APPLY
  atomic { say(VOTES, good) }
#endif
#ifdef BUG_DECISION_EARLY
  if
  :: me == 0 -> goto decide
  :: else
  fi;
#endif
  if
  :: atomic { HEARD(VOTES) ->
       if
       :: ANSWER(VOTES) -> skip
       :: else -> goto undo
       fi }
  :: EXPIRED(HEARD(VOTES)) -> goto undo
  KILLED
  fi;
  if
  :: me == 0 ->
decide:
    if
#ifdef BUG_DECISION_EARLY
    :: atomic { true ->
#else
    :: atomic { (said[AT(DECISION)] | 1) == ALL ->
#endif
         committed = committed | (1 << attempt[0]);
         settle(true);
         say(DECISION, true) }
#ifdef BUG_DECIDES_BY_DEADLINE
    :: atomic { EXPIRED((said[AT(DECISION)] | 1) == ALL) ->
         committed = committed | (1 << attempt[0]);
         settle(true);
         goto failed }
#else
    :: EXPIRED((said[AT(DECISION)] | 1) == ALL) -> goto undo
#endif
    KILLED
    fi
  :: else ->
    atomic { say(DECISION, true) }
#ifdef BUG_COMMIT_WITHOUT_DECISION
    atomic { settle(true); goto done }
#endif
    if
    :: atomic { HAS(said[AT(DECISION)], 0) -> settle(true) }
    :: atomic { EXPIRED(HAS(said[AT(DECISION)], 0)) ->
#ifdef BUG_DOUBT_IS_NO
         settle(false);
#else
#ifdef BUG_DOUBT_IS_YES
         settle(true);
#else
         doubt[me] = true;
#endif
#endif
         goto failed }
    KILLED
    fi
  fi;
done:
  atomic {
    assert(me < 2 || (held0[me] == sent0[world] && held1[me] == sent1[world]));
    formed[me] = world
  }
  // Idle. It hears of a newer world, which somebody else has needed.
end_idle:
  if
  :: newest > world -> goto join
  KILLED
  fi;

undo:
  atomic { settle(false); goto failed }
failed:
  atomic {
    left[world] = true;
    if
    :: !doubt[me] && (me < 2 && offer[me] != 0 || me >= 2 && applied[me]) -> settle(false)
    :: else
    fi
  }
  goto join;

killed:
  atomic {
    left[world] = true;
    if
    :: me < 2
    :: else ->
      lose_memory();
      version[me] = 0;
      attempt[me] = 0;
      known[me] = 0;
      goto join
    fi
  }
restarted:
  // A new publisher, of other weights, that begins at version 0.
  atomic {
    trained[me]++;
    base[me] = trained[me];
    offer[me] = 0;
    version[me] = 0;
    attempt[me] = 0;
    doubt[me] = false
  }
  goto join
}

// When nothing goes on any more, all have finished the sync of the newest world: they hold what the trainer does.
proctype Last() {
  byte r = 0;
  timeout ->
  atomic {
    do
    :: r < RANKS ->
      assert(formed[r] == newest && version[r] == version[0] && !doubt[r] && !blank[r]);
      assert(r < 2 || (held0[r] == base[0] && held1[r] == base[1]));
      r++
    :: else -> break
    od
  }
}

init {
  byte r = 0;
  atomic {
    do
    :: r < RANKS -> run Rank(r); r++
    :: else -> break
    od;
    run Last()
  }
}
