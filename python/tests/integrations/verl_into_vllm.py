# SPDX-License-Identifier: Apache-2.0
"""Runs in the environment of vLLM: verl's transfer engine in front of a model of vLLM's, fed by our flushes.

    python verl_into_vllm.py SITE_PACKAGES_OF_VERL MODEL

Prints "same" when a seed and four random steps have left the model as vLLM's own loader makes it of the trainer's weights.
"""

from __future__ import annotations

import os
import pathlib
import sys
import time
from typing import Any

HERE = pathlib.Path(__file__).parent
sys.path[:0] = [str(HERE), str(HERE.parent / "engines")]
sys.path.append(sys.argv[1])

import verl_package
import vllm_models  # Before anything of vLLM.

verl_package.prepare()

import pytest
import torch
from verl.workers.rollout.vllm_rollout.delta_weight_transfer import (
    VerlDeltaIPCUpdateInfo,
    VerlDeltaIPCWeightTransferEngine,
    require_vllm_delta_support,
)
from verl_threads import Threads, random_step
from vllm.config import set_current_vllm_config


class Server:
    """A worker: verl's engine as vLLM makes and calls it, without the CUDA memory that the payload comes through."""

    def __init__(self, config: Any, model: torch.nn.Module) -> None:
        self.engine = VerlDeltaIPCWeightTransferEngine.__new__(VerlDeltaIPCWeightTransferEngine)
        self.engine.model = model
        self.engine.model_config = config.model_config
        self.engine._session_encoding = None
        self.engine._update_failed = False
        self.engine._receive_payload = lambda zmq_handle: self.payload
        self.config = config
        self.payload: list[tuple[str, torch.Tensor]] = []
        self.encodings: list[str] = []

    def take(self, flushes: Any) -> None:
        with set_current_vllm_config(self.config):
            self.engine.start_weight_update()
            for named, _ in flushes:
                self.payload = named
                self.engine.receive_weights(VerlDeltaIPCUpdateInfo(zmq_handle="a file"))
                self.encodings.append(self.engine._session_encoding)
            self.engine.finish_weight_update()


def main() -> None:
    kind = sys.argv[2]
    require_vllm_delta_support()
    config = vllm_models.config(kind)
    vllm_models.start(config)
    model, wanted = vllm_models.build(config), vllm_models.build(config)
    seed = int(os.environ.get("SPARSECAST_SEED", "0")) or int(time.time())
    print(f"SPARSECAST_SEED={seed}")
    generator = torch.Generator().manual_seed(seed)
    weights = {
        name: (torch.randn(shape, generator=generator) * 0.05).to(torch.bfloat16)
        for name, shape in vllm_models.checkpoint_shapes(kind).items()
    }
    with set_current_vllm_config(config):
        model.load_weights(weights.items())
    server = Server(config, model)
    with pytest.MonkeyPatch.context() as patch:
        threads = Threads(weights, ["a"], patch, bucket_size=32 << 10)
        patch.setattr(threads, "_take", lambda index, step: server.take(threads.receivers[0].receive_weights(step)))
        for _ in range(4):
            print(threads.sync())
            random_step(weights, generator, 0.02)
        threads.sync()
    with set_current_vllm_config(config):
        wanted.load_weights(weights.items())
    assert "indices" in server.encodings, server.encodings
    different = vllm_models.differing(model, wanted)
    assert not different, different
    print("same")
    vllm_models.stop()


main()
