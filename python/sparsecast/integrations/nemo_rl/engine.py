# SPDX-License-Identifier: Apache-2.0
"""NeMo-RL's checkpoint engine: one object in each policy rank and in each rollout worker, driven by NeMo-RL.

NeMo-RL calls `prepare` on all, hands what they return to all by `init_policy_process_group` and
`init_rollout_process_group`, and then, for every sync, `send_weights` on the policy and `receive_weight_batches` on the
rollout workers at the same time. With `release_after_refit` it does all of that for every sync.

The sender sends everything (a seed) when any rollout worker does not hold what it holds: the first time, since vLLM is
started with random weights there, and after any failure.
"""

from __future__ import annotations

import logging
import os
import secrets
from collections.abc import AsyncGenerator, Iterable, Iterator, Mapping, Sequence
from typing import Any

import ray
import torch
from nemo_rl.utils.checkpoint_engines import base

from sparsecast.errors import GroupMismatchError, IncompleteError, UsageError

from .._checkpoint_group import Group, Hello, leaders_of, membership, new_meeting
from .._gathered import drain
from .._mirror import Mirror
from .receiver import NodeMemory, WeightReader
from .sender import Totals, WeightWriter

_CHUNK_BYTES = 1 << 30
_KEY = "sparsecast"
_INSTEAD = "take NeMo-RL's own transport, which has no copy, by leaving out refit_transport"

logger = logging.getLogger(__name__)


