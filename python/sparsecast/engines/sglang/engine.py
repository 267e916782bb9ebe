# SPDX-License-Identifier: Apache-2.0
"""SGLang receiver: patches the live weights of one rank in place, in its scheduler process.

`plugin` hooks it into SGLang's own control messages:

    init_weights_update_group     join      trace the model's loader, meet the trainer, verify the weights
    weights_checker "receive"     receive   begin to stage the next version; generation goes on
    weights_checker "staged"      staged    whether it has come
    weights_checker "apply"       apply     the pause: apply in place, verify, stamp what is generated from now on
    destroy_weights_update_group  leave

Parameters stay where they are, with the addresses that CUDA graphs captured, and what the engine has computed from them
is computed again (`recompute`); otherwise post-processing must have changed nothing, which the module `weights` checks.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple, get_args

import torch
import torch.distributed as dist

from sparsecast.engines.agreement import is_so_anywhere, raise_if_any_failed
from sparsecast.engines.fence import TrainerFence
from sparsecast.engines.receiver import Receipt, Receiver, State
from sparsecast.engines.refresh.recompute import Recomputation, report
from sparsecast.engines.sglang.draft import say_stale_draft
from sparsecast.engines.sglang.installed import check_version, say_what_is_missing
from sparsecast.engines.sglang.messages import GroupInfo
from sparsecast.engines.sglang.weights import trace_and_verify, trace_weights
from sparsecast.engines.trace.loader import TracedLoader
from sparsecast.errors import UsageError
from sparsecast.transports import World

if TYPE_CHECKING:
    from sglang.srt.model_executor.model_runner import ModelRunner
    from torch.distributed import ProcessGroup


_ENDING_SECONDS = 60.0  # For a thread that has said how it ends, on a machine that has much else to do.


class _RankState(NamedTuple):
    """The state of one rank, as the other ranks get it. `state`, `version` and `in_doubt` come from its `Receiver`.
    `is_whole` says whether all its memory is of one version, and `held_version` which one.
    """

    state: State
    version: int
    in_doubt: int
    is_whole: bool
    held_version: int  # -1: weights of no trainer.


class SglangEnd:
    """Receiver of one rank of an SGLang engine. `status` is for any thread, everything else for the thread of the
    scheduler.

    `model_runner` is SGLang's; every join reads its `model`, `model_config` and `device`. `cpu_group` has the ranks
    that hold the model together: the tensor-parallel ranks of all stages. All methods except `cancel`, `leave` and
    `status` are collective over that group. If one rank fails, every rank raises, because clients of SGLang get only
    the answer of rank 0, which must therefore cover all ranks.
    """

    def __init__(self, model_runner: ModelRunner, cpu_group: ProcessGroup) -> None:
        self.receiver: Receiver | None = None
        self._runner = model_runner
        self._group = cpu_group
        self._rank = dist.get_rank(cpu_group)
        self._fence = TrainerFence()
        self._asked: tuple[Any, ...] = ()  # Table and modes of the receiver.
        self._map_verified = False  # The map is compared with the files once; later the weights differ from them.
        self._left_version: int | None = None
        self._traced: TracedLoader | None = None
        self._recomputation: Recomputation | None = None
        self._shadows: dict[str, torch.Tensor] = {}  # Copies outside the model that have been filled, by name.
        self._rearranged: set[str] = set()  # Names of modules whose kernels keep another order than the files.

    def join(self, host: str, port: int, rank_offset: int, world_size: int, info: GroupInfo) -> int:
        """Meets the trainer at `host`:`port`, verifies that this engine holds the trainer's version, and returns this
        version. A later call leaves the group for a new one. The ranks of the engine have the numbers from
        `rank_offset` on in the world, which has `world_size` ranks in all.

        Blocks generation until all ranks have come, within `info.timeout` seconds. Raises UnsupportedError naming
        tensors or layers that cannot be patched, UsageError for names that do not fit, UnauthenticatedError for another
        secret, DeadlineError if not all ranks come, DigestMismatchError if the weights differ from their version, and
        FencedError for a trainer that joined before the current one. Ranks that did not fail themselves raise
        PeerFailedError.
        """
        raise_if_any_failed(_failure_of(check_version), self._group)
        say_what_is_missing()
        raise_if_any_failed(self._fence.refusal(info.engine, info.trainer), self._group)
        world = World(
            host=host,
            port=port,
            rank_offset=rank_offset + self._rank,
            size=world_size,
            secret=info.secret,
            generation=info.generation,
            interface=info.interface,
            channels=info.channels,
            reach_timeout=info.reach_timeout,
        )
        known = (
            self.receiver is not None and self.receiver.state != "closed" and self._asked == (info.tensors, info.modes)
        )
        has_moved = known and self.receiver is not None and self.receiver.has_moved
        if is_so_anywhere(has_moved, self._group) or not known or info.needs_anchor:
            if self.receiver is not None:
                self.receiver.close(info.timeout)
            self.receiver = self._make_receiver(info)
            self._asked = (info.tensors, info.modes)
        receiver = self._joined()
        self._synchronize()  # Joining may write an anchor; what SGLang has enqueued still reads the weights.
        receiver.join(world, info.timeout)
        self._fence.follow(info.trainer)
        if self._traced is not None:
            self._shadows = self._traced.kept()
        return receiver.version

    def receive(self, timeout: float, base_version: int | None = None) -> None:
        """Starts to stage the next version in the background, while the trainer runs its sync(); `timeout` in seconds.

        Raises VersionGapError if the engine is at another version than `base_version`, from which the trainer updates;
        None is not checked.
        """
        receiver = self._joined()
        failure = _failure_of(lambda: receiver.start_receive(timeout, base_version=base_version))
        try:
            raise_if_any_failed(failure, self._group)
        except BaseException as error:
            if failure is None:
                receiver.abandon(str(error), timeout)
            raise

    def staged(self) -> bool:
        """Returns whether the next version has arrived and been checked on all ranks. Does not wait. Raises the error
        of staging if staging has failed.
        """
        receiver = self._joined()
        pending = receiver.state == "receiving"
        raise_if_any_failed(
            None if pending else _failure_of(lambda: receiver.wait_staged(_ENDING_SECONDS)), self._group
        )
        return not is_so_anywhere(pending, self._group)

    def apply(self, timeout: float) -> Receipt:
        """Applies the staged version in place and verifies it, within `timeout` seconds: the work of the pause. If it
        raises, the weights are still of the previous version, unless this engine did not hear whether the trainer has
        committed (`held`).

        After DirtyError the weights are half-written, and nothing may be generated until `join` has repaired them.
        """
        receiver = self._joined()
        raise_if_any_failed(_failure_of(lambda: receiver.wait_staged(timeout)), self._group)
        self._synchronize()
        receipt = receiver.apply(timeout)
        self._synchronize()
        return receipt

    def cancel(self, reason: str, timeout: float) -> None:
        """Cancels the update in progress, if there is one: the other ranks of the world fail with `reason`. The weights
        stay as they are, and the group must be joined again.
        """
        receiver = self.receiver
        if receiver is not None and receiver.state in ("receiving", "staged"):
            receiver.abandon(reason, timeout)

    def held(self) -> dict[str, Any]:
        """Returns {"attempt", "versions"}: the version that is applied but not known to be committed (0 if there is
        none), and the sorted versions that the ranks have verified.
        """
        held = self._gather()
        return {
            "attempt": max(rank.in_doubt for rank in held),
            "versions": sorted({rank.version for rank in held}),
        }

    def expire(self, committed: bool) -> dict[str, Any]:
        """Ends the update of a trainer that is gone: drops the staged version, and decides about the version in doubt.
        `committed` says whether any rank of the server has heard that this version was committed: then it stays, and
        otherwise the previous version is restored.

        Returns {"version", "is_whole", "states"}, the same on every rank: the version in memory (-1 for weights of no
        trainer), whether all ranks have that version unharmed, and the states of the ranks. No generation may run.
        """
        self.cancel("the lease of the pause ran out", 30.0)
        failure = None
        if self.held()["attempt"] != 0:
            receiver = self._joined()
            failure = _failure_of(lambda: receiver.settle(committed))
            self._synchronize()
        raise_if_any_failed(failure, self._group)
        held = self._gather()
        versions = {rank.held_version for rank in held}
        is_whole = all(rank.is_whole for rank in held) and len(versions) == 1
        return {"version": max(versions), "is_whole": is_whole, "states": sorted({rank.state for rank in held})}

    def _gather(self) -> list[_RankState]:
        """Returns the states of all ranks of the group, by rank."""
        states = get_args(State)
        own = torch.tensor([states.index("unproven"), -1, 0, True, -1])
        if self.receiver is not None:
            receiver, held = self.receiver, self.receiver.held
            version = -1 if held.version is None else held.version
            own = torch.tensor(
                [states.index(receiver.state), receiver.version, receiver.in_doubt, held.is_whole, version]
            )
        all_ranks = [torch.empty_like(own) for _ in range(dist.get_world_size(self._group))]
        dist.all_gather(all_ranks, own, group=self._group)
        rows = [[int(number) for number in each] for each in all_ranks]
        return [_RankState(states[row[0]], row[1], row[2], bool(row[3]), row[4]) for row in rows]

    def audit(self) -> None:
        """Reads all weights and compares their digest with the digest of the version that the engine holds.

        Raises DirtyError naming a tensor that differs; then only a join repairs it.
        """
        raise_if_any_failed(_failure_of(self._joined().audit), self._group)

    def leave(self, timeout: float) -> None:
        """Leaves the group, after cancelling an update in progress. The weights stay at the version that was last
        verified.
        """
        if self.receiver is not None and self.receiver.state != "closed":
            if self.receiver.state in ("receiving", "staged"):
                self.receiver.abandon("the engine leaves its group", timeout)
            self._left_version = None if self.receiver.state in ("dirty", "unproven") else self.receiver.version
            self.receiver.close(timeout)

    def status(self) -> dict[str, Any]:
        """Returns, as JSON values, the status of the receiver (engine, rank, version, state), the number of tensors
        that are patched in place, and how the other tensors are updated.
        """
        receiver = self.receiver
        if receiver is None:
            return {"state": "not joined", "is_whole": True, "held_version": None}
        return {
            **receiver.status(),
            "in_place": self._traced.in_place if self._traced is not None else 0,
            **report([self._recomputation] if self._recomputation is not None else []),
        }

    def _joined(self) -> Receiver:
        if self.receiver is None:
            raise UsageError("init_weights_update_group with backend 'sparsecast' comes before any update")
        return self.receiver

    def _make_receiver(self, info: GroupInfo) -> Receiver:
        from sparsecast.torch.layouts import gather_layout
        from sparsecast.torch.owners import guard_of

        model, config = self._runner.model, self._runner.model_config
        verify = info.proof == "checkpoint" and not info.needs_anchor and not self._map_verified
        failure: BaseException | None = None
        traced: TracedLoader | None = None
        recomputation: Recomputation | None = None
        try:
            say_stale_draft()
            if verify:
                traced, recomputation, self._rearranged = trace_and_verify(model, config, info)
            else:
                traced, recomputation = trace_weights(model, config, info, self._rearranged)
                if not info.needs_anchor:
                    traced.fill_shadows(self._shadows)
            recomputation.prove(as_loaded=not info.needs_anchor)
            traced.require_complete(recomputation.derived)
            own, memories = traced.layout(node=os.uname().nodename, exclude=traced.unused), traced.memories()
        except Exception as error:  # Told to the other ranks, and raised on all of them.
            failure = error
        raise_if_any_failed(failure, self._group)
        self._map_verified = self._map_verified or verify
        assert recomputation is not None
        assert traced is not None
        if not info.needs_anchor:
            self._shadows = traced.kept()
        layout = gather_layout(own, self._group)
        version = info.version if self._left_version is None else self._left_version
        made: list[Receiver] = []
        failure = _failure_of(
            lambda: made.append(
                Receiver(
                    info.engine,
                    layout,
                    self._rank,
                    memories,
                    version=version,
                    needs_anchor=info.needs_anchor,
                    entry_bytes=info.entry_bytes,
                    recomputations=[recomputation],
                    guard=guard_of([model], (tensor.memory for tensor in traced.tensors), "the engine must join again"),
                    before=self.receiver.held if self.receiver is not None else None,
                )
            )
        )
        raise_if_any_failed(failure, self._group)
        self._traced, self._recomputation = traced, recomputation
        return made[0]

    def _synchronize(self) -> None:
        if torch.device(self._runner.device).type == "cuda":
            torch.cuda.synchronize()


def _failure_of(work: Callable[[], object]) -> Exception | None:
    try:
        work()
    except Exception as error:  # Told to the other ranks before it is raised.
        return error
    return None
