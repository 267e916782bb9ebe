# SPDX-License-Identifier: Apache-2.0
"""verl's checkpoint engine: one object in each trainer rank and in each rollout worker, driven by verl.

verl calls, for every sync, `prepare` on all, `build_topology` on the driver, `init_process_group` on all,
`send_weights` on the trainer and `receive_weights` on the rollout workers at the same time, and `finalize` on all.

The group outlives a sync. It meets anew when a member is new or any rank's group broke. The sender sends everything
(a seed) when any rollout worker does not hold what it holds: the first time, after a restart, after any failure.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterator, Sequence
from typing import Any

import ray
import torch
from verl.checkpoint_engine import CheckpointEngine

from sparsecast.errors import GroupMismatchError, IncompleteError, PeerFailedError, UnsupportedError, UsageError

from .._checkpoint_group import Group, Hello, leaders_of, membership, new_meeting
from .._mirror import Mirror
from .receiver import (
    ChunkReader,
    Flush,
    Neighbours,
    Payload,
    dense_flushes,
    dense_payload,
    sparse_flushes,
    sparse_payload,
)
from .sender import ChunkWriter, Gatherer, metrics_of, send_full, tell_ranks

_FAILED, _SEED, _STEADY, _STEADY_VERIFY = range(4)

_CHUNK_BYTES = 1 << 30

_INSTEAD = "take verl's own delta_sharded, which has no copy, by leaving out custom_backend_module"


class SparsecastCheckpointEngine(CheckpointEngine):
    """Options, all under `checkpoint_engine.engine_kwargs.delta_sharded`:

    - `channels`: what carries records: "control" (TCP, encrypted; the default) or "nccl".
    - `timeout`: seconds after which a wait for another rank ends (600).
    - `threads`: threads that encode and decode (as many as cores, at most 8).
    - `interface`: name or address of the network interface.
    - `shared_dir`: where rollout workers of a node pass on flushes ("/dev/shm").
    - `verify_every`: every so many syncs, the trainer compares its full export with all that it has sent, and SGLang
      what it holds with that (0: never; verl refuses it for vLLM).
    - `batch_gather`: entries that are gathered on rank 0 at once (32).
    - `rollout_dtype`: of floating tensors ("bfloat16").
    - `encoding`, `group_name`, `rebuild_group`, `multi_sender`: verl's own, taken and without meaning here.
    """

    wire_format = "delta_flush"

    def __init__(
        self,
        bucket_size: int,
        is_master: bool = False,
        *,
        channels: str = "control",
        timeout: float = 600.0,
        threads: int = 0,
        interface: str = "",
        shared_dir: str = "/dev/shm",
        verify_every: int = 0,
        batch_gather: int = 32,
        rollout_dtype: torch.dtype | str = torch.bfloat16,
        encoding: str = "indices",
        group_name: str = "default",
        rebuild_group: bool = False,
        multi_sender: bool = False,
    ) -> None:
        del encoding, group_name, rebuild_group, multi_sender
        if channels not in ("control", "nccl"):
            raise UsageError(f"engine_kwargs.delta_sharded.channels is 'control' or 'nccl', not {channels!r}")
        if isinstance(rollout_dtype, str):
            dtype = getattr(torch, rollout_dtype, None)
            if not isinstance(dtype, torch.dtype):
                raise UsageError(f"engine_kwargs.delta_sharded.rollout_dtype: torch has no dtype {rollout_dtype!r}")
            rollout_dtype = dtype
        self.bucket_size = int(bucket_size)
        self.is_master = is_master
        self._channels = channels
        self._timeout = float(timeout)
        self._threads = int(threads) or min(os.cpu_count() or 1, 8)
        self._interface = interface
        self._shared_dir = shared_dir
        self._verify_every = int(verify_every)
        self._batch_gather = int(batch_gather)
        self._dtype = rollout_dtype
        self._device = "cuda" if torch.cuda.is_available() else "cpu"
        self._rank = -1
        self._group: Group | None = None
        self._mirror: Mirror | None = None
        self._stream = ""
        self._version = 0
        self._steady = 0

    # What verl calls before each sync.

    def prepare(self) -> dict[str, Any]:
        """Returns where this rank is, in which group, and, from the trainer's rank 0, where a new one could meet."""
        group = self._group
        return {
            "node": str(ray.get_runtime_context().get_node_id()),
            "member": group.membership if group is not None and group.healthy else "",
            "meeting": new_meeting(self._own_address()) if self.is_master else None,
        }

    @classmethod
    def build_topology(
        cls, actor_wg_world_size: int, rollout_world_size: int, metadata: Sequence[dict[str, Any]]
    ) -> tuple[dict[str, list[Any]], dict[str, list[Any]]]:
        """Decides whether all meet anew. The trainer's other ranks are in no group, and have rank -1."""
        meeting = metadata[0]["meeting"]
        if meeting is None:
            raise UsageError("rank 0 of the trainer is not the master: verl has changed; see docs/integrations.md")
        rollouts = metadata[actor_wg_world_size:]
        nodes = [str(rollout["node"]) for rollout in rollouts]
        size = 1 + rollout_world_size
        members = [str(each["member"]) for each in (metadata[0], *rollouts)]
        token = members[0].partition(":")[0]
        keep = bool(token) and members == [membership(token, rank, size) for rank in range(size)]
        order = sorted(set(nodes))
        actors, workers = actor_wg_world_size, rollout_world_size
        return (
            {
                "rank": [0] + [-1] * (actors - 1),
                "world_size": [size] * actors,
                "meeting": [None if keep else meeting] * actors,
                "node": [0] * actors,
                "leader": [False] * actors,
            },
            {
                "rank": list(range(1, size)),
                "world_size": [size] * workers,
                "meeting": [None if keep else meeting] * workers,
                "node": [order.index(node) for node in nodes],
                "leader": leaders_of(nodes),
            },
        )

    def init_process_group(
        self, rank: int, world_size: int, meeting: dict[str, Any] | None, node: int, leader: bool
    ) -> None:
        """Meets the others, unless the group is as it was."""
        self._rank = rank
        if rank < 0 or meeting is None:
            return
        self._group = None  # Closes the connections of the one before.
        self._group = Group(
            meeting,
            rank=rank,
            size=world_size,
            node=node,
            leader=leader,
            channels=self._channels,
            interface=self._interface,
            timeout=self._timeout,
        )

    def finalize(self) -> None:
        """Gives device memory back that the flushes had."""
        if self._device == "cuda":
            torch.cuda.empty_cache()

    # The trainer.

    async def send_weights(self, weights: Any, global_steps: int | None = None) -> dict[str, float] | None:
        """Runs one sync on a rank of the trainer; `weights` is verl's training engine. Returns rank 0's figures."""
        plan, failure = _FAILED, None
        if self._rank == 0:
            try:
                _refuse_adapters(weights)
                plan = self._plan(global_steps)
            except Exception as error:
                failure = error
        plan = tell_ranks(plan, self._device)
        if failure is not None:
            raise self._failed(failure)
        if plan == _FAILED:
            raise PeerFailedError("rank 0 of the trainer could not begin the sync; its error says why")
        try:
            return self._send(weights, plan)
        except Exception as error:
            raise self._failed(error) from error

    def _send(self, engine: Any, plan: int) -> dict[str, float] | None:
        """Runs the exports, which are collective over the trainer's ranks; rank 0 sends them."""
        writer, said_before = None, 0
        if self._rank == 0:
            assert self._mirror is not None
            said_before = self._joined().bytes_said
            writer = ChunkWriter(
                self._joined(),
                self._mirror,
                stream=self._stream,
                base=self._version,
                seed=plan == _SEED,
                chunk_bytes=min(self.bucket_size, _CHUNK_BYTES),
                threads=self._threads,
                timeout=self._timeout,
            )
        if plan == _SEED:
            send_full(engine.get_per_tensor_param()[0], self._dtype, writer.add_full if writer else None)
        else:
            Gatherer(self._batch_gather, self.bucket_size, writer).run(engine.get_per_tensor_param_delta_shard()[0])
        if writer is not None:
            writer.flush()
        if plan == _STEADY_VERIFY:
            send_full(engine.get_per_tensor_param()[0], self._dtype, writer.compare if writer else None)
        if writer is not None and writer.failure is None:
            group = self._joined()
            group.say("end", {"chunks": writer.totals.chunks})
            group.vote()
        if plan == _SEED:
            # Weights do not move during a sync: the snapshots are what was sent.
            engine.prime_delta_snapshots()
        if writer is None:
            return None
        if writer.failure is not None:
            raise writer.failure
        self._version += 1
        return metrics_of(writer.totals, self._joined().bytes_said - said_before, plan == _SEED)

    def _plan(self, step: int | None) -> int:
        group = self._joined()
        hellos = group.greet(Hello(self._stream, self._version, step))
        seed = not self._stream or any(
            (hello.stream, hello.version) != (self._stream, self._version) for hello in hellos[1:]
        )
        verify = False
        if seed:
            self._stream, self._version, self._steady = secrets.token_hex(16), 0, 0
            self._mirror = Mirror(_INSTEAD)
        else:
            self._steady += 1
            verify = self._verify_every > 0 and self._steady % self._verify_every == 0
        group.begin({"seed": seed, "verify": verify, "stream": self._stream, "base": self._version})
        return _SEED if seed else _STEADY_VERIFY if verify else _STEADY

    # The rollout workers.

    def receive_weights(self, global_steps: int | None = None) -> Iterator[Flush]:
        """Yields the flushes of one sync, after all of it has been received and verified on every rank.

        A caller that stops before the end has failed: everything is sent again next time.
        """
        group = self._joined()
        stream, version = self._stream, self._version
        if group.leader and self._mirror is None:
            stream, version = "", 0
        self._stream = ""  # Until the rollout has taken all of it.
        try:
            group.greet(Hello(stream, version, global_steps))
            begin = group.hear_begin()
            seed, verify, stream, base = _begin_fields(begin)
            reader = self._reader(group, seed, stream, base) if group.leader else None
            while (message := group.hear("chunk", "end"))["kind"] == "chunk":
                if reader is not None:
                    reader.read(message.get("tensors"))
            if reader is not None and message.get("chunks") != reader.chunks:
                raise IncompleteError(f"{reader.chunks} chunks came of {message.get('chunks')}", "sync")
            group.vote()
        except Exception as error:
            raise self._failed(error) from error
        yield from self._hand_over(group, reader, seed, verify)
        self._stream, self._version = stream, base + 1

    def _reader(self, group: Group, seed: bool, stream: str, base: int) -> ChunkReader:
        if seed:
            self._mirror = None  # The memory of the old one first.
            self._mirror = Mirror(_INSTEAD)
        assert self._mirror is not None
        return ChunkReader(
            group,
            self._mirror,
            stream=stream,
            base=base,
            seed=seed,
            threads=self._threads,
            timeout=self._timeout,
        )

    def _hand_over(self, group: Group, reader: ChunkReader | None, seed: bool, verify: bool) -> Iterator[Flush]:
        assert group.node is not None
        neighbours = Neighbours(group.node, self._shared_dir, self._timeout)
        try:
            if reader is None:
                while (taken := neighbours.take()) is not None:
                    yield taken[0].named(self._device), taken[1]
                return
            for payload, is_last in self._payloads(reader, seed, verify):
                neighbours.give(payload, is_last)
                yield payload.named(self._device), is_last
            neighbours.give(None, True)
        except GeneratorExit:
            group.give_up("a server of this node failed while it took the weights; its own error says why")
            raise
        except Exception as error:
            group.give_up(f"the weights could not be handed over on this node: {error}")
            raise

    def _payloads(self, reader: ChunkReader, seed: bool, verify: bool) -> Iterator[tuple[Payload, bool]]:
        mirror = self._mirror
        assert mirror is not None
        sparse = [] if seed else list(sparse_flushes(reader.changed, self.bucket_size))
        dense = list(dense_flushes(mirror, self.bucket_size)) if seed or verify else []
        left = len(sparse) + len(dense)
        for changes in sparse:
            left -= 1
            yield sparse_payload(changes), left == 0
        for names in dense:
            left -= 1
            yield dense_payload(mirror, names, verify=verify, is_last=left == 0), left == 0

    # Both.

    def _joined(self) -> Group:
        group = self._group
        if group is None or not group.healthy:
            raise UsageError("no group: verl's manager has to call init_process_group before each sync")
        return group

    def _failed(self, error: Exception) -> Exception:
        """Leaves the group, with the reason for the others; the next sync meets anew, and sends everything."""
        self._stream = ""
        consequence = "nothing of this sync is applied, the next one sends everything"
        return error if self._group is None else self._group.fail(error, consequence)

    def _own_address(self) -> str:
        return str(ray.util.get_node_ip_address()).strip("[]")


def _refuse_adapters(engine: Any) -> None:
    """Raises UnsupportedError for a LoRA trainer: verl's export of shards names other tensors than that of whole ones
    then (A and B beside the base, not merged), and servers that take its flushes have no route for adapters.
    """
    config = getattr(engine, "model_config", None)
    if getattr(config, "lora_rank", 0) > 0 or (getattr(config, "lora", None) or {}).get("rank", 0) > 0:
        raise UnsupportedError(
            "verl's delta_sharded has no LoRA: let the rollout share the trainer's GPUs (checkpoint_engine.backend="
            "naive), where verl hands over the adapter itself, or take another backend with model.lora.merge=True"
        )


def _begin_fields(message: dict[str, Any]) -> tuple[bool, bool, str, int]:
    seed, verify, stream, base = (message.get(name) for name in ("seed", "verify", "stream", "base"))
    if type(seed) is not bool or type(verify) is not bool or type(stream) is not str or type(base) is not int:
        raise GroupMismatchError("it does not say what to receive: install the same sparsecast everywhere", "begin")
    return seed, verify, stream, base
