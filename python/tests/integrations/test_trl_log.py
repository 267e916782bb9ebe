# SPDX-License-Identifier: Apache-2.0
"""TRL's own trainers and clients with a delta log, which a stub of a server follows that is only told numbers."""

from __future__ import annotations

import dataclasses
import pathlib
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

for needed in ("torch", "httpx", "uvicorn", "starlette", "requests", "trl", "accelerate", "transformers", "datasets"):
    pytest.importorskip(needed)
pytest.importorskip("sparsecast._core")

sys.path.insert(0, str(pathlib.Path(__file__).parent))

import torch
import trl.generation.vllm_generation as trl_generation
from accelerate import Accelerator
from transformers import Qwen3ForCausalLM
from trl_on_cpu import tiny_policy, trl_without_gpu
from trl_server import TrlServer

from sparsecast.control import SyncPolicy
from sparsecast.control.errors import EndpointError
from sparsecast.errors import DeadlineError, Error, IoError, TableMismatchError, UsageError
from sparsecast.integrations.trl import WeightTransfer, enable
from sparsecast.torch import Log, PublishReport, Subscriber


class FollowingServer(TrlServer):
    """A server that follows a log when it is told a number, and has no route for development."""

    def __init__(self, weights: dict[str, torch.Tensor], log: Log) -> None:
        super().__init__(weights, development=False)
        self.log = log
        self.told: list[int] = []
        self.may_take = threading.Event()
        self.may_take.set()
        self._subscriber: Subscriber | None = None

    def _vllm_routes(self) -> dict[tuple[str, str], Any]:
        return {
            **super()._vllm_routes(),
            ("GET", "/sparsecast/follow"): lambda body, query: {"served": None},
            ("POST", "/sparsecast/version"): lambda body, query: self._take(body["at_least"]),
        }

    def _take(self, version: int) -> dict[str, Any]:
        self.told.append(version)
        self.may_take.wait(30)
        self.catch_up()
        assert self._subscriber is not None and (self._subscriber.version or 0) >= version
        return {"version": self._subscriber.version}

    def catch_up(self) -> None:
        if self._subscriber is None:
            self._subscriber = Subscriber(self.weights.items(), transport=self.log)
        self._subscriber.update()


