# SPDX-License-Identifier: Apache-2.0
"""vLLM: the weight-transfer backend "sparsecast" of a server and of a trainer, and its plug-ins.

The names in `__all__` are defined in the module `engine`, which imports much of vLLM. The module is imported when one
of these names is first asked for: the plug-ins (`plugin`, `endpoints`) and a trainer (`trainer`, `stock`) do without
it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

__all__ = [
    "SparsecastInitInfo",
    "SparsecastUpdateInfo",
    "SparsecastWeightTransferEngine",
    "WorkerExtension",
    "draft_model",
]

if TYPE_CHECKING:
    from sparsecast.engines.vllm.engine import (
        SparsecastInitInfo,
        SparsecastUpdateInfo,
        SparsecastWeightTransferEngine,
        WorkerExtension,
    )
    from sparsecast.engines.vllm.live_model import draft_model
else:

    def __getattr__(name: str) -> object:
        if name not in __all__:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        from sparsecast.engines.vllm import engine

        return getattr(engine, name)
