# SPDX-License-Identifier: Apache-2.0
"""A trainer in vLLM's interface that writes a delta log, and a reader of the log."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

pytest.importorskip("vllm")

from test_vllm_stock import Source
from vllm.distributed.weight_transfer import WeightTransferTrainerFactory

from sparsecast.engines.vllm.plugin import register
from sparsecast.errors import UsageError
from sparsecast.integrations.vllm_log import LogTrainerInitInfo
from sparsecast.torch import Log, Subscriber


def trainer(source: Source | None, info: LogTrainerInitInfo) -> Any:
    register()
    return WeightTransferTrainerFactory.trainer_init(info, client=None, source=source)  # type: ignore[arg-type]


def tensors() -> dict[str, torch.Tensor]:
    return {"q": torch.randn(64, 32), "norm": torch.ones(32)}


def expect_read(log: Path, work: Path, source: Source) -> int:
    """Fails unless a reader of the log gets the source's weights in bf16; returns their version."""
    read = {name: torch.zeros_like(tensor, dtype=torch.bfloat16) for name, tensor in source.tensors.items()}
    subscriber = Subscriber(read.items(), transport=Log(log, state=work / "reader"))
    subscriber.update()
    assert all(torch.equal(read[name], tensor.bfloat16()) for name, tensor in source.tensors.items())
    assert subscriber.version is not None
    return subscriber.version


@pytest.mark.parametrize("durable", [True, False])
def test_a_log_has_what_the_source_yields_and_goes_on_with_the_next_trainer(tmp_path: Path, durable: bool) -> None:
    source = Source(tensors())
    info = LogTrainerInitInfo(tmp_path / "log", durable=durable, rank=0)
    engine = trainer(source, info)
    engine.send_weights()
    source.tensors["q"][::7] += 1
    engine.send_weights()
    assert (engine.last_report is not None) == durable
    engine.shutdown()
    version = expect_read(tmp_path / "log", tmp_path, source)
    source.tensors["norm"] *= 2
    engine = trainer(source, info)
    engine.send_weights()
    engine.shutdown()
    assert expect_read(tmp_path / "log", tmp_path, source) > version


def test_other_ranks_only_take_part_in_the_gathers(tmp_path: Path) -> None:
    class Counted(Source):
        passes = 0

        def iter_full(self) -> Any:
            self.passes += 1
            return iter(self.tensors.items())

        __iter__ = iter_full

    source = Counted(tensors())
    engine = trainer(source, LogTrainerInitInfo(tmp_path / "log", rank=1))
    engine.send_weights()
    engine.shutdown()
    assert source.passes == 1 and not (tmp_path / "log").exists()


def test_what_cannot_be_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="give it a WeightSource"):
        trainer(None, LogTrainerInitInfo(tmp_path / "log", rank=0))
    source = Source(tensors())
    engine = trainer(source, LogTrainerInitInfo(tmp_path / "log", rank=0))
    engine.send_weights()
    source.tensors = {"q": torch.zeros(3)}
    with pytest.raises(UsageError, match="'q'"):
        engine.send_weights()
    engine.shutdown()
