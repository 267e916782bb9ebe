# SPDX-License-Identifier: Apache-2.0
"""Which releases of sparsecast work together: releases that differ in their patch number alone. Which releases of an
engine it is made for, and what the installed one lacks.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Sequence

import sparsecast
from sparsecast.errors import UnsupportedError, UsageError

_RELEASE = re.compile(r"(\d{1,6})\.(\d{1,6})(?:[.a-z+-][0-9A-Za-z.+-]{0,60})?")


def own_release() -> str:
    """Returns the version of the installed sparsecast, such as "0.3.1"; an empty string if its compiled part is
    missing.
    """
    return str(getattr(sparsecast, "__version__", ""))


def works_with(release: str) -> bool:
    """Returns whether version `release` of sparsecast works with this installation: the two versions are equal, or
    differ in the patch number alone. Returns True if one of them is empty, that is, not known.
    """
    own = own_release()
    return not release or not own or _series(release) == _series(own)


def refuse_other_release(release: object) -> None:
    """Raises UnsupportedError, with both versions and the cure, if version `release` of the trainer differs from the
    version of this installation in more than the patch number. Raises UsageError if `release` is no version at all. An
    empty `release`, of a trainer that does not name its version, is accepted.
    """
    if not isinstance(release, str) or (release and not _RELEASE.fullmatch(release)):
        raise UsageError(f"release is {release!r}, not a version of sparsecast")
    if not works_with(release):
        wanted = ".".join(_series(release))
        raise UnsupportedError(
            f"the trainer has sparsecast {release}, and this server {own_release()}: both need the same version but for "
            f"the patch number, so install sparsecast=={wanted}.* beside the server, or the server's version at the "
            "trainer"
        )


def refuse_other_engine(
    engine: str, version: str, supported: Sequence[tuple[int, ...]], difference: str, logger: logging.Logger
) -> None:
    """Raises UnsupportedError, with the `difference`, if `version` of the `engine` is older than the first of the two
    `supported` versions. Logs a warning, once in a process, if it is newer than the last, or no version.
    """
    numbers = parse_version(version, len(supported[0]))
    named = " to ".join(".".join(map(str, one)) for one in supported)
    if numbers is not None and numbers < supported[0]:
        raise UnsupportedError(f"{engine} {version} {difference}: sparsecast needs {named}")
    if numbers is None or numbers > supported[1]:
        _say_once(logger, f"sparsecast is made for {engine} {named}; this is {version}, which may differ")


def say_lacks(engine: str, version: str, lacks: Sequence[str], logger: logging.Logger) -> None:
    """Logs, once in a process, what `version` of the `engine` lacks, a sentence each."""
    for words in lacks:
        _say_once(logger, f"{engine} {version}: {words}")


def parse_version(version: str, parts: int) -> tuple[int, ...] | None:
    """Returns the first `parts` numbers of a version; None if it has fewer."""
    found = re.match(r"\.".join([r"(\d{1,6})"] * parts), version)
    return tuple(map(int, found.groups())) if found else None


_said: set[str] = set()


def _say_once(logger: logging.Logger, words: str) -> None:
    if words not in _said:
        _said.add(words)
        logger.warning("%s", words)


def _series(release: str) -> tuple[str, ...]:
    found = _RELEASE.fullmatch(release)
    return found.groups() if found else (release,)
