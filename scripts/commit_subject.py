#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0

"""Checks the subject lines of commits: an imperative sentence of fewer than 73 characters.

    scripts/commit_subject.py FILE              the message in that file: what git gives a commit-msg hook
    scripts/commit_subject.py --range A..B      the commits of that range

"Add a test", not "Added a test", "Adds a test", "A test" or "tests: add one". Prints what is wrong; the exit status is
1 if anything is. Whether a word is a verb is guessed from its form, so it finds the usual slips and no more.
"""

from __future__ import annotations

import argparse
import pathlib
import re
import subprocess
import sys

MOST_CHARACTERS = 72
# Subjects that git or a forge writes.
MADE_BY_GIT = ("Merge ", "Revert ", "Reapply ", "fixup! ", "squash! ", "amend! ")
# Words that begin a description of a thing, or of a state, rather than an order.
NO_VERBS = (
    "a all an and any are as at both by each every few for from here how if in is it its many more most my new no not "
    "now of on one only or our several some such that the their there these they this those to two we what when where "
    "which while who with without you your"
)
# Verbs that end as other forms do. Those that end with "ss" need no place here.
VERBS = (
    "bring cling ping ring sing spring sting string swing bias canvas focus embed exceed feed heed need proceed seed "
    "shed shred speed succeed weed"
)


def problem_of(subject: str) -> str | None:
    """What is wrong with the subject; None if nothing is."""
    if subject.startswith(MADE_BY_GIT):
        return None
    if not subject:
        return "there is no subject"
    if len(subject) > MOST_CHARACTERS:
        return f"has {len(subject)} characters, {len(subject) - MOST_CHARACTERS} more than the most"
    if subject.endswith((".", "!", "?")):
        return "ends with a mark that a subject does without"
    first = re.split(r"[\s,;]", subject, maxsplit=1)[0]
    if first.endswith(":"):
        return f"begins with a label ('{first}') instead of a verb"
    if not re.fullmatch(r"[A-Z][a-z]+(-[A-Za-z]+)*", first):
        return f"begins with '{first}', which is not a capitalised verb"
    word = first.lower().rpartition("-")[2]
    if word in VERBS.split():
        return None
    other_form = word.endswith(("ing", "ed", "s")) and not word.endswith("ss")
    if other_form or word in NO_VERBS.split():
        return f"begins with '{first}', which is not an imperative: 'Add', not 'Added', 'Adds' or 'Adding'"
    return None


def subject_of(message: str) -> str:
    """The first line of a commit message that is not a comment."""
    lines = (line.strip() for line in message.splitlines() if not line.startswith("#"))
    return next((line for line in lines if line), "")


def subjects_of(commits: str) -> list[tuple[str, str]]:
    """(abbreviated hash, subject) of the range's commits, without merges."""
    command = ["git", "log", "--no-merges", "--format=%h%x00%s", commits]
    listed = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    return [(line.partition("\0")[0], line.partition("\0")[2]) for line in listed.splitlines()]


def main() -> int:
    parser = argparse.ArgumentParser(description="Checks the subject lines of commits.")
    source = parser.add_mutually_exclusive_group(required=True)
    source.add_argument("file", nargs="?", type=pathlib.Path, help="a file with one message")
    source.add_argument("--range", metavar="A..B", help="the commits of that range")
    arguments = parser.parse_args()
    if arguments.range:
        subjects = subjects_of(arguments.range)
    else:
        subjects = [("subject", subject_of(arguments.file.read_text(encoding="utf-8", errors="replace")))]
    wrong = [(name, subject, why) for name, subject in subjects if (why := problem_of(subject))]
    for name, subject, why in wrong:
        print(f"{name}: '{subject}' {why}")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
