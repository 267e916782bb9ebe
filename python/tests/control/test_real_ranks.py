# SPDX-License-Identifier: Apache-2.0
"""The control plane with real ranks: a torch publisher, and servers whose engines are real subscribers."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
from conftest import QUICK, endpoint_of
from stub_engines import StubEngine, running
from stub_source import StubSource

pytest.importorskip("sparsecast._core")
torch = pytest.importorskip("torch")

import sparsecast  # noqa: E402
from sparsecast import LocalTensor, RankLayout, Shard, ShardedSubscriber, TensorTable  # noqa: E402
from sparsecast.control import ControlPlane, PublisherSource, SyncError  # noqa: E402
from sparsecast.errors import PeerFailedError, UsageError  # noqa: E402
from sparsecast.torch import Publisher  # noqa: E402

ROWS, COLUMNS = 64, 48
PATIENT = replace(QUICK, join_timeout=60, sync_timeout=30)  # Other tests share the cores.


def whole_layout() -> sparsecast.Layout:
    """One rank that holds all of w, as any engine without parallelism does."""
    box = sparsecast.Box([0, 0], [ROWS, COLUMNS])
    shard = Shard(0, box, 0, 0, [COLUMNS, 1])
    rank = RankLayout([LocalTensor("w", "BF16", ROWS * COLUMNS)], [shard])
    return sparsecast.Layout(TensorTable([("w", "BF16", [ROWS, COLUMNS])]), [rank])


class RankServer(StubEngine):
    """A server with one real rank: `weights` are its live memory."""

    def __init__(self, kind: str, weights: Any) -> None:
        super().__init__(kind, StubSource())
        self.weights = weights.clone()
        self.subscriber: ShardedSubscriber | None = None
        self._receiving: threading.Thread | None = None
        self._failure: Exception | None = None

    def _join(self, info: dict[str, Any]) -> dict[str, Any]:
        anchored = bool(info.get("needs_anchor"))
        if self.subscriber is None or anchored:
            self.subscriber = ShardedSubscriber(
                info["engine"], whole_layout(), 0, [sparsecast.describe(self.weights)], needs_anchor=anchored
            )
        where = (info["host"], info["port"]) if self.kind == "vllm" else (info["master_address"], info["master_port"])
        channel = sparsecast.meet(
            *where,
            rank=info["rank_offset"],
            size=info["world_size"],
            secret=info["secret"],
            generation=info["generation"],
            timeout=info["timeout"],
        )
        self.subscriber.regroup(channel, channels=info["channels"], timeout=info["timeout"])
        self.timeout = info["timeout"]
        return {"success": True}

    def _begin(self) -> dict[str, Any]:
        answer = super()._begin()
        self._receive(self.timeout)
        return answer

    def _receive(self, timeout: float) -> None:
        subscriber = self.subscriber
        assert subscriber is not None

        def work() -> None:
            try:
                subscriber.receive(timeout)
            except sparsecast.Error as error:
                self._failure = error

        self._failure = None
        self._receiving = threading.Thread(target=work, daemon=True)
        self._receiving.start()

    def _vllm_update(self, info: dict[str, Any]) -> dict[str, Any]:
        assert self.subscriber is not None and info["base_version"] == self.subscriber.version
        try:
            self._apply(self.timeout)
        except BaseException:
            self.in_update = False
            raise
        self.was_applied = True
        return {}

    def _phase(self, info: dict[str, Any]) -> dict[str, Any]:
        if info["phase"] == "receive":
            self._receive(info["timeout"])
        if info["phase"] == "apply":
            self._apply(info["timeout"])
        return {"success": True, "message": ""}

    def _apply(self, timeout: float) -> None:
        assert self.subscriber is not None and self._receiving is not None
        self._receiving.join(timeout)
        if self._failure is not None:
            raise self._failure
        self.subscriber.apply(timeout)

    def scramble(self) -> None:
        self.weights.zero_()


@pytest.fixture
def model() -> Any:
    torch.manual_seed(7)
    return torch.nn.ParameterDict({"w": torch.nn.Parameter(torch.randn(ROWS, COLUMNS).bfloat16(), requires_grad=False)})


@pytest.fixture
def servers(model: Any) -> Iterator[list[RankServer]]:
    made = [RankServer("sglang", model["w"]), RankServer("vllm", model["w"])]
    with running(*made):
        yield made


@pytest.fixture
def real_plane(model: Any, servers: list[RankServer]) -> Iterator[ControlPlane]:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    with (
        Publisher(model) as publisher,
        ControlPlane(PublisherSource(publisher), host="127.0.0.1", port=port, policy=PATIENT) as plane,
    ):
        for server, name in zip(servers, ("sg", "vl"), strict=True):
            plane.add(endpoint_of(server, name))
        plane.sync_now()  # The trainer's version 0 is what its weights are at the first regroup.
        yield plane


def step(model: Any, seed: int) -> None:
    """Changes one element in a hundred, bit for bit."""
    generator = torch.Generator().manual_seed(seed)
    bits = model["w"].view(torch.int16)
    mask = torch.rand(ROWS, COLUMNS, generator=generator) < 0.01
    bits[mask] ^= 1


def same(servers: list[RankServer], model: Any) -> bool:
    return all(torch.equal(server.weights.view(torch.int16), model["w"].view(torch.int16)) for server in servers)


def test_every_sync_leaves_every_engine_with_the_trainers_bits(
    real_plane: ControlPlane, servers: list[RankServer], model: Any
) -> None:
    for number in range(4):
        step(model, number)
        report = real_plane.sync_now()
        assert report.result == "ok" and same(servers, model)
        assert 0 < report.source["density"] < 0.03 and report.source["sent_bytes"] > 0
        assert {server.weight_version for server in servers} == {str(report.version)}


def test_an_engine_whose_weights_were_released_is_seeded_again(
    real_plane: ControlPlane, servers: list[RankServer], model: Any
) -> None:
    step(model, 1)
    real_plane.sync_now()
    real_plane.sleep(names=["vl"])
    servers[1].scramble()
    real_plane.wake(names=["vl"])
    step(model, 2)
    assert real_plane.sync_now().result == "ok" and same(servers, model)


def test_an_engine_that_joins_late_gets_the_trainers_bits(
    real_plane: ControlPlane, servers: list[RankServer], model: Any
) -> None:
    initial = model["w"].clone()
    step(model, 1)
    real_plane.sync_now()
    late = RankServer("vllm", initial)
    with running(late):
        real_plane.add(endpoint_of(late, "late"))
        step(model, 2)
        assert real_plane.sync_now().result == "ok" and same([*servers, late], model)
        assert not late.paused


@pytest.mark.parametrize("failing", [0, 1])
def test_an_engine_that_fails_over_http_releases_the_trainer_and_the_other_engine_at_once(
    real_plane: ControlPlane, servers: list[RankServer], model: Any, failing: int
) -> None:
    step(model, 1)
    real_plane.sync_now()
    step(model, 2)
    servers[failing].faults["receive"] = 500
    started = time.monotonic()
    with pytest.raises(SyncError, match="receive"):
        real_plane.sync_now(replace(PATIENT, sync_timeout=600))
    assert time.monotonic() - started < 120  # Its rank never came, and nobody waited for the deadline.
    servers[failing].faults.clear()
    assert real_plane.sync_now().result == "ok" and same(servers, model)


def test_a_refused_join_ends_the_meeting_of_everybody_with_its_reason(
    real_plane: ControlPlane, servers: list[RankServer], model: Any
) -> None:
    late = RankServer("vllm", model["w"].clone())
    late.faults["join"] = 500
    with running(late):
        real_plane.add(endpoint_of(late, "late"), needs_anchor=True)
        with pytest.raises(SyncError, match="endpoint late: join.*caught fire") as caught:
            real_plane.sync_now(replace(PATIENT, join_timeout=1200))  # Longer than any test may take.
        assert isinstance(caught.value.__cause__, PeerFailedError)
        assert "endpoint late: join" in str(caught.value.__cause__)
        assert not any(server.paused for server in [*servers, late])  # Nobody was written to.
        assert caught.value.report is not None
        assert not any(endpoint.left_paused for endpoint in caught.value.report.endpoints)
        late.faults.clear()
        step(model, 1)
        assert real_plane.sync_now().result == "ok" and same([*servers, late], model)


def test_an_engine_whose_trainer_died_in_an_update_can_be_seeded_by_the_next(
    real_plane: ControlPlane, servers: list[RankServer], model: Any
) -> None:
    orphan = RankServer("vllm", torch.zeros_like(model["w"]))
    orphan.in_update = True
    with running(orphan):
        real_plane.add(endpoint_of(orphan, "orphan"), needs_anchor=True)
        assert real_plane.sync_now().result == "ok" and same([*servers, orphan], model)
    leave, finish = "/shutdown_weight_transfer_engine", "/finish_weight_update"
    ends = [path for _, path, _, _ in orphan.calls if path in (leave, finish)]
    assert ends == [leave, finish, finish, leave, finish]


def test_a_publisher_without_a_transport_says_who_brings_one(model: Any) -> None:
    with Publisher(model) as publisher, pytest.raises(UsageError, match="PublisherSource"):
        publisher.publish()


def test_a_failed_apply_leaves_all_at_the_version_before_and_the_next_sync_brings_all_to_the_same_bits(
    real_plane: ControlPlane, servers: list[RankServer], model: Any
) -> None:
    step(model, 1)
    real_plane.sync_now()
    before = model["w"].clone()
    step(model, 2)
    servers[0].faults["apply"] = 500
    with pytest.raises(SyncError, match="endpoint sg: apply.*trainer at 2; sg at 2, vl at 2"):
        real_plane.sync_now()
    assert not any(server.paused for server in servers)
    assert torch.equal(servers[1].weights.view(torch.int16), before.view(torch.int16))
    servers[0].faults.clear()
    assert real_plane.sync_now().result == "ok" and same(servers, model)
