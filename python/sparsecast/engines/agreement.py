# SPDX-License-Identifier: Apache-2.0
"""Agreement between the ranks of one engine, over a torch.distributed CPU group."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
import torch.distributed as dist

from sparsecast.errors import PeerFailedError

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup

    from sparsecast.engines.receiver import Receiver

_TEXT_BYTES = 2048


def raise_if_any_failed(failure: BaseException | None, group: ProcessGroup) -> None:
    """Raises `failure` if this rank has one; otherwise raises PeerFailedError with the failures of the other ranks, if
    there are any. Returns if no rank has failed. Collective over the group.

    Without this call, a rank that fails leaves the other ranks waiting in their next collective until the group's
    deadline.
    """
    text = "" if failure is None else f"{type(failure).__name__}: {failure}"
    raw = text.encode()[:_TEXT_BYTES]
    own = torch.zeros(4 + _TEXT_BYTES, dtype=torch.uint8)
    own[:4] = torch.tensor(list(len(raw).to_bytes(4, "little")), dtype=torch.uint8)
    if raw:
        own[4 : 4 + len(raw)] = torch.tensor(list(raw), dtype=torch.uint8)
    size = dist.get_world_size(group)
    everybody = [torch.empty_like(own) for _ in range(size)]
    dist.all_gather(everybody, own, group=group)
    if failure is not None:
        raise failure
    said = {rank: _text(answer) for rank, answer in enumerate(everybody)}
    failed = [f"rank {rank}: {words}" for rank, words in said.items() if words]
    if failed:
        raise PeerFailedError("other ranks of this engine failed: " + "; ".join(failed))


def is_so_anywhere(here: bool, group: ProcessGroup) -> bool:
    """Returns whether `here` is true on any rank. Collective over the group."""
    said = torch.tensor([int(here)])
    dist.all_reduce(said, op=dist.ReduceOp.MAX, group=group)
    return bool(said.item())


def settle_alike(receiver: Receiver, committed: bool, group: ProcessGroup) -> None:
    """Settles a version in doubt (`Receiver.in_doubt`) after an apply that has failed on some ranks, so that all of them
    hold the same version. `committed` says whether this rank has heard that the group committed the version. Collective
    over the group.

    If a rank has heard the commit, the version stands on all ranks. If a rank has gone back to the version before, all
    do, because the group cannot have committed without it. If all ranks are in doubt, they stay so: they hold the same
    version, and the next join settles it. Raises DirtyError if the version before could not be restored.
    """
    told = torch.tensor([int(committed), int(not committed and receiver.in_doubt == 0)])
    dist.all_reduce(told, op=dist.ReduceOp.MAX, group=group)
    is_committed, is_undone = (bool(each) for each in told.tolist())
    if is_committed or is_undone:
        receiver.settle(is_committed)


def _text(answer: torch.Tensor) -> str:
    length = min(int.from_bytes(bytes(answer[:4].tolist()), "little"), _TEXT_BYTES)
    return bytes(answer[4 : 4 + length].tolist()).decode(errors="replace")
