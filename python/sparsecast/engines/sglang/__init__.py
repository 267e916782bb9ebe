# SPDX-License-Identifier: Apache-2.0
"""SGLang: the plug-in of a server, and the receiver of each of its ranks.

`SglangEnd` is defined in the module `engine`, which is imported when the name is asked for: SGLang loads the plug-in in
each of its processes, and only its schedulers have a receiver.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

__all__ = ["SglangEnd"]

if TYPE_CHECKING:
    from sparsecast.engines.sglang.engine import SglangEnd
else:

    def __getattr__(name: str) -> object:
        if name not in __all__:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        from sparsecast.engines.sglang import engine

        return getattr(engine, name)
