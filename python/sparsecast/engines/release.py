# SPDX-License-Identifier: Apache-2.0
"""Which releases of sparsecast work together: releases that differ in their patch number alone."""

from __future__ import annotations

import re

import sparsecast
from sparsecast.errors import UnsupportedError, UsageError

_RELEASE = re.compile(r"(\d{1,6})\.(\d{1,6})(?:[.a-z+-][0-9A-Za-z.+-]{0,60})?")


def own_release() -> str:
    """Returns the version of this installation; empty where its compiled part is not here."""
    return str(getattr(sparsecast, "__version__", ""))


def works_with(release: str) -> bool:
    """Returns whether `release` differs from the version of this installation in the patch number alone, if at all. An
    empty version, of a caller or an installation that has none, is not compared.
    """
    own = own_release()
    return not release or not own or _series(release) == _series(own)


def refuse_other_release(release: object) -> None:
    """Raises UnsupportedError, naming both versions and the cure, if the trainer's `release` differs from the version
    of this installation in more than the patch number.
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


def _series(release: str) -> tuple[str, ...]:
    found = _RELEASE.fullmatch(release)
    return found.groups() if found else (release,)
