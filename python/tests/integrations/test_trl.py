# SPDX-License-Identifier: Apache-2.0
"""TRL's own trainers and clients over sparsecast, with a stub of the server that has a real rank."""

from __future__ import annotations

import importlib.metadata
import inspect
import pathlib
import queue
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest

for needed in ("torch", "httpx", "uvicorn", "starlette", "requests", "trl", "accelerate", "transformers", "datasets"):
    pytest.importorskip(needed)
pytest.importorskip("sparsecast._core")

sys.path.insert(0, str(pathlib.Path(__file__).parent))

import torch
import trl.generation.vllm_generation as trl_generation
from accelerate import Accelerator
from datasets import Dataset
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast, Qwen3ForCausalLM
from trl.experimental.async_grpo import AsyncGRPOConfig, AsyncGRPOTrainer
from trl.experimental.async_grpo.async_grpo_trainer import WeightTransferProtocol
from trl.generation.vllm_client import VLLMClient
from trl_on_cpu import tiny_policy, trl_without_gpu
from trl_server import TrlServer

import sparsecast.integrations.trl as integration
from sparsecast.control import Endpoint, PauseMode, SyncError, SyncPolicy, SyncReport
from sparsecast.errors import DeadlineError, UnsupportedError, UsageError
from sparsecast.integrations._vllm_server import endpoint_of, look_at
from sparsecast.integrations.trl import WeightTransfer, disable, enable

QUICK = SyncPolicy(pause=PauseMode.RETRACT, health_timeout=5, join_timeout=10, sync_timeout=10, call_timeout=5)