class CheckpointEngine(base.CheckpointEngine):
    """Options, under `policy.generation.refit_cfg` at the name of this class:

    - `channels`: what carries records: "control" (TCP, encrypted; the default) or "nccl".
    - `timeout`: seconds after which a wait for another rank ends (600).
    - `threads`: threads that encode and decode (as many as cores, at most 8).
    - `host`: address of the policy's first rank that the rollout workers reach (what Ray calls that node).
    - `interface`: name or address of the network interface.
    - `shared_dir`: where the rollout workers of a node share the weights ("/dev/shm").
    - `load`: what vLLM loads after a sync: "changed" tensors (the default), or "all".
    - `release_after_refit`: NeMo-RL's; with true, a sync after a failed one meets anew.
    - `update_weights_bucket_memory_ratio`: NeMo-RL's; bounds what is handed to vLLM at once.
    """

    def __init__(
        self,
        bucket_size: int,
        *,
        channels: str = "control",
        timeout: float = 600.0,
        threads: int = 0,
        host: str = "",
        interface: str = "",
        shared_dir: str = "/dev/shm",
        load: str = "changed",
        release_after_refit: bool = False,
    ) -> None:
        if channels not in ("control", "nccl"):
            raise UsageError(f"channels in refit_cfg is 'control' or 'nccl', not {channels!r}")
        if load not in ("changed", "all"):
            raise UsageError(f"load in refit_cfg is 'changed' or 'all', not {load!r}")
        del release_after_refit
        self.bucket_size = int(bucket_size)
        self.figures: Totals | None = None
        """Figures of the last sync, on rank 0 of the policy."""
        self._channels = channels
        self._timeout = float(timeout)
        self._threads = int(threads) or min(os.cpu_count() or 1, 8)
        self._host = host
        self._interface = interface
        self._shared_dir = shared_dir
        self._load = load
        self._device = "cuda" if torch.cuda.is_available() else "cpu"
        self._rank = -1
        self._group: Group | None = None
        self._mirror: Mirror | None = None
        self._stream = ""
        self._version = 0

    # What NeMo-RL calls before the first sync, or before each.

    def prepare(self) -> dict[str, Any]:
        """Returns where this rank is, in which group, and where a new one could meet if this is the policy's rank 0."""
        group = self._group
        host = self._host or str(ray.util.get_node_ip_address()).strip("[]")
        return {
            _KEY: {
                "node": _who_shares(self._shared_dir),
                "member": group.membership if group is not None and group.healthy else "",
                "meeting": new_meeting(host),
            }
        }

    def init_policy_process_group(
        self, *, worker_rank: int, train_world_size: int, rollout_world_size: int, metadata: list[Any]
    ) -> None:
        """Meets the rollout workers, on rank 0; the policy's other ranks are in no group."""
        if worker_rank == 0:
            self._meet(0, train_world_size, rollout_world_size, metadata)

    def init_rollout_process_group(
        self, *, rollout_rank: int, train_world_size: int, rollout_world_size: int, metadata: list[Any]
    ) -> None:
        """Meets rank 0 of the policy and the other rollout workers."""
        self._meet(1 + rollout_rank, train_world_size, rollout_world_size, metadata)

    def _meet(self, rank: int, train: int, rollout: int, metadata: Sequence[Any]) -> None:
        """Joins the group, unless it is as it was. Every rank decides that from the same metadata."""
        ours = [item[_KEY] for item in metadata if isinstance(item, Mapping) and _KEY in item]
        if len(metadata) != train + rollout or len(ours) != len(metadata) or not 0 <= rank <= rollout:
            raise GroupMismatchError(
                f"{len(ours)} of {train + rollout} workers use this class: set refit_transport in the one "
                "configuration that policy and generation share"
            )
        first, rollouts, size = ours[0], ours[train:], 1 + rollout
        members = [str(each["member"]) for each in (first, *rollouts)]
        token = members[0].partition(":")[0]
        self._rank = rank
        if token and members == [membership(token, number, size) for number in range(size)]:
            return
        nodes = [str(each["node"]) for each in rollouts]
        self._group = None  # Closes the connections of the one before.
        self._group = Group(
            first["meeting"],
            rank=rank,
            size=size,
            node=0 if rank == 0 else sorted(set(nodes)).index(nodes[rank - 1]),
            leader=rank > 0 and leaders_of(nodes)[rank - 1],
            channels=self._channels,
            interface=self._interface,
            timeout=self._timeout,
        )

    # The policy.

    async def send_weights(self, weights: Iterable[tuple[str, torch.Tensor]]) -> None:
        """Runs one sync on a rank of the policy. `weights` gathers over its ranks, so that all read it to its end."""
        iterator = iter(weights)
        try:
            if self._rank == 0:
                self._send(iterator)
        except Exception as error:
            raise self._failed(error) from error
        finally:
            drain(iterator)

    def _send(self, weights: Iterator[tuple[str, torch.Tensor]]) -> None:
        group = self._joined()
        hellos = group.greet(Hello(self._stream, self._version, None))
        holds = (self._stream, self._version)
        seed = not self._stream or any((hello.stream, hello.version) != holds for hello in hellos[1:])
        if seed:
            self._stream, self._version, self._mirror = secrets.token_hex(16), 0, None
        if self._mirror is None:
            self._mirror = Mirror(_INSTEAD)
        group.begin({"seed": seed, "stream": self._stream, "base": self._version})
        writer = WeightWriter(
            group,
            self._mirror,
            stream=self._stream,
            base=self._version,
            chunk_bytes=min(self.bucket_size, _CHUNK_BYTES),
            threads=self._threads,
            timeout=self._timeout,
        )
        writer.send(weights)
        group.vote()
        self._version += 1
        self.figures = totals = writer.totals
        logger.info(
            "sparsecast sent %d bytes: %d of %d elements, %d of %d tensors%s",
            totals.record_bytes,
            totals.changed,
            totals.elements,
            totals.sent_tensors,
            totals.tensors,
            ", all of them" if seed else "",
        )

    # The rollout workers.

    async def receive_weight_batches(self) -> AsyncGenerator[list[tuple[str, torch.Tensor]], None]:
        """Yields tensors of one version, after all of it has been received and verified on every rank.

        They are copies, on the GPU if there is one. A caller that stops before the end has failed: everything is sent
        again next time.
        """
        group = self._joined()
        stream, version = (self._stream, self._version) if self._mirror is not None else ("", 0)
        self._stream = ""  # Until vLLM has taken all of it.
        try:
            names, stream, version = self._receive(group, Hello(stream, version, None))
        except Exception as error:
            raise self._failed(error) from error
        try:
            for batch in self._batches(names):
                yield batch
        except BaseException as error:
            # Also GeneratorExit, which is how a generator hears of a caller that failed.
            group.give_up(f"a rollout worker failed while it loaded the weights; its own error says why ({error!r})")
            raise
        self._stream, self._version = stream, version

    def _receive(self, group: Group, held: Hello) -> tuple[list[str], str, int]:
        assert group.node is not None
        group.greet(held)
        seed, stream, base = _begin_fields(group.hear_begin())
        if seed:
            self._mirror = None  # The memory of the old one first.
            self._mirror = Mirror(_INSTEAD)
        assert self._mirror is not None
        memory = NodeMemory(group.node, self._shared_dir, self._timeout)
        reader = WeightReader(
            group, self._mirror, memory, stream=stream, base=base, threads=self._threads, timeout=self._timeout
        )
        while (message := group.hear("chunk", "end"))["kind"] == "chunk":
            reader.read(message)
        if message.get("chunks") != reader.chunks:
            raise IncompleteError(f"{reader.chunks} chunks came of {message.get('chunks')}", "sync")
        group.vote()
        return reader.changed if self._load == "changed" else self._mirror.names, stream, base + 1

    def _batches(self, names: Sequence[str]) -> Iterator[list[tuple[str, torch.Tensor]]]:
        assert self._mirror is not None
        batch: list[tuple[str, torch.Tensor]] = []
        size = 0
        for name in names:
            tensor = self._mirror.tensor(name)
            if batch and size + tensor.nbytes > self.bucket_size:
                yield batch
                batch, size = [], 0
            batch.append((name, tensor.to(self._device, copy=True)))
            size += tensor.nbytes
        if batch:
            yield batch

    # Both.

    def _joined(self) -> Group:
        group = self._group
        if group is None:
            raise UsageError("no group: NeMo-RL has to call prepare and init_..._process_group before a sync")
        if not group.healthy:
            raise UsageError(
                "an earlier sync failed, and the ranks have not met since: start the run again, or set "
                f"release_after_refit: true in refit_cfg, with which they meet before each sync {group.reason()}"
            )
        return group

    def _failed(self, error: Exception) -> Exception:
        """Leaves the group, with the reason for the others; the next sync sends everything."""
        self._stream = ""
        consequence = "nothing of this sync was loaded, the next one sends everything"
        return error if self._group is None else self._group.fail(error, consequence)


def _who_shares(directory: str) -> str:
    """Returns a word that is the same for all who see the same directory of the same running machine."""
    try:
        state = os.stat(directory)
    except OSError as error:
        raise UsageError(f"shared_dir in refit_cfg: {error}") from error
    with open("/proc/sys/kernel/random/boot_id") as file:
        return f"{file.read().strip()}/{state.st_dev}/{state.st_ino}"


def _begin_fields(message: dict[str, Any]) -> tuple[bool, str, int]:
    seed, stream, base = (message.get(name) for name in ("seed", "stream", "base"))
    if type(seed) is not bool or type(stream) is not str or type(base) is not int:
        raise GroupMismatchError("it does not say what to receive: install the same sparsecast everywhere", "begin")
    return seed, stream, base
