# SPDX-License-Identifier: Apache-2.0
"""LoRA adapters sent as they are, A and B alone, to the adapter interfaces of vLLM and SGLang (docs/adapters.md).

adapter = Adapter.from_peft(model)                                            # at the trainer
publisher = sparsecast.torch.Publisher(adapter.tensors.items(), transport=...)

receiver = AdapterReceiver(VllmServer(endpoint), "/dev/shm/adapters")         # beside the engine
receiver.add(spec, transport)

python -m sparsecast.adapters follow http://localhost:8000 LOG --directory ...   # the same as a command, for logs
"""

from __future__ import annotations

from .adapter import Adapter, AdapterSpec
from .engines import AdapterEngine, AdapterServer, SglangEngine, SglangServer, VllmEngine, VllmServer
from .follow import AdapterFollower, AdapterStream
from .merge_loss import MergeLoss, merge_loss
from .receiver import AdapterReceiver, AdapterUpdate, checkpoint_shapes

__all__ = [
    "Adapter",
    "AdapterEngine",
    "AdapterFollower",
    "AdapterReceiver",
    "AdapterServer",
    "AdapterSpec",
    "AdapterStream",
    "AdapterUpdate",
    "MergeLoss",
    "SglangEngine",
    "SglangServer",
    "VllmEngine",
    "VllmServer",
    "checkpoint_shapes",
    "merge_loss",
]
