# SPDX-License-Identifier: Apache-2.0
"""A model that a trainer shards and a server holds in another form, and the fakes of verl's two servers around it."""

from __future__ import annotations

import json
from collections.abc import Iterable
from types import SimpleNamespace
from typing import Any

import torch
import verl_package
from torch import nn

verl_package.prepare()

from verl.workers.rollout.utils import ensure_async_iterator

from sparsecast.buffers import bits_of


class TrainedModel(nn.Module):
    """What the trainer has: odd sizes, so that shards are uneven, and one parameter smaller than the ranks are many."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.embed = nn.Embedding(1001, width)
        self.q_proj = nn.Linear(width, width + 3, bias=False)
        self.k_proj = nn.Linear(width, width + 5, bias=False)
        self.norm = nn.LayerNorm(width)
        self.scale = nn.Parameter(torch.full((1,), 0.7))


class ServedModel(nn.Module):
    """What a server has, in bf16: q and k in one matrix, as SGLang and vLLM have them."""

    def __init__(self, width: int) -> None:
        super().__init__()
        like = TrainedModel(width).to(torch.bfloat16)
        self.qk = nn.Parameter(torch.zeros(2 * width + 8, width, dtype=torch.bfloat16), requires_grad=False)
        self.rest = nn.ParameterDict()
        for name, value in like.named_parameters():
            if "_proj" not in name:
                self.rest[name.replace(".", "/")] = nn.Parameter(torch.zeros_like(value), requires_grad=False)
        self._rows = {"q_proj.weight": (0, width + 3), "k_proj.weight": (width + 3, width + 5)}

    def place(self, name: str) -> torch.Tensor:
        if name in self._rows:
            return self.qk.data.narrow(0, *self._rows[name])
        return self.rest[name.replace(".", "/")].data

    def load_weights(self, weights: Iterable[tuple[str, torch.Tensor]]) -> None:
        for name, value in weights:
            self.place(name).copy_(value)

    def bits(self) -> dict[str, torch.Tensor]:
        names = [*self._rows, *(name.replace("/", ".") for name in self.rest)]
        return {name: bits_of(self.place(name)).clone() for name in names}


class SGLangServer:
    """verl's own loop over flushes and its own loader, which SGLang would call in its workers."""

    def __init__(self, model: ServedModel) -> None:
        from verl.workers.rollout.sglang_rollout.delta_loader import apply_delta
        from verl.workers.rollout.sglang_rollout.sglang_rollout import ServerAdapter

        self.model = model
        self.flushes: list[str] = []
        self.fail_at = -1

        async def flush(named: Any, flush_cache: bool) -> None:
            self.flushes.append(json.loads(bytes(dict(named)["__delta_spec__"].numpy()))["encoding"])
            if len(self.flushes) - 1 == self.fail_at:
                raise RuntimeError("the server is gone")
            apply_delta(model, named)

        self._adapter = SimpleNamespace(_pd_role=None, _engine=None, _update_weights_delta_flush=flush)
        self._loop = ServerAdapter._update_weights_delta

    async def update_weights(self, weights: Any, global_steps: int | None, wire_format: str) -> None:
        self.flushes.clear()
        if wire_format == "named_tensors":
            async for name, tensor in ensure_async_iterator(weights):
                self.flushes.append(name)
                self.model.load_weights([(name, tensor)])
            return
        await self._loop(self._adapter, weights, global_steps=global_steps)


class VLLMServer:
    """verl's own loop over flushes and its own decoder; patches are written here as vLLM's loader would."""

    def __init__(self, model: ServedModel) -> None:
        from verl.workers.rollout.vllm_rollout import delta_weight_transfer, vllm_rollout

        self.model = model
        self.takes_whole_tensors = False
        self.flushes: list[str] = []
        self.calls: list[str] = []
        self._module = vllm_rollout
        delta_weight_transfer._checkpoint_patch_api = lambda: (SimpleNamespace, None)
        decode = delta_weight_transfer.decode_delta_payload
        server = self

        class Sender:
            def __init__(self, **_: Any) -> None:
                pass

            async def async_send_weights(self, named: Any) -> None:
                if server.takes_whole_tensors:  # As verl's receiver and worker in vLLM, without their CUDA memory.
                    async for name, tensor in ensure_async_iterator(named):
                        server.flushes.append(name)
                        server.model.load_weights([(name, tensor)])
                    return
                encoding, patches = decode(named)
                server.flushes.append(encoding)
                for patch in patches:
                    server.write(patch)

        vllm_rollout.BucketedWeightSender = Sender

        async def execute(method: str, **_: Any) -> None:
            self.calls.append(method)

        self._adapter = SimpleNamespace(
            use_shm=False,
            _delta_weight_transfer_engine_initialized=False,
            _execute_method=execute,
            _has_server=False,
            _ensure_server_handle=lambda: False,
            zmq_handle="",
            replica_rank=0,
            rollout_rank=0,
            config=SimpleNamespace(checkpoint_engine=SimpleNamespace(update_weights_bucket_megabytes=1)),
        )

    def write(self, patch: Any) -> None:
        place = self.model.place(patch.name)
        assert tuple(place.shape) == tuple(patch.shape) and place.dtype == patch.dtype == patch.values.dtype
        if patch.indices is None:
            place.copy_(patch.values.view(patch.shape))
            return
        assert int(patch.indices.min()) >= 0 and patch.indices.unique().numel() == patch.indices.numel()
        flat = place.clone().view(-1)
        flat[patch.indices.long()] = patch.values
        place.copy_(flat.view(patch.shape))

    async def update_weights(self, weights: Any, global_steps: int | None, wire_format: str) -> None:
        self.flushes.clear()
        self.calls.clear()
        self.takes_whole_tensors = wire_format == "named_tensors"
        if self.takes_whole_tensors:
            await self._module.ServerAdapter.update_weights(self._adapter, weights, global_steps=global_steps)
            return
        assert wire_format == "delta_flush"
        await self._module.ServerAdapter._update_delta_weights(self._adapter, weights, global_steps=global_steps)


SERVERS = {"sglang": SGLangServer, "vllm": VLLMServer}