@pytest.fixture(autouse=True)
def neither_vllm_nor_a_gpu(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    yield from trl_without_gpu(monkeypatch)


@pytest.fixture
def model() -> Qwen3ForCausalLM:
    return tiny_policy()


@pytest.fixture
def log(tmp_path: pathlib.Path) -> Log:
    return Log(tmp_path / "log", mirror=tmp_path / "mirror.safetensors", timeout=20.0)


@pytest.fixture
def serve(model: Qwen3ForCausalLM, log: Log, tmp_path: pathlib.Path) -> Iterator[Callable[[], FollowingServer]]:
    started: list[FollowingServer] = []

    def start() -> FollowingServer:
        followed = dataclasses.replace(log, mirror="", state=tmp_path / f"state-{len(started)}")
        started.append(FollowingServer(dict(model.named_parameters()), followed))
        started[-1].start()
        return started[-1]

    yield start
    for server in started:
        server.may_take.set()
        server.stop()


def step(model: torch.nn.Module) -> None:
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(1e-3 * torch.randn_like(parameter))


def bits(model: torch.nn.Module) -> dict[str, torch.Tensor]:
    return {name: parameter.detach().bfloat16() for name, parameter in model.named_parameters()}


def same(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> bool:
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


def newest(log: Log, model: torch.nn.Module, state: pathlib.Path) -> dict[str, torch.Tensor]:
    """What a reader of the log has that nobody told anything."""
    held = {name: torch.zeros_like(tensor) for name, tensor in bits(model).items()}
    Subscriber(held.items(), transport=dataclasses.replace(log, mirror="", state=state)).update()
    return held


def generation(model: Any, server: TrlServer) -> Any:
    """What GRPOTrainer and RLOOTrainer make in server mode."""
    return trl_generation.VLLMGeneration(
        model, Accelerator(cpu=True), None, mode="server", server_base_url=server.url, server_timeout=0.0
    )


def test_without_any_server_a_transfer_writes_the_log_that_others_follow(
    model: Qwen3ForCausalLM, log: Log, tmp_path: pathlib.Path
) -> None:
    reports: list[PublishReport] = []
    transfer = WeightTransfer(log=log.location, on_report=reports.append)
    transfer.init_weight_transfer()
    for sync in range(3):
        transfer.pause()
        transfer.send_weights(model.named_parameters())
        transfer.resume()
        assert transfer.last_publication is reports[-1] and transfer.last_report is None
        assert same(newest(log, model, tmp_path / f"reader-{sync}"), bits(model))
        step(model)
    assert reports[0].changed == 0 < reports[1].changed and reports[2].version == reports[0].version + 2
    assert "serve" not in reports[2].seconds and reports[2].dense_bytes == 2 * reports[2].elements
    transfer.destroy()
    transfer.destroy()  # again does nothing
    # The next run goes on with the log, from other weights than its newest version.
    again = WeightTransfer(log=log)
    again.send_weights(model.named_parameters())
    assert again.last_publication is not None and again.last_publication.changed > 0
    assert same(newest(log, model, tmp_path / "reader-again"), bits(model))
    with pytest.raises(TableMismatchError):
        WeightTransfer(log=log).send_weights([("another", torch.zeros(3))])


def test_the_server_mode_tells_the_number_to_its_server_and_needs_no_route_for_development(
    model: Qwen3ForCausalLM, log: Log, serve: Callable[[], FollowingServer]
) -> None:
    server, judge = serve(), serve()
    with enable(log=log, also=[judge.url]) as enabled:
        made = generation(model, server)
    assert made.vllm_client.get_server_info()["model_config"]["logprobs_mode"] == "processed_logprobs"
    for _ in range(3):
        made.sync_weights()
        assert same(server.weights, bits(model)) and same(judge.weights, bits(model))
        step(model)
    assert enabled.last_publication is not None and enabled.last_publication.seconds["serve"] > 0
    assert server.told == judge.told and server.told[-1] == enabled.last_publication.version
    called = {path for path in server.paths() if not path.startswith("/v1/")}
    assert called == {"/health", "/server_info", "/sparsecast/follow", "/sparsecast/version"}
    made.vllm_client.close_communicator()


def test_a_send_that_is_not_to_wait_returns_before_the_server_has_the_version(
    model: Qwen3ForCausalLM, log: Log, serve: Callable[[], FollowingServer]
) -> None:
    server = serve()
    reports: list[PublishReport] = []
    with enable(log=log, durable=False, on_report=reports.append) as enabled:
        client = generation(model, server).vllm_client
    server.may_take.clear()
    client.update_model_params(model)
    assert not reports and enabled.last_publication is None
    server.may_take.set()
    sent = bits(model)
    step(model)
    client.update_model_params(model)  # joins the one before
    assert len(reports) >= 1 and len(server.told) >= 1
    client.close_communicator()
    assert len(reports) == 2 and same(server.weights, bits(model)) and not same(server.weights, sent)


@pytest.mark.parametrize("durable", [True, False])
def test_an_error_of_a_version_is_raised_once_and_the_next_send_brings_everything(
    durable: bool, model: Qwen3ForCausalLM, log: Log, tmp_path: pathlib.Path
) -> None:
    transfer = WeightTransfer(log=log, durable=durable)
    transfer.send_weights(model.named_parameters())
    step(model)
    transfer.send_weights(model.named_parameters())
    place, away = tmp_path / "log", tmp_path / "away"
    if not durable:  # The version in progress is not the one that is to fail.
        transfer._sync._settle()
    place.rename(away)
    place.write_text("no directory")
    step(model)
    named = iter(list(model.named_parameters()))
    if durable:
        with pytest.raises(IoError):
            transfer.send_weights(named)
    else:
        transfer.send_weights(named)
        named = iter(list(model.named_parameters()))
        with pytest.raises(IoError):
            transfer.send_weights(named)
    assert next(named, None) is None, "TRL's iterator was not read to its end"
    place.unlink()
    away.rename(place)
    step(model)
    transfer.send_weights(model.named_parameters())
    transfer.destroy()
    assert same(newest(log, model, tmp_path / "reader"), bits(model))


def test_a_server_that_does_not_get_to_the_version_is_named_and_the_version_is_in_the_log(
    model: Qwen3ForCausalLM, log: Log, tmp_path: pathlib.Path, serve: Callable[[], FollowingServer]
) -> None:
    server = serve()
    with enable(log=log):
        client = generation(model, server).vllm_client
    client.update_model_params(model)
    server.stop()
    step(model)
    with pytest.raises(EndpointError, match=f"endpoint 127.0.0.1:{server.port}: version: .*POST"):
        client.update_model_params(model)
    assert same(newest(log, model, tmp_path / "reader"), bits(model))


def test_servers_that_follow_no_log_and_options_without_a_meaning_are_refused(
    model: Qwen3ForCausalLM, log: Log, free_port: int
) -> None:
    plain = TrlServer(dict(model.named_parameters()))
    plain.start()
    try:
        with enable(log=log), pytest.raises(UsageError, match="follows no log: start it with SPARSECAST_FOLLOW=LOG"):
            generation(model, plain)
    finally:
        plain.stop()
    with pytest.raises(DeadlineError, match="start it with SPARSECAST_FOLLOW=LOG"):
        WeightTransfer(f"http://127.0.0.1:{free_port}", log=log, wait=0.0).init_weight_transfer()
    with pytest.raises(
        UsageError, match="with log= there is no option policy: .* durable, on_report, positions, rename, wait"
    ):
        WeightTransfer(log=log, policy=SyncPolicy())
    for options, words in (
        ({"log": log, "first": "seed"}, "with log= servers follow by themselves"),
        ({"durable": False}, "durable= and positions= are for weights that go to a log"),
    ):
        with pytest.raises(Error, match=words):
            enable(**options)


@pytest.fixture
def free_port() -> int:
    from sparsecast_ports import free_port

    return free_port()
