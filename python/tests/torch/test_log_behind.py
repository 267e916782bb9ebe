# SPDX-License-Identifier: Apache-2.0
"""Publications to a log whose upload goes on behind the next step."""

from __future__ import annotations

import dataclasses
import pathlib

import pytest
import torch

import sparsecast.torch as st
from sparsecast.errors import DeadlineError, IoError

ELEMENTS = 4096


@pytest.fixture
def log(tmp_path: pathlib.Path) -> st.Log:
    return st.Log(tmp_path / "log", mirror=tmp_path / "mirror.safetensors", timeout=30.0)


def follower(log: st.Log, held: torch.Tensor, tmp_path: pathlib.Path) -> st.Subscriber:
    return st.Subscriber([("w", held)], transport=dataclasses.replace(log, mirror="", state=tmp_path / "state"))


def test_the_weights_may_change_as_soon_as_the_call_returns(log: st.Log, tmp_path: pathlib.Path) -> None:
    weight, held = torch.zeros(ELEMENTS), torch.zeros(ELEMENTS)
    with st.Publisher([("w", weight)], transport=log) as publisher:
        reader = follower(log, held, tmp_path)
        for step in range(20):
            weight[step::50] += 1.0
            expected = weight.clone()
            future = publisher.publish(wait=False)
            weight.fill_(-1.0)  # what the next step does, while the version is on its way
            assert future.result(30).changed > 0
            reader.update()
            assert torch.equal(held, expected)
            weight.copy_(expected)


def test_the_next_publication_waits_for_the_one_before(log: st.Log, tmp_path: pathlib.Path) -> None:
    weight, held = torch.zeros(ELEMENTS), torch.zeros(ELEMENTS)
    with st.Publisher([("w", weight)], transport=log) as publisher:
        futures = []
        for step in range(8):
            weight[step] += 1.0
            futures.append(publisher.publish(wait=False))
            assert all(future.done() for future in futures[:-1])
        report = publisher.wait(30)
        assert report is not None and report.version == publisher.version
        assert publisher.wait(30) is None
    versions = [future.result().version for future in futures]
    assert versions == list(range(versions[0], versions[0] + 8))
    follower(log, held, tmp_path).update()
    assert torch.equal(held, weight)


@pytest.mark.parametrize("heard_by", ["wait", "publish", "step"])
def test_an_upload_that_failed_is_told_once_and_then_repeated(
    heard_by: str, log: st.Log, tmp_path: pathlib.Path
) -> None:
    weight, held = torch.nn.Parameter(torch.zeros(ELEMENTS)), torch.zeros(ELEMENTS)
    optimizer = torch.optim.SGD([weight], lr=1.0)
    publisher = st.Publisher([("w", weight)], optimizer, transport=log)
    place, away = tmp_path / "log", tmp_path / "away"

    def train(element: int) -> None:
        weight.grad = torch.zeros(ELEMENTS)
        weight.grad[element] = 1.0
        optimizer.step()

    train(0)
    publisher.publish()
    first = publisher.version
    place.rename(away)
    place.write_text("no directory")
    train(1)
    future = publisher.publish(wait=False)
    with pytest.raises(IoError):
        future.result(30)
    with pytest.raises(IoError):
        {"wait": publisher.wait, "publish": publisher.publish, "step": lambda: train(2)}[heard_by]()
    assert publisher.version == first and publisher.wait() is None
    place.unlink()
    away.rename(place)
    train(3)
    assert publisher.publish().version == first + 2, "the version that failed, and the changes since"
    follower(log, held, tmp_path).update()
    assert torch.equal(held, weight.detach())
    publisher.close()


def test_close_raises_the_error_of_an_upload(log: st.Log, tmp_path: pathlib.Path) -> None:
    weight = torch.zeros(ELEMENTS)
    publisher = st.Publisher([("w", weight)], transport=dataclasses.replace(log, timeout=2.0))
    (tmp_path / "log").rename(tmp_path / "away")
    (tmp_path / "log").write_text("no directory")
    weight[0] = 1.0
    publisher.publish(wait=False)
    with pytest.raises((IoError, DeadlineError)):
        publisher.close()


@pytest.mark.parametrize("wait", [True, False])
def test_a_publication_that_changes_far_more_than_those_before_it_is_warned_of(
    log: st.Log, wait: bool, caplog: pytest.LogCaptureFixture
) -> None:
    weight = torch.zeros(ELEMENTS)
    with st.Publisher([("w", weight)], transport=log) as publisher:
        for step in range(4):
            weight[step::100] += 1.0
            publisher.publish(wait=wait)  # type: ignore[call-overload]
        assert not caplog.messages
        weight += 1.0
        publisher.publish(wait=wait)  # type: ignore[call-overload]
        publisher.wait(30)
    assert [message.split(":")[0] for message in caplog.messages] == [f"version {publisher.version}"]
    assert "100.000% of the weights changed" in caplog.messages[0]
