# SPDX-License-Identifier: Apache-2.0
"""Runs in the environment of vLLM: verl's transfer engine in front of a model of vLLM's, fed by our flushes; or verl's
worker in vLLM, fed by our whole tensors.

    python verl_into_vllm.py SITE_PACKAGES_OF_VERL MODEL [whole]

Prints "same" when a seed and four random steps have left the model as vLLM's own loader makes it of the trainer's weights.
"""

from __future__ import annotations

import os
import pathlib
import sys
import time
from types import SimpleNamespace
from typing import Any

HERE = pathlib.Path(__file__).parent
sys.path[:0] = [str(HERE), str(HERE.parent / "engines")]
sys.path.append(sys.argv[1])

import verl_package
import vllm_models  # Before anything of vLLM.

verl_package.prepare()

import pytest
import torch
from verl.workers.rollout.vllm_rollout import bucketed_weight_transfer, utils
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


class WholeServer:
    """A worker: verl's extension of vLLM's as vLLM calls it, without the CUDA memory that the tensors come through."""

    def __init__(self, config: Any, model: torch.nn.Module) -> None:
        self.worker = utils.vLLMColocateWorkerExtension.__new__(utils.vLLMColocateWorkerExtension)
        self.worker.device = torch.device("cpu")
        self.worker.vllm_config = config
        self.worker.model_runner = SimpleNamespace(model=model, vllm_config=config, model_config=config.model_config)
        self.worker._is_qat_model = self.worker._is_modelopt_qat = False
        self.worker._get_zmq_handle = lambda: ""
        self.config = config

    def take(self, named: Any) -> None:
        buckets = [[one] for one in named]

        def receive_weights(on_bucket_received: Any) -> None:
            for number, bucket in enumerate(buckets, 1):
                on_bucket_received(bucket, number == len(buckets))

        bucketed_weight_transfer.BucketedWeightReceiver = lambda **_: SimpleNamespace(receive_weights=receive_weights)
        with set_current_vllm_config(self.config):
            self.worker.update_weights_from_ipc()


def main() -> None:
    kind, whole = sys.argv[2], sys.argv[3:] == ["whole"]
    if not whole:
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
    server = (WholeServer if whole else Server)(config, model)
    with pytest.MonkeyPatch.context() as patch:
        threads = Threads(weights, ["a"], patch, whole=whole, bucket_size=32 << 10)
        patch.setattr(threads, "_take", lambda index, step: server.take(threads.receivers[0].receive_weights(step)))
        for _ in range(4):
            print(threads.sync())
            random_step(weights, generator, 0.02)
        threads.sync()
    with set_current_vllm_config(config):
        wanted.load_weights(weights.items())
    assert whole or "indices" in server.encodings, server.encodings
    different = vllm_models.differing(model, wanted)
    assert not different, different
    print("same")
    vllm_models.stop()


main()
