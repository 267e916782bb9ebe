# SPDX-License-Identifier: Apache-2.0
"""Keeps an engine with its newest trainer, as a log is kept with its newest publisher."""

from __future__ import annotations

import os
import secrets
import socket

from sparsecast.errors import FencedError

_REMEMBERED = 1000  # earlier trainers that are refused; an engine that has had more forgets the oldest


def new_trainer_name() -> str:
    """Returns a name that no other trainer has: host, process, and a random number."""
    return f"{socket.gethostname()}:{os.getpid()}:{secrets.token_hex(4)}"


class TrainerFence:
    """Knows which trainer an engine follows, which is the trainer that joined last, and refuses trainers that joined
    earlier. So two trainers that were given the same engine by mistake do not overwrite each other's weights in turn.
    """

    def __init__(self) -> None:
        self._current = ""
        self._superseded: dict[str, None] = {}  # Earlier trainers, the oldest first.

    def refusal(self, engine: str, trainer: str) -> FencedError | None:
        """Returns the error to raise when `trainer` calls the engine, if another trainer has joined the engine after
        `trainer`. Returns None for any other trainer, and for a trainer with an empty name. `engine` is the engine's
        name, for the message.
        """
        if trainer not in self._superseded:
            return None
        return FencedError(
            f"engine {engine!r} follows another trainer: {self._current} has joined it after {trainer}, which cannot "
            f"take it back. End one of the two; a trainer that is started anew takes the engine over"
        )

    def follow(self, trainer: str) -> None:
        """Records that the engine has joined `trainer`, which is the current trainer from now on. An empty name records
        nothing.
        """
        if not trainer or trainer == self._current:
            return
        if self._current:
            self._superseded[self._current] = None
        if len(self._superseded) > _REMEMBERED:
            del self._superseded[next(iter(self._superseded))]
        self._current = trainer
