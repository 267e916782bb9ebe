# SPDX-License-Identifier: Apache-2.0
"""A LoRA trainer of verl: its two exports do not agree, so it is refused before anything is sent."""

from __future__ import annotations

import pathlib
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("verl", reason="verl is not installed here (python/tests/requirements-verl.txt)")

import verl_package

verl_package.prepare()

import peft
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from verl.workers.engine.fsdp import transformer_impl
from verl_model import TrainedModel
from verl_threads import Threads, small_tensors

from sparsecast import errors


@pytest.mark.parametrize(
    "config", [SimpleNamespace(lora_rank=8, lora={}), SimpleNamespace(lora_rank=0, lora={"rank": 8, "merge": True})]
)
def test_it_is_refused_with_the_cure_and_no_rollout_is_handed_anything(
    config: SimpleNamespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    threads = Threads(small_tensors(torch.Generator().manual_seed(7)), ["a", "a", "b"], monkeypatch)
    threads.trained.model_config = config
    with pytest.raises(errors.UnsupportedError, match="delta_sharded has no LoRA: .*naive.*lora.merge=True"):
        threads.sync()
    assert threads.taken == [[], [], []] and all(error is not None for error in threads.errors)
    threads.trained.model_config = SimpleNamespace(lora_rank=0, lora={})
    assert threads.sync()["seed"] == 1
    threads.assert_same()


@pytest.fixture
def one_rank(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(transformer_impl, "get_device_id", lambda: "cpu")
    monkeypatch.setattr(transformer_impl, "log_gpu_memory_usage", lambda *_, **__: None)
    for name in ("load_fsdp_model_to_gpu", "offload_fsdp_model_to_cpu"):
        monkeypatch.setattr(transformer_impl, name, lambda *_, **__: None)
    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def test_verls_export_of_shards_has_other_tensors_than_that_of_whole_ones(one_rank: None) -> None:
    """Why it is refused; where this fails, verl has mended it."""
    module: Any = peft.get_peft_model(TrainedModel(16), peft.LoraConfig(r=2, target_modules=["q_proj"]))
    fully_shard(module, mesh=init_device_mesh("cpu", (1,)))
    engine = transformer_impl.FSDPEngine.__new__(transformer_impl.FSDPEngine)
    engine.module = module
    engine.model_config = SimpleNamespace(lora={}, lora_rank=2, hf_config=SimpleNamespace(model_type="qwen2"))
    engine._uses_fsdp2_cpu_offload_policy = engine._is_offload_param = engine._qat_enabled = False
    whole = {name for name, _ in engine.get_per_tensor_param()[0]}
    shards = {name for name, _, _ in engine.get_per_tensor_param_shard()[0]}
    assert not any("lora_" in name for name in whole) and any("lora_" in name for name in shards)
