# SPDX-License-Identifier: Apache-2.0
"""verl's checkpoint engine of shards: changed positions and values, as flushes of verl's own `delta_sharded`."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

from sparsecast.errors import PeerFailedError, UnsupportedError

from .._checkpoint_group import Group, Plan
from .._mirror import Mirror
from .._node_files import NodeFiles
from .group import VerlEngine
from .receiver import (
    Changed,
    ChangeReader,
    Flush,
    Neighbours,
    Payload,
    dense_flushes,
    dense_payload,
    sparse_flushes,
    sparse_payload,
)
from .sender import ExportWriter, Gatherer, consume_full, metrics_of, tell_ranks

_FAILED, _SEED, _STEADY, _STEADY_VERIFY = range(4)


class SparsecastCheckpointEngine(VerlEngine[ChangeReader]):
    """verl's checkpoint engine by sparsecast. Its options are under `checkpoint_engine.engine_kwargs.delta_sharded`:

    - `channels`: transport that carries records: "control" (TCP, encrypted; the default) or "nccl".
    - `log`: location of a delta log that carries the records in place of `channels`: a directory that all nodes see, or
      "s3://bucket/prefix"; or a mapping of `location`, `key`, `trusted_keys`, `mirror` and `timeout` of a `Log`.
    - `positions`: encoding of positions in the log: "packed" (the default), which servers with several workers can
      follow, or "auto", which is smaller.
    - `timeout`: seconds after which a wait for another rank ends (600).
    - `threads`: number of threads that encode and decode (0, the default: one for each core, at most 8).
    - `interface`: name or address of the network interface.
    - `shared_dir`: directory where the leader of a node passes flushes on to the other rollout workers ("/dev/shm").
    - `verify_every`: number of syncs after which all weights are verified: the trainer compares its full export with
      the weights that it has sent, and SGLang compares its weights with them (0: never; verl refuses it for vLLM).
    - `batch_gather`: number of entries that are gathered on rank 0 at once (32).
    - `rollout_dtype`: dtype of floating-point tensors at the rollout workers ("bfloat16").
    - `encoding`, `group_name`, `rebuild_group`, `multi_sender`: options of verl's own engine, which are ignored here.
    """

    wire_format = "delta_flush"
    options_at = "engine_kwargs.delta_sharded"
    without_copy = "take verl's own delta_sharded, which has no copy, by leaving out custom_backend_module"

    def __init__(
        self,
        bucket_size: int,
        is_master: bool = False,
        *,
        verify_every: int = 0,
        batch_gather: int = 32,
        encoding: str = "indices",
        group_name: str = "default",
        rebuild_group: bool = False,
        multi_sender: bool = False,
        **options: Any,
    ) -> None:
        del encoding, group_name, rebuild_group, multi_sender
        super().__init__(bucket_size, is_master, **options)
        self._verify_every = int(verify_every)
        self._batch_gather = int(batch_gather)
        self._steady = 0

    # The trainer.

    async def send_weights(self, weights: Any, global_steps: int | None = None) -> dict[str, float] | None:
        """Runs one sync on a rank of the trainer; `weights` is verl's training engine, and `global_steps` the training
        step. Returns the figures of the sync on rank 0, and None on other ranks.
        """
        plan, failure = None, None
        if self._rank == 0:
            try:
                _refuse_adapters(weights)
                plan = self._begin_sending(global_steps)
            except Exception as error:
                failure = error
        kind = _FAILED if plan is None else _SEED if plan.seed else _STEADY_VERIFY if plan.verify else _STEADY
        kind = tell_ranks(kind, self._device)
        if failure is not None:
            raise self._failed(failure)
        if kind == _FAILED:
            raise PeerFailedError("rank 0 of the trainer could not begin the sync; its error says why")
        try:
            return self._send(weights, kind, plan)
        except Exception as error:
            raise self._failed(error) from error

    def _begin_sending(self, step: int | None) -> Plan:
        self._steady += 1
        plan = self._begin(step, self._verify_every > 0 and self._steady % self._verify_every == 0)
        if plan.seed:
            self._steady = 0
        return plan

    def _send(self, engine: Any, kind: int, plan: Plan | None) -> dict[str, float] | None:
        """Runs the exports of verl, which are collective over the trainer's ranks. Rank 0, which alone has a plan,
        sends them and returns the figures of the sync.
        """
        writer = None
        if plan is not None:
            # Not `_joined`: what breaks the group from here on must not keep this rank from the exports.
            assert self._group is not None and self._mirror is not None
            writer = ExportWriter(self._group, self._mirror, plan, self.bucket_size, self._threads, self._log_end)
        if kind == _SEED:
            consume_full(
                engine.get_per_tensor_param()[0], self._dtype, partial(writer.take, writer.add_full) if writer else None
            )
        else:
            Gatherer(self._batch_gather, self.bucket_size, writer).run(engine.get_per_tensor_param_delta_shard()[0])
        if writer is not None:
            writer.take(writer.flush)
        if kind == _STEADY_VERIFY:
            consume_full(
                engine.get_per_tensor_param()[0], self._dtype, partial(writer.take, writer.compare) if writer else None
            )
        if writer is not None and writer.failure is None:
            writer.finish()
        if kind == _SEED:
            # Weights do not move during a sync: the snapshots are what was sent.
            engine.prime_delta_snapshots()
        if writer is None or plan is None:
            return None
        if writer.failure is not None:
            raise writer.failure
        self._commit(plan)
        return metrics_of(writer.totals, writer.group.message_bytes, plan.seed)

    # The rollout workers.

    def receive_weights(self, global_steps: int | None = None) -> Iterator[Flush]:
        """Receives one sync, and then yields its flushes, once every rank has received and verified the whole version.

        If the caller stops before the end, this counts as a failure, and the next sync sends everything.
        """
        group = self._joined()
        plan, reader = self._receive(global_steps)
        yield from self._hand_over(group, plan, reader)
        self._commit(plan)

    def _has_copy(self, group: Group) -> bool:
        return group.rank == 0 or group.leader

    def _reader(self, group: Group, mirror: Mirror, plan: Plan) -> ChangeReader:
        return ChangeReader(group, mirror, plan, self._threads, self._log_end)

    def _hand_over(self, group: Group, plan: Plan, reader: ChangeReader | None) -> Iterator[Flush]:
        files = NodeFiles(group.node, self._shared_dir, f"{self.options_at}.shared_dir", self._timeout)
        neighbours = Neighbours(group.node, files, self._timeout)
        try:
            if reader is None:
                for payload, is_last in neighbours.take():
                    yield payload.named(self._device), is_last
                return
            sparse = [] if plan.seed else list(sparse_flushes(reader.changed, self.bucket_size))
            dense = list(dense_flushes(reader.mirror, self.bucket_size)) if plan.seed or plan.verify else []
            count = len(sparse) + len(dense)
            neighbours.give_count(count)
            for number, payload in enumerate(_payloads(reader.mirror, sparse, dense, plan.verify), 1):
                neighbours.give(payload)
                yield payload.named(self._device), number == count
        except GeneratorExit:
            group.give_up("a server of this node failed while it took the weights; its own error says why")
            raise
        except Exception as error:
            group.give_up(f"the weights could not be handed over on this node: {error}")
            raise


def _payloads(mirror: Mirror, sparse: list[list[Changed]], dense: list[list[str]], verify: bool) -> Iterator[Payload]:
    for changes in sparse:
        yield sparse_payload(changes)
    for names in dense:
        yield dense_payload(mirror, names, verify=verify, is_last=names is dense[-1])


def _refuse_adapters(engine: Any) -> None:
    """Raises UnsupportedError for a LoRA trainer, because verl's two exports disagree there: the export of shards has
    A, B and the base, which are not merged, and the export of whole tensors has other names. Also, servers that take
    verl's flushes have no route for adapters.
    """
    config = getattr(engine, "model_config", None)
    if getattr(config, "lora_rank", 0) > 0 or (getattr(config, "lora", None) or {}).get("rank", 0) > 0:
        raise UnsupportedError(
            "verl's delta_sharded has no LoRA: let the rollout share the trainer's GPUs (checkpoint_engine.backend="
            "naive), where verl hands over the adapter itself, or take another backend with model.lora.merge=True"
        )
