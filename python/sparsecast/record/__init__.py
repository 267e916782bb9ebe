# SPDX-License-Identifier: Apache-2.0
"""Traces of training: the exact weights after every optimizer step, as an anchor and sparse steps on disk.

:class:`Recorder` writes a trace beside any torch training loop, :class:`Trace` reads one (without torch), and
``sparsecast-record report`` prints what changes in it and what that costs on the wire. The files are sparse steps in
the format of TRL, which ``sparsecast diff``, ``apply`` and ``convert`` read as well. Needs the package ``safetensors``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .trace import Change, Trace, Version

if TYPE_CHECKING:
    from .recorder import Recorder

__all__ = ["Change", "Recorder", "Trace", "Version"]


def __getattr__(name: str) -> Any:
    # Reading a trace needs no torch.
    if name == "Recorder":
        from .recorder import Recorder

        return Recorder
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
