# SPDX-License-Identifier: Apache-2.0
"""Trainers and engines hold the same tensor in any order of its dimensions in memory, and with gaps."""

from __future__ import annotations

import dataclasses
import itertools
import threading
from collections.abc import Callable

import pytest
import torch
from sparsecast_ports import free_port

import sparsecast.torch as st


def permuted(*order: int) -> Callable[[torch.Tensor], torch.Tensor]:
    back = [order.index(d) for d in range(len(order))]
    return lambda tensor: tensor.permute(order).contiguous().permute(back)


def with_gaps(tensor: torch.Tensor) -> torch.Tensor:
    wide = torch.full((*tensor.shape[:-1], tensor.shape[-1] + 3), -7.0)
    wide[..., : tensor.shape[-1]] = tensor
    return wide[..., : tensor.shape[-1]]


FORMS = {
    "plain": lambda tensor: tensor.clone(),
    "channels last": permuted(0, 2, 3, 1),
    "reversed": permuted(3, 2, 1, 0),
    "transposed": permuted(1, 0, 2, 3),
    "gaps": with_gaps,
}
SHAPE = (3, 4, 2, 5)


@pytest.mark.parametrize("seeded", [True, False])
@pytest.mark.parametrize(("trainer", "engine"), list(itertools.product(FORMS, FORMS)))
def test_every_version_is_the_trainers_whatever_the_strides(trainer: str, engine: str, seeded: bool) -> None:
    torch.manual_seed(0)
    values = torch.randn(SHAPE)
    sent = FORMS[trainer](values)
    got = FORMS[engine](torch.zeros(SHAPE) if seeded else values)
    world = st.World("127.0.0.1", free_port(), "a secret of sixteen or more", size=2, timeout=60)
    publisher = st.Publisher([("w", sent)], transport=world)
    engine_world = dataclasses.replace(world, rank_offset=1)
    subscriber = st.Subscriber([("w", got)], transport=engine_world, needs_anchor=seeded)
    failures: list[BaseException] = []

    def follow() -> None:
        try:
            for _ in range(3):
                subscriber.update()
            subscriber.audit()
        except BaseException as error:
            failures.append(error)

    thread = threading.Thread(target=follow)
    thread.start()
    publisher.publish()
    for step in range(2):
        sent[step, 1:3, :, step::2] += 1
        assert publisher.publish().changed > 0
    thread.join()
    assert not failures
    assert torch.equal(sent, got)
    if engine == "gaps":
        assert got.storage_offset() == 0 and (got.as_strided((*SHAPE[:-1], 8), got.stride())[..., 5:] == -7).all()
