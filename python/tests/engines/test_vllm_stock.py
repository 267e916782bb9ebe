# SPDX-License-Identifier: Apache-2.0
"""A trainer for stock servers against vLLM's own `sparse_nccl` sender and receiver; only NCCL itself is a fake."""

from __future__ import annotations

import contextlib
import queue
from collections.abc import Iterator
from functools import cached_property
from typing import Any

import pytest
import torch

pytest.importorskip("vllm")

import vllm_models as models
from vllm.config import WeightTransferConfig, set_current_vllm_config
from vllm.distributed.weight_transfer import WeightTransferEngineFactory, WeightTransferTrainerFactory, base
from vllm.distributed.weight_transfer import sparse_nccl_engine as stock

from sparsecast.engines.vllm import stock as vllm_stock
from sparsecast.engines.vllm.plugin import register
from sparsecast.engines.vllm.stock import StockTrainerInitInfo, StockTrainerWeightTransferEngine
from sparsecast.errors import UnsupportedError, UsageError


class Wire:
    """What `PyNcclCommunicator` does for a broadcast from rank 0 to one worker, by a queue."""

    device = torch.device("cpu")

    def __init__(self, sends: bool, tensors: queue.Queue[torch.Tensor]) -> None:
        self.sends = sends
        self.tensors = tensors
        self.sent = 0

    def broadcast(self, tensor: torch.Tensor, src: int, stream: Any) -> None:
        assert src == 0
        if self.sends:
            self.sent += tensor.nbytes
            self.tensors.put(tensor.clone())
            return
        came = self.tensors.get(timeout=60)
        assert (came.dtype, came.shape) == (tensor.dtype, tensor.shape)
        models.bits_of(tensor).copy_(models.bits_of(came))

    def destroy(self) -> None:
        pass


class StockServer:
    """A server of one worker without sparsecast: vLLM's engine of backend sparse_nccl and vLLM's model."""

    def __init__(self, kind: str, wire: Wire) -> None:
        self.config = models.config(kind)
        models.start(self.config)
        self.model = models.build(self.config)
        self.load(self.model, models.checkpoint_without_nans(kind))
        config = WeightTransferConfig(backend="sparse_nccl")
        self.engine: Any = WeightTransferEngineFactory.create_engine(
            config, self.config, torch.device("cpu"), self.model
        )
        self.wire = wire
        self.updates: list[dict[str, Any]] = []
        self.broken = False

    def load(self, model: torch.nn.Module, tensors: dict[str, torch.Tensor]) -> None:
        with set_current_vllm_config(self.config):
            model.load_weights(iter(tensors.items()))  # type: ignore[operator]

    def differing(self, tensors: dict[str, torch.Tensor]) -> list[str]:
        fresh = models.build(self.config)
        self.load(fresh, tensors)
        return models.differing(self.model, fresh)

    def init_weight_transfer_engine(self, init_info: dict[str, Any]) -> None:
        info = self.engine.parse_init_info(init_info)
        assert (info.rank_offset, info.world_size) == (1, 2)
        self.engine.model_update_group = self.wire

    def start_weight_update(self) -> None:
        self.engine.start_weight_update()

    def update_weights(self, update_info: dict[str, Any]) -> None:
        self.updates.append(update_info)
        if self.broken:
            raise RuntimeError("the worker has failed")
        with set_current_vllm_config(self.config):
            self.engine.receive_weights(self.engine.parse_update_info(update_info))

    def finish_weight_update(self, weight_version: str | None = None) -> None:
        self.engine.finish_weight_update()


class Source(base.WeightSource):
    """A dict of whole tensors, for both versions of vLLM."""

    def __init__(self, tensors: dict[str, torch.Tensor]) -> None:
        self.tensors = tensors

    def _metadata(self) -> list[Any]:
        return [base.ParamMeta(n, t.dtype, tuple(t.shape)) for n, t in self.tensors.items()]

    if hasattr(base.WeightSource, "iter_full"):
        metadata = cached_property(_metadata)
        metadata.__set_name__(None, "metadata")  # type: ignore[arg-type]

        def iter_full(self) -> Iterator[tuple[str, torch.Tensor]]:
            yield from self.tensors.items()

    else:
        metadata = _metadata

        def __iter__(self) -> Iterator[tuple[str, torch.Tensor]]:
            yield from self.tensors.items()


@pytest.fixture
def nccl(monkeypatch: pytest.MonkeyPatch) -> tuple[Wire, Wire]:
    """Both ends of the fake, where vLLM would make its communicator; streams of a CPU are none."""
    tensors: queue.Queue[torch.Tensor] = queue.Queue()
    sends, receives = Wire(True, tensors), Wire(False, tensors)
    monkeypatch.setattr(stock, "open_trainer_endpoint", lambda info: sends)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device=None: None)
    monkeypatch.setattr(torch.accelerator, "device_index", lambda index: contextlib.nullcontext())
    return sends, receives