@pytest.fixture(autouse=True)
def neither_vllm_nor_a_gpu(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    yield from trl_without_gpu(monkeypatch)


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    """A tiny Qwen3 in bf16, with a tokenizer."""
    directory = tmp_path_factory.mktemp("model")
    vocabulary = {"<pad>": 0, "<end>": 1, **{str(n): n + 2 for n in range(10)}}
    words = Tokenizer(models.WordLevel(vocabulary, unk_token="<pad>"))
    words.pre_tokenizer = pre_tokenizers.Whitespace()
    PreTrainedTokenizerFast(tokenizer_object=words, pad_token="<pad>", eos_token="<end>").save_pretrained(directory)
    tiny_policy(tie_word_embeddings=False).bfloat16().save_pretrained(directory)
    return directory


@pytest.fixture
def model(checkpoint: pathlib.Path) -> Qwen3ForCausalLM:
    return Qwen3ForCausalLM.from_pretrained(checkpoint, dtype=torch.float32)


@pytest.fixture
def serve(model: Qwen3ForCausalLM) -> Iterator[Callable[..., TrlServer]]:
    """Starts servers on the checkpoint."""
    started: list[TrlServer] = []

    def start(**options: Any) -> TrlServer:
        server = TrlServer(dict(model.named_parameters()), **options)
        started.append(server)
        server.start()
        return server

    yield start
    for server in started:
        server.stop()


def step(model: torch.nn.Module, size: float = 1e-3) -> None:
    """What an optimizer does, as far as bytes are concerned."""
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.requires_grad:
                parameter.add_(size * torch.randn_like(parameter))


def holds(server: TrlServer, named: dict[str, torch.Tensor]) -> bool:
    """Whether the server has exactly these weights, cast to its dtype."""
    return server.weights.keys() == named.keys() and all(
        torch.equal(server.weights[name], tensor.detach().to(server.weights[name].dtype))
        for name, tensor in named.items()
    )


def transfer_to(server: TrlServer, **options: Any) -> WeightTransfer:
    return WeightTransfer(server.url, **{"policy": QUICK, "wait": 0.0, **options})


# the argument of AsyncGRPOTrainer


def test_it_has_the_methods_of_trls_protocol_with_their_parameters() -> None:
    protocol = {name: of for name, of in vars(WeightTransferProtocol).items() if callable(of) and name[0] != "_"}
    assert set(protocol) == {"init_weight_transfer", "pause", "send_weights", "resume", "destroy"}
    for name, method in protocol.items():
        assert list(inspect.signature(getattr(WeightTransfer, name)).parameters) == list(
            inspect.signature(method).parameters
        ), name


def test_weights_are_verified_first_and_then_only_changes_travel(
    model: Qwen3ForCausalLM, serve: Callable[..., TrlServer]
) -> None:
    server = serve()
    reports: list[SyncReport] = []
    transfer = transfer_to(server, on_report=reports.append)
    transfer.init_weight_transfer()
    transfer.pause()
    assert not server.paused, "the control plane pauses by itself, later"
    transfer.send_weights(model.named_parameters())
    transfer.resume()
    assert server.anchored == [False], "equal weights were sent"
    assert reports[0].source["changed"] == 0
    for _ in range(2):
        step(model)
        transfer.send_weights(model.named_parameters())
        assert holds(server, dict(model.named_parameters()))
    assert [report.version for report in reports] == [1, 2, 3]
    assert 0 < reports[2].source["sent_bytes"] < reports[2].source["dense_bytes"]
    assert transfer.last_report is reports[2]
    assert server.pause_modes == ["keep"] * 3 and not server.paused and server.flushed == 3
    transfer.destroy()
    assert server.paths()[-1] == "/shutdown_weight_transfer_engine"
    transfer.destroy()  # again does nothing
    step(model)
    transfer.send_weights(model.named_parameters())  # as after an error that had ended the training
    assert server.anchored == [False, True] and holds(server, dict(model.named_parameters()))


class NoRollouts:
    """A rollout worker for TRL that makes no samples."""

    def __init__(self) -> None:
        self.rollout_buffer: queue.Queue[Any] = queue.Queue()
        self.metrics_queue: queue.Queue[Any] = queue.Queue()
        self.versions: list[int] = []

    def start(self) -> None: ...

    def stop(self) -> None: ...

    def check_health(self, stale_after_s: float) -> None: ...

    def update_model_version(self, model_version: int) -> None:
        self.versions.append(model_version)


def async_trainer(checkpoint: pathlib.Path, tmp_path: pathlib.Path, transfer: Any, **more: Any) -> AsyncGRPOTrainer:
    return AsyncGRPOTrainer(
        model=str(checkpoint),
        reward_funcs=lambda completions, **columns: [0.0] * len(completions),
        args=AsyncGRPOConfig(output_dir=str(tmp_path), use_cpu=True, bf16=False, max_steps=1, report_to=[]),
        train_dataset=Dataset.from_dict({"prompt": ["1 2 3"] * 4}),
        rollout_worker=NoRollouts(),
        weight_transfer=transfer,
        **more,
    )


def test_an_async_trainer_syncs_through_it(
    checkpoint: pathlib.Path, tmp_path: pathlib.Path, serve: Callable[..., TrlServer]
) -> None:
    server = serve()
    transfer = transfer_to(server)
    trainer = async_trainer(checkpoint, tmp_path, transfer)
    trainer.weight_transfer.init_weight_transfer()  # as TRL does when training begins
    trainer._sync_weight()
    step(trainer.model)
    trainer._sync_weight()
    assert holds(server, dict(trainer.model.named_parameters()))
    assert trainer.rollout_worker.versions == [1, 2]
    assert transfer.last_report is not None and transfer.last_report.version == 2


def test_an_async_trainer_with_an_adapter_sends_it_merged(
    checkpoint: pathlib.Path, tmp_path: pathlib.Path, serve: Callable[..., TrlServer]
) -> None:
    peft = pytest.importorskip("peft")
    server = serve()
    transfer = transfer_to(server)
    adapter = peft.LoraConfig(r=2, target_modules=["q_proj", "up_proj"])
    trainer = async_trainer(checkpoint, tmp_path, transfer, peft_config=adapter)
    transfer.init_weight_transfer()
    trainer._sync_weight()
    assert server.anchored == [False], "an untrained adapter changes nothing"
    step(trainer.model, 1e-1)
    trainer._sync_weight()
    merged = merged_weights(trainer.model)
    assert holds(server, merged)
    assert transfer.last_report is not None and transfer.last_report.source["changed"] > 0
    assert not any(module.merged for module in trainer.model.modules() if hasattr(module, "merged"))


def merged_weights(model: Any) -> dict[str, torch.Tensor]:
    """The weights with the adapter, under the names of the base model. TRL has unmerged it since."""
    model.merge_adapter()
    merged = {
        name.removeprefix("base_model.model.").replace(".base_layer", ""): parameter.detach().clone()
        for name, parameter in model.named_parameters()
        if "lora_" not in name
    }
    model.unmerge_adapter()
    return merged


# the client of GRPOTrainer's server mode


def generation(model: Any, server: TrlServer, group_port: int) -> Any:
    """What GRPOTrainer and RLOOTrainer make in server mode."""
    return trl_generation.VLLMGeneration(
        model,
        Accelerator(cpu=True),
        None,
        mode="server",
        server_base_url=server.url,
        server_timeout=0.0,
        group_port=group_port,
    )


def test_the_server_mode_syncs_by_sparsecast_while_it_is_enabled(
    model: Qwen3ForCausalLM, serve: Callable[..., TrlServer], free_port: int
) -> None:
    server = serve()
    original = VLLMClient.init_communicator
    with enable(policy=QUICK) as enabled:
        made = generation(model, server, free_port)
    assert VLLMClient.init_communicator is original
    assert isinstance(made.vllm_client, VLLMClient)
    made.sync_weights()
    step(model)
    made.sync_weights()  # what was made while it was enabled goes on
    assert holds(server, dict(model.named_parameters()))
    assert enabled.last_report is not None and enabled.last_report.version == 2
    joined = [body for _, path, _, body in server.calls if path == "/init_weight_transfer_engine"]
    assert [body["init_info"]["port"] for body in joined] == [free_port]
    made.vllm_client.close_communicator()


def test_the_server_mode_with_an_adapter_sends_it_merged(
    model: Qwen3ForCausalLM, serve: Callable[..., TrlServer], free_port: int
) -> None:
    peft = pytest.importorskip("peft")
    server = serve()
    adapted = peft.get_peft_model(model, peft.LoraConfig(r=2, target_modules=["q_proj", "up_proj"]))
    with enable(policy=QUICK):
        made = generation(adapted, server, free_port)
    made.sync_weights()
    step(adapted, 1e-1)
    made.sync_weights()
    assert holds(server, merged_weights(adapted))
    assert not any(module.merged for module in adapted.modules() if hasattr(module, "merged"))


def test_tensors_one_by_one_travel_together_at_the_end_of_weight_update(
    model: Qwen3ForCausalLM, serve: Callable[..., TrlServer], free_port: int
) -> None:
    server = serve()
    with enable(policy=QUICK) as enabled:
        client = generation(model, server, free_port).vllm_client
    with pytest.raises(UsageError, match="before the names of all weights are known"):
        client.update_named_param("lm_head.weight", model.lm_head.weight)
    with client.weight_update():
        for name, parameter in model.named_parameters():
            client.update_named_param(name, parameter.data)
    assert enabled.last_report is not None and enabled.last_report.version == 1
    step(model)
    with pytest.raises(KeyboardInterrupt), client.weight_update():
        client.update_named_param("lm_head.weight", model.lm_head.weight.data)
        raise KeyboardInterrupt
    assert enabled.last_report.version == 1, "an update that was interrupted was sent"
    client.update_model_params(model)
    assert holds(server, dict(model.named_parameters()))
    with torch.no_grad():
        model.lm_head.weight.add_(1)
    client.update_named_param("lm_head.weight", model.lm_head.weight.data)
    assert holds(server, dict(model.named_parameters()))
    assert enabled.last_report.version == 3


def test_more_servers_get_the_weights_as_well(
    model: Qwen3ForCausalLM, serve: Callable[..., TrlServer], free_port: int
) -> None:
    server, judge = serve(), serve()
    with enable(policy=QUICK, also=[judge.url]):
        made = generation(model, server, free_port)
    step(model)
    made.sync_weights()
    assert holds(server, dict(model.named_parameters())) and holds(judge, dict(model.named_parameters()))


def test_it_is_enabled_once_and_disabled_as_often_as_one_likes() -> None:
    original = VLLMClient.init_communicator
    enable()
    with pytest.raises(UsageError, match="call disable"):
        enable()
    disable()
    disable()
    assert VLLMClient.init_communicator is original


def test_a_plain_client_is_as_it_was_after_disable(model: Qwen3ForCausalLM, serve: Callable[..., TrlServer]) -> None:
    enable()
    disable()
    client = VLLMClient(base_url=serve().url)
    assert type(client) is VLLMClient
    assert "sparsecast" not in inspect.getsource(type(client).init_communicator)


# the first sync


def test_other_weights_are_seeded_and_with_verify_refused(
    model: Qwen3ForCausalLM, serve: Callable[..., TrlServer]
) -> None:
    server = serve()
    step(model)
    strict = transfer_to(server, first="verify")
    with pytest.raises(SyncError, match="start the server from the model that the trainer starts from") as caught:
        strict.send_weights(model.named_parameters())
    assert caught.value.report is not None and not server.paused
    server.subscriber = None  # A vLLM server is told so by /shutdown_weight_transfer_engine.
    transfer = transfer_to(server)
    transfer.send_weights(model.named_parameters())
    assert server.anchored == [False, False, True]
    assert holds(server, dict(model.named_parameters()))


def test_a_server_that_somebody_updated_is_seeded_at_once(
    model: Qwen3ForCausalLM, serve: Callable[..., TrlServer]
) -> None:
    server = serve()
    server.weight_version = "17"
    step(model)
    transfer_to(server).send_weights(model.named_parameters())
    assert server.anchored == [True]
    assert holds(server, dict(model.named_parameters()))


def test_seeding_can_be_asked_for(model: Qwen3ForCausalLM, serve: Callable[..., TrlServer]) -> None:
    server = serve()
    transfer_to(server, first="seed").send_weights(model.named_parameters())
    assert server.anchored == [True]


def test_a_transfer_that_was_closed_sends_all_weights_even_with_verify(
    model: Qwen3ForCausalLM, serve: Callable[..., TrlServer]
) -> None:
    server = serve()
    transfer = transfer_to(server, first="verify")
    transfer.send_weights(model.named_parameters())
    transfer.destroy()
    step(model)
    transfer.send_weights(model.named_parameters())
    assert server.anchored == [False, True]
    assert holds(server, dict(model.named_parameters()))


# wrong use


def test_a_server_without_the_backend_is_named_with_the_flags_to_start_it(serve: Callable[..., TrlServer]) -> None:
    for backend, words in ((None, "no weight-transfer backend"), ("nccl", "the weight-transfer backend 'nccl'")):
        server = serve(backend=backend)
        with pytest.raises(UsageError, match=f"{words}: start it with .*--weight-transfer-config"):
            transfer_to(server).init_weight_transfer()
        unread = iter([("w", torch.zeros(2))])
        with pytest.raises(UsageError, match=words):
            transfer_to(server).send_weights(unread)
        assert next(unread, None) is None, "TRL's iterator was not read to its end"


def test_a_server_without_development_mode_is_named_with_the_variable(
    model: Qwen3ForCausalLM, serve: Callable[..., TrlServer], free_port: int
) -> None:
    server = serve(development=False)
    with pytest.raises(UsageError, match="without VLLM_SERVER_DEV_MODE=1"):
        transfer_to(server).init_weight_transfer()
    with enable(policy=QUICK), pytest.raises(UsageError, match="without VLLM_SERVER_DEV_MODE=1"):
        generation(model, server, free_port)


def test_a_server_that_takes_long_to_describe_itself_is_waited_for(
    serve: Callable[..., TrlServer], monkeypatch: pytest.MonkeyPatch
) -> None:
    from sparsecast.integrations import _vllm_server

    server = serve()
    routes = server._vllm_routes()
    describe = routes["GET", "/server_info"]

    def slowly(body: Any, query: Any) -> Any:
        time.sleep(1)
        return describe(body, query)

    monkeypatch.setattr(server, "_vllm_routes", lambda: {**routes, ("GET", "/server_info"): slowly})
    monkeypatch.setattr(_vllm_server, "_CALL_SECONDS", 0.5)
    assert look_at(endpoint_of(server.url), 10).world_size == 1


def test_a_server_with_adapters_is_refused(serve: Callable[..., TrlServer]) -> None:
    with pytest.raises(UnsupportedError, match="start it without --enable-lora"):
        transfer_to(serve(lora=True)).init_weight_transfer()


def test_a_server_that_is_not_there_is_named(free_port: int) -> None:
    with pytest.raises(DeadlineError, match=f"no vLLM server answers at http://127.0.0.1:{free_port}"):
        WeightTransfer(f"http://localhost:{free_port}", wait=0.0).init_weight_transfer()


def test_names_that_the_server_does_not_know_are_named_with_the_cure(
    model: Qwen3ForCausalLM, serve: Callable[..., TrlServer]
) -> None:
    server = serve()
    transfer = transfer_to(server, rename=lambda name: f"policy.{name}")
    with pytest.raises(SyncError, match=r"no place for 'policy\..*map the trainer's names to the server's with rename"):
        transfer.send_weights(model.named_parameters())
    fixed = transfer_to(server, rename=lambda name: name.removeprefix("policy."))
    fixed.send_weights((f"policy.{name}", parameter) for name, parameter in model.named_parameters())
    assert holds(server, dict(model.named_parameters()))


def test_a_dtype_that_is_neither_the_servers_nor_float32_is_refused(
    model: Qwen3ForCausalLM, serve: Callable[..., TrlServer]
) -> None:
    server = serve(dtype="float16")
    model.bfloat16()
    with pytest.raises(
        UsageError, match="serves in float16, and the trainer's '.*' is bfloat16: start the server with"
    ):
        transfer_to(server).send_weights(model.named_parameters())
    transfer_to(server, wire_dtype=torch.float16, first="seed").send_weights(model.named_parameters())
    assert holds(server, dict(model.named_parameters()))


def test_a_server_that_died_is_named_and_one_that_came_back_is_seeded(
    model: Qwen3ForCausalLM, serve: Callable[..., TrlServer]
) -> None:
    server = serve()
    transfer = transfer_to(server)
    transfer.send_weights(model.named_parameters())
    port = server.port
    server.stop()
    step(model)
    drained = iter(list(model.named_parameters()))
    with pytest.raises(SyncError, match="see the log of the server .* and start it again"):
        transfer.send_weights(drained)
    assert next(drained, None) is None, "TRL's iterator was not read to its end"
    back = TrlServer({name: torch.zeros_like(tensor) for name, tensor in model.named_parameters()})
    back.start(port)
    try:
        transfer.send_weights(model.named_parameters())
        assert holds(back, dict(model.named_parameters()))
    finally:
        back.stop()


def test_weights_that_are_not_those_of_the_first_sync_are_refused_and_the_iterator_read_to_its_end(
    model: Qwen3ForCausalLM, serve: Callable[..., TrlServer]
) -> None:
    transfer = transfer_to(serve())
    named = list(model.named_parameters())
    transfer.send_weights(named)
    for wrong, words in (
        (named[1:], f"missing: {named[0][0]}"),
        ([*named, ("more", torch.zeros(2))], "'more' was not there at the first sync"),
        ([named[0], *named], f"two tensors are named '{named[0][0]}'"),
        ([(named[0][0], torch.zeros(3)), *named[1:]], "has the shape"),
    ):
        drained = iter(wrong)
        with pytest.raises(UsageError, match=words):
            transfer.send_weights(drained)
        assert next(drained, None) is None
    transfer.send_weights(named)


def test_no_weights_are_refused(serve: Callable[..., TrlServer]) -> None:
    with pytest.raises(UsageError, match="no weights to send"):
        transfer_to(serve()).send_weights(iter([]))


@pytest.mark.parametrize("found", ["1.15.2", "1.17.0", "2.0.0"])
def test_another_release_of_trl_is_refused(found: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.metadata, "version", lambda name: found)
    for make in (lambda: WeightTransfer("http://localhost:8000"), enable):
        with pytest.raises(UnsupportedError, match=rf"written for TRL 1\.16, and {found} is installed: pip install"):
            make()
    assert integration._enabled is None


def test_missing_trl_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> str:
        raise importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(importlib.metadata, "version", missing)
    with pytest.raises(UnsupportedError, match="TRL is not installed"):
        enable()


def test_options_are_checked() -> None:
    with pytest.raises(UsageError, match="first is 'maybe'"):
        WeightTransfer("http://localhost:8000", first="maybe")
    with pytest.raises(UsageError, match="no servers"):
        WeightTransfer([])
    for url in ("http://localhost:8000/behind/a/path", "http://:8000", "http://localhost:x"):
        with pytest.raises(UsageError, match="is not http://HOST:PORT"):
            WeightTransfer(url)


def test_urls_become_endpoints() -> None:
    assert endpoint_of("http://0.0.0.0:8000").url == "http://127.0.0.1:8000"
    assert endpoint_of("localhost:8000") == Endpoint("127.0.0.1", 8000, kind="vllm")
    assert endpoint_of("https://Engine.Example/") == Endpoint("engine.example", 443, kind="vllm", scheme="https")
    assert replace(endpoint_of("http://[::1]:80"), world_size=4).address == "[::1]:80"


@pytest.fixture
def free_port() -> int:
    from sparsecast_ports import free_port

    return free_port()
