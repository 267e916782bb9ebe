# SPDX-License-Identifier: Apache-2.0
"""Adapters on a live server, over its own HTTP routes: its answers are those after it loads the saved adapter itself."""

from __future__ import annotations

import importlib.util
import json
import sys
from pathlib import Path
from typing import Any

import httpx
import pytest
import torch
from conftest import Start
from live_load import PROMPTS
from live_servers import LiveServer
from safetensors.torch import save_file

sys.path.insert(0, str(Path(__file__).parent.parent / "adapters"))

from adapter_files import step

from sparsecast import errors
from sparsecast.adapters import Adapter, AdapterReceiver, SglangServer, VllmServer, checkpoint_shapes
from sparsecast.control import Endpoint
from sparsecast.torch import Log, Publisher

KIND = "vllm" if importlib.util.find_spec("vllm") is not None else "sglang"
TARGETS = ("q_proj", "v_proj", "down_proj")


def make(model: Path, name: str, seed: int, rank: int) -> Adapter:
    generator = torch.Generator().manual_seed(seed)
    tensors: dict[str, torch.Tensor] = {}
    for weight, shape in checkpoint_shapes(model).items():
        module = weight.removesuffix(".weight")
        if module.endswith(TARGETS):
            a = torch.randn(rank, shape[1], generator=generator) * 0.1
            b = torch.randn(shape[0], rank, generator=generator) * 0.1
            tensors[f"base_model.model.{module}.lora_A.weight"] = a
            tensors[f"base_model.model.{module}.lora_B.weight"] = b
    config = {"peft_type": "LORA", "r": rank, "lora_alpha": 2 * rank, "target_modules": list(TARGETS)}
    return Adapter(name, config, tensors)


def answers(server: LiveServer, name: str) -> Any:
    """Tokens and logprobs of fixed prompts; "" is the model without an adapter."""
    chosen: dict[str, Any] = {("model" if KIND == "vllm" else "lora_path"): name} if name else {}
    return json.dumps([server.complete(prompt, **chosen) for prompt in PROMPTS[:2]])


def load_itself(server: LiveServer, adapter: Adapter, folder: Path) -> str:
    """Has the server load the adapter as PEFT would have saved it; returns the name there."""
    folder.mkdir()
    (folder / "adapter_config.json").write_text(json.dumps(adapter.config))
    save_file(dict(adapter.tensors), folder / "adapter_model.safetensors")
    route = "/v1/load_lora_adapter" if KIND == "vllm" else "/load_lora_adapter"
    server.post(route, {"lora_name": folder.name, "lora_path": str(folder)})
    return folder.name


def test_a_server_answers_as_after_loading_every_version_itself(start: Start, model: Path, tmp_path: Path) -> None:
    if KIND == "vllm":
        flags = ["--enable-lora", "--max-lora-rank", "8", "--max-loras", "3", "--max-cpu-loras", "8"]
    else:
        flags = ["--enable-lora", "--max-lora-rank", "8", "--max-loras-per-batch", "3"]
        flags += ["--lora-backend", "torch_native", "--lora-target-modules", *TARGETS]
    variables = {"VLLM_ALLOW_RUNTIME_LORA_UPDATING": "1", "SPARSECAST_TEST_UNPINNED": "1"}
    server = start(model, *flags, kind=KIND, plugged=False, variables=variables).wait()
    endpoint = Endpoint("127.0.0.1", server.port, kind=KIND)
    engine = VllmServer(endpoint) if KIND == "vllm" else SglangServer(endpoint)
    receiver = AdapterReceiver(engine, tmp_path / "served", base=checkpoint_shapes(model))
    base = answers(server, "")
    adapters = {name: make(model, name, seed, rank) for name, seed, rank in (("math", 1, 4), ("code", 2, 8))}
    logs = {n: Log(str(tmp_path / f"{n}.log"), mirror=str(tmp_path / f"{n}.safetensors")) for n in (*adapters, "wide")}
    ends = {n: Publisher(a.tensors.items(), transport=logs[n]) for n, a in adapters.items()}
    for name, adapter in adapters.items():
        receiver.add(adapter.spec(), logs[name])
    before = {name: answers(server, name) for name in adapters}
    assert len({base, *before.values()}) == 3
    for update in range(2):
        step(adapters["math"], update)
        ends["math"].publish()
        receiver.update("math")
        now = answers(server, "math")
        assert now != before["math"] and answers(server, "code") == before["code"] and answers(server, "") == base
        assert now == answers(server, load_itself(server, adapters["math"], tmp_path / f"saved{update}"))
        before["math"] = now
        assert receiver.restore(engine.served()) == [], "the server names what it was given"

    wide = make(model, "wide", 3, 16)
    with Publisher(wide.tensors.items(), transport=logs["wide"]), pytest.raises(errors.UnsupportedError) as refused:
        receiver.add(wide.spec(), logs["wide"])
    assert "rank" in str(refused.value) and "16" in str(refused.value)
    engine.unload("code")  # As a server that has lost it.
    assert receiver.restore(engine.served()) == ["code"] and answers(server, "code") == before["code"]
    receiver.remove("code")
    with pytest.raises(errors.Error, match="no adapter of this name" if KIND == "vllm" else "refuses it"):
        engine.unload("code")
    with pytest.raises((AssertionError, httpx.HTTPError)):
        answers(server, "code")
    assert answers(server, "math") == before["math"] and answers(server, "") == base
    for end in ends.values():
        end.close()