@pytest.fixture
def server(nccl: tuple[Wire, Wire], request: pytest.FixtureRequest) -> Iterator[StockServer]:
    yield StockServer(request.param, nccl[1])
    models.stop()


def connect(server: Any, source: Any, **fields: Any) -> StockTrainerWeightTransferEngine:
    register()
    info = StockTrainerInitInfo("127.0.0.1", 29650, 2, rank=0, **fields)
    engine = WeightTransferTrainerFactory.trainer_init(info, client=server, source=source)
    assert isinstance(engine, StockTrainerWeightTransferEngine)
    return engine


def step(tensors: dict[str, torch.Tensor], seed: int) -> int:
    """An optimizer step in place; returns the number of elements that changed."""
    changed = 0
    for name, tensor in models.random_updates(tensors, seed).items():
        changed += int((models.bits_of(tensor) != models.bits_of(tensors[name])).sum())
        models.bits_of(tensors[name]).copy_(models.bits_of(tensor))
    return changed


@pytest.mark.parametrize("server", ["qwen3-moe", "qwen3-tied"], indirect=True)
def test_a_stock_server_holds_the_trainers_bits_after_every_step(
    server: StockServer, nccl: tuple[Wire, Wire], request: pytest.FixtureRequest
) -> None:
    kind = request.node.callspec.params["server"]
    tensors = models.checkpoint_without_nans(kind)
    engine = connect(server, Source(tensors))
    for update in range(4):
        changed = step(tensors, seed=200 + update)
        before = nccl[0].sent
        engine.send_weights()
        assert engine.changed == changed
        assert nccl[0].sent - before == changed * (4 + 2)
        assert server.differing(tensors) == []
    engine.send_weights()  # Nothing has changed: vLLM is not called.
    assert len(server.updates) == 4
    assert set(server.updates[0]) == {"names", "dtype_names", "shapes", "num_updates_list"}


@pytest.mark.parametrize("server", ["llama"], indirect=True)
def test_after_a_failure_all_elements_are_sent(server: StockServer, nccl: tuple[Wire, Wire]) -> None:
    tensors = models.checkpoint_without_nans("llama")
    engine = connect(server, Source(tensors))
    step(tensors, seed=300)
    server.broken = True
    with pytest.raises(RuntimeError, match="the worker has failed"):
        engine.send_weights()
    server.broken = False
    while not nccl[0].tensors.empty():
        nccl[0].tensors.get()
    engine.send_weights()
    assert engine.changed == sum(t.numel() for t in tensors.values())
    assert server.differing(tensors) == []


@pytest.mark.parametrize("server", ["llama"], indirect=True)
def test_a_server_of_other_weights_is_seeded_and_a_nan_is_refused_before_anything_is_sent(server: StockServer) -> None:
    tensors = models.checkpoint_without_nans("llama", seed=7)
    engine = connect(server, Source(tensors), seed=True)
    engine.send_weights()
    assert server.differing(tensors) == []
    tensors["model.norm.weight"][3] = float("nan")
    with pytest.raises(UnsupportedError, match=r"NaN") as refused:
        engine.send_weights()
    assert "'model.norm.weight'" in str(refused.value)
    assert len(server.updates) == 1


@pytest.mark.parametrize("server", ["llama"], indirect=True)
def test_fp32_masters_are_compared_as_the_server_has_them(server: StockServer) -> None:
    masters = {n: t.to(torch.float32) for n, t in models.checkpoint_without_nans("llama").items()}
    engine = connect(server, Source(masters), wire_dtype=torch.bfloat16)
    for tensor in masters.values():
        models.bits_of(tensor)[...] ^= 1  # Below what bf16 keeps.
    engine.send_weights()
    assert engine.changed == 0
    masters["model.norm.weight"][5] = 3.0
    engine.send_weights()
    assert engine.changed == 1
    assert server.differing({n: t.to(torch.bfloat16) for n, t in masters.items()}) == []


def test_what_the_backend_cannot_promise_is_said_and_integers_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[str] = []
    monkeypatch.setattr(vllm_stock._logger, "warning", lambda words, *values: said.append(words % values))
    with pytest.raises(UnsupportedError, match=r"no torch.int32"):
        connect(object(), Source({"a": torch.zeros(4, dtype=torch.int32)}))
    assert "no digest" in said[0]
    with pytest.raises(UsageError, match="give it a WeightSource"):
        connect(object(), None)
