# SPDX-License-Identifier: Apache-2.0
"""Adapters of TRL's own trainers, sent as they are to a stub of a vLLM server that reads each from its directory."""

from __future__ import annotations

import pathlib
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

for needed in ("torch", "httpx", "uvicorn", "starlette", "requests", "trl", "accelerate", "transformers", "peft"):
    pytest.importorskip(needed)
pytest.importorskip("sparsecast._core")

sys.path.insert(0, str(pathlib.Path(__file__).parent))

import peft
import torch
import torch.distributed as dist
import trl.generation.vllm_client as trl_client
import trl.generation.vllm_generation as trl_generation
from accelerate import Accelerator
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from transformers import Qwen3ForCausalLM
from trl_on_cpu import tiny_policy, trl_without_gpu
from trl_server import TrlServer

from sparsecast.adapters import Adapter, AdapterFollower, AdapterStream, VllmServer
from sparsecast.control import Endpoint
from sparsecast.errors import DeadlineError, Error, UnsupportedError, UsageError
from sparsecast.integrations.trl import AdapterReport, ServedAdapter, enable
from sparsecast.torch import Log

TARGETS = ["q_proj", "up_proj"]


@pytest.fixture(autouse=True)
def neither_vllm_nor_a_gpu(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    yield from trl_without_gpu(monkeypatch)


@pytest.fixture
def base() -> Qwen3ForCausalLM:
    return tiny_policy()


@pytest.fixture
def serve(base: Qwen3ForCausalLM) -> Iterator[Callable[..., TrlServer]]:
    """Starts servers with --enable-lora and no weight-transfer backend."""
    started: list[TrlServer] = []

    def start(**options: Any) -> TrlServer:
        server = TrlServer(dict(base.named_parameters()), **{"lora": True, "backend": None, **options})
        started.append(server)
        server.start()
        return server

    yield start
    for server in started:
        server.stop()


def adapted(base: Qwen3ForCausalLM, **config: Any) -> Any:
    return peft.get_peft_model(base, peft.LoraConfig(r=4, lora_alpha=8, **{"target_modules": TARGETS, **config}))


def generation(model: Any, server: TrlServer) -> Any:
    """What GRPOTrainer and RLOOTrainer make in server mode."""
    return trl_generation.VLLMGeneration(
        model, Accelerator(cpu=True), None, mode="server", server_base_url=server.url, server_timeout=0.0
    )


def train(model: Any) -> None:
    """What an optimizer does, as far as bytes are concerned."""
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.requires_grad:
                parameter.add_(1e-2 * torch.randn_like(parameter))


def holds(server: TrlServer, model: Any, name: str = "policy") -> bool:
    """Whether the server has exactly the trainer's adapter, in bf16."""
    served = server.adapters.served.get(name, {})
    tensors = Adapter.from_peft(model).tensors
    return served.keys() == tensors.keys() and all(
        served[key].dtype == torch.bfloat16 and torch.equal(served[key], tensors[key].bfloat16()) for key in tensors
    )


def base_weights(model: Any) -> dict[str, torch.Tensor]:
    return {name: tensor.detach().clone() for name, tensor in model.named_parameters() if "lora_" not in name}


def test_every_sync_gives_the_server_the_adapter_itself_and_requests_name_it(
    base: Qwen3ForCausalLM, serve: Callable[..., TrlServer], tmp_path: pathlib.Path
) -> None:
    server = serve()
    model = adapted(base)
    before = base_weights(model)
    reports: list[AdapterReport] = []
    target = ServedAdapter(directory=str(tmp_path / "served"), on_report=reports.append)
    with enable(adapter=target) as enabled:
        made = generation(model, server)
    assert made.vllm_client.model == "m" and not server.adapters.served
    for sync in range(3):
        made.sync_weights()
        assert holds(server, model) and made.vllm_client.model == "policy"
        assert server.flushed == sync + 1
        train(model)
    assert [report.version for report in reports] == [1, 2, 3] and enabled.last_adapter_report is reports[-1]
    assert 0 < reports[2].changed <= reports[2].elements and reports[2].sent_bytes > 0
    after = base_weights(model)
    assert before.keys() == after.keys() and all(torch.equal(before[name], after[name]) for name in before), "merged"
    assert not any(path.endswith(("weights", "engine", "update")) for path in server.paths()), "weights were sent"

    asked: list[dict[str, Any]] = []
    choice = {"prompt_token_ids": [1, 2], "token_ids": [3], "logprobs": None}
    made.vllm_client._post = lambda url, json, **more: asked.append(json) or {"choices": [choice]}
    assert made.vllm_client.generate([[1, 2]], n=1)["completion_ids"] == [[3]]
    assert [body["model"] for body in asked] == ["policy"]
    made.vllm_client.close_communicator()
    assert set(server.adapters.served) == {"policy"}


def test_a_server_that_was_started_again_gets_the_adapter_with_the_next_sync(
    base: Qwen3ForCausalLM, serve: Callable[..., TrlServer], tmp_path: pathlib.Path
) -> None:
    server, judge = serve(), serve()
    model = adapted(base)
    with enable(adapter=ServedAdapter(directory=str(tmp_path / "served")), also=[judge.url]):
        made = generation(model, server)
    made.sync_weights()
    for each in (server, judge):
        assert holds(each, model)
    server.adapters.restart()
    server.adapters.loads.clear()
    train(model)
    made.sync_weights()
    for each in (server, judge):
        assert holds(each, model)
    server.adapters.max_rank = 2
    train(model)
    with pytest.raises(UnsupportedError, match="rank 4 is above 2"):
        made.sync_weights()
    server.adapters.max_rank = 16
    made.sync_weights()  # what changed is not lost
    for each in (server, judge):
        assert holds(each, model)


def test_a_follower_beside_the_server_loads_what_the_trainer_publishes_and_the_trainer_waits_for_it(
    base: Qwen3ForCausalLM, serve: Callable[..., TrlServer], tmp_path: pathlib.Path
) -> None:
    server = serve()
    model = adapted(base)
    log = tmp_path / "log"
    with enable(adapter=ServedAdapter(name="math", log=str(log), timeout=20)):
        made = generation(model, server)
    stop = threading.Event()
    follower = AdapterFollower(
        VllmServer(Endpoint("127.0.0.1", server.port, kind="vllm")),
        tmp_path / "beside",
        [AdapterStream(Log(str(log)), f"{log}.json")],
    )
    beside = threading.Thread(target=follower.run, args=(stop, 0.05, lambda update: None))
    beside.start()
    try:
        for _ in range(3):
            made.sync_weights()
            assert holds(server, model, "math")
            train(model)
    finally:
        stop.set()
        beside.join(30)
    object.__setattr__(made.vllm_client._enabled.adapter, "timeout", 0.3)
    with pytest.raises(DeadlineError, match=f"sparsecast.adapters follow {server.url} {log} --directory"):
        made.sync_weights()


def test_shards_of_fsdp2_are_gathered(
    base: Qwen3ForCausalLM, serve: Callable[..., TrlServer], tmp_path: pathlib.Path
) -> None:
    server = serve()
    model = adapted(base)
    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    try:
        fully_shard(model, mesh=init_device_mesh("cpu", (1,)))
        with enable(adapter=ServedAdapter(directory=str(tmp_path / "served"))):
            made = generation(model, server)
        for _ in range(2):
            made.sync_weights()
            tensors = Adapter.from_peft(model).tensors
            assert all(isinstance(tensor, DTensor) for tensor in tensors.values())
            served = server.adapters.served["policy"]
            assert all(torch.equal(served[name], each.full_tensor().bfloat16()) for name, each in tensors.items())
            train(model)
    finally:
        dist.destroy_process_group()


@pytest.mark.parametrize(
    ("options", "kind", "words"),
    [
        ({"lora": False}, UsageError, "takes no adapters: start it with .* --enable-lora"),
        ({"development": False}, UsageError, "started without VLLM_SERVER_DEV_MODE=1"),
    ],
)
def test_a_server_that_takes_no_adapters_is_refused_with_the_cure(
    base: Qwen3ForCausalLM, serve: Callable[..., TrlServer], options: dict[str, Any], kind: type[Error], words: str
) -> None:
    server = serve(**options)
    with enable(adapter=ServedAdapter(directory="/nowhere")), pytest.raises(kind, match=words):
        generation(adapted(base), server)


def test_a_server_without_leave_to_load_at_run_time_is_refused_with_the_cure(
    base: Qwen3ForCausalLM, serve: Callable[..., TrlServer]
) -> None:
    server = serve()
    server.lora_updates = False
    words = "started without VLLM_ALLOW_RUNTIME_LORA_UPDATING=1"
    with enable(adapter=ServedAdapter(directory="/nowhere")), pytest.raises(UsageError, match=words):
        generation(adapted(base), server)


@pytest.mark.parametrize(
    ("config", "kind", "words"),
    [
        ({"use_dora": True}, UnsupportedError, "use_dora is True: only A and B are published"),
        ({"modules_to_save": ["lm_head"]}, UnsupportedError, "modules_to_save"),
        ({"r": 32}, UsageError, "the adapter has rank 32, and the server at .* takes 16: .*--max-lora-rank 32"),
        (None, UsageError, "for a trainer with peft_config, and this model has no adapter"),
    ],
)
def test_what_is_no_plain_adapter_is_refused_before_anything_is_sent(
    base: Qwen3ForCausalLM,
    serve: Callable[..., TrlServer],
    tmp_path: pathlib.Path,
    config: dict[str, Any] | None,
    kind: type[Error],
    words: str,
) -> None:
    server = serve()
    model = base
    if config is not None:
        model = peft.get_peft_model(base, peft.LoraConfig(**{"r": 4, "target_modules": TARGETS, **config}))
    with enable(adapter=ServedAdapter(directory=str(tmp_path / "served"), log=str(tmp_path / "log"))):
        made = generation(model, server)
    with pytest.raises(kind, match=words):
        made.sync_weights()
    assert not server.adapters.loads and not list(tmp_path.iterdir()) and made.vllm_client.model == "m"


def test_options_that_do_not_go_together_are_refused() -> None:
    with pytest.raises(UsageError, match="a directory that the servers see, or a log that followers read"):
        ServedAdapter()
    with pytest.raises(UsageError, match="say a file for it"):
        ServedAdapter(log="s3://bucket/policy")
    with pytest.raises(UsageError, match="only also= holds"):
        enable(adapter=ServedAdapter(directory="/nowhere"), first="seed")


def test_a_client_that_is_handed_merged_weights_refuses_them(
    base: Qwen3ForCausalLM, serve: Callable[..., TrlServer], tmp_path: pathlib.Path
) -> None:
    server = serve()
    with enable(adapter=ServedAdapter(directory=str(tmp_path))):
        client = trl_client.VLLMClient(base_url=server.url)
        client.init_communicator()
    with pytest.raises(UnsupportedError, match="merged weights, not the adapter"):
        client.update_model_params(base)
