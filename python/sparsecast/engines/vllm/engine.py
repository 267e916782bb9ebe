# SPDX-License-Identifier: Apache-2.0
"""vLLM receiver: a `WeightTransferEngine` that patches the live weights of a worker in place.

It is registered as backend "sparsecast" (`plugin`). The calls of vLLM's own life cycle mean:

    init_weight_transfer_engine   trace the model's loader, meet the trainer, verify the weights   (again: a new group)
    start_weight_update           begin to stage the next version; generation goes on
    update_weights                the pause: wait for the staging, apply, verify
    finish_weight_update          check that the update was applied

vLLM's layerwise reload is not used: parameters stay where they are, with the addresses that CUDA graphs captured, and
post-processing runs again only over modules that have computed tensors from their weights (`recompute`).
Post-processing must change nothing in the parameters themselves; otherwise `trace`, or the comparison with the
checkpoint, refuses the model.
"""

from __future__ import annotations

import contextlib
import os
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

import torch
from vllm.distributed.parallel_state import get_world_group
from vllm.distributed.weight_transfer.base import (
    WeightTransferEngine,
    WeightTransferInitInfo,
    WeightTransferUpdateInfo,
)

from sparsecast.engines.agreement import is_so_anywhere, raise_if_any_failed, settle_alike
from sparsecast.engines.fence import TrainerFence
from sparsecast.engines.receiver import Receipt, Receiver
from sparsecast.engines.refresh.recompute import Recomputation, report
from sparsecast.engines.release import refuse_other_release
from sparsecast.engines.trace.loader import CanonicalTensor, TracedLoader
from sparsecast.engines.vllm.error_codes import with_code
from sparsecast.engines.vllm.live_model import LiveModel, TraceRequest, draft_model
from sparsecast.engines.vllm.model import refuse_moving_experts, refuse_new_ties
from sparsecast.engines.vllm.plugin import add_follow_methods, check_version, say_what_is_missing
from sparsecast.errors import DirtyError, UsageError, VersionGapError
from sparsecast.transports import Channels, World

if TYPE_CHECKING:
    from vllm.config import VllmConfig
    from vllm.config.weight_transfer import WeightTransferConfig

SECRET_VARIABLE = "SPARSECAST_SECRET"
"""Environment variable of the workers that holds the secret, for callers that do not send it over HTTP."""


@dataclass
class SparsecastInitInfo(WeightTransferInitInfo):
    """Data that workers need to meet a trainer, as plain JSON. In the numbering of the world's ranks, the ranks of the
    trainer come first, followed by those of each engine.
    """

    host: str
    """Host where rank 0 of the trainer listens."""
    port: int
    world_size: int
    rank_offset: int
    """Rank in the world of worker 0 of this engine; with data parallelism, of its first replica."""
    tensors: list[list[Any]]
    """Tensor table of the trainer: [name, safetensors dtype, shape] each. The same in every call."""
    version: int = 0
    """Version that the engine holds; at the first call, the version of the checkpoint that it was started from."""
    needs_anchor: bool = False
    """Whether the memory holds no version (its weights were released, or come from elsewhere): the trainer seeds it."""
    ties: list[list[str]] = field(default_factory=list)
    """Pairs [alias, original] of names that are one tensor at the trainer."""
    secret: str = field(default="", repr=False)
    """Shared secret; if empty, the value of the environment variable SPARSECAST_SECRET of the workers."""
    generation: int = 0
    """Generation of the group: one more at every call."""
    trainer: str = ""
    """Name that no other trainer has (`TrainerFence`). Empty for a trainer without a name: any trainer may follow it,
    and it shuts no other trainer out.
    """
    channels: Channels = "control"
    interface: str = ""
    engine: str = "vllm"
    """Name of this engine in the world, unique there."""
    proof: Literal["checkpoint", "trust"] = "checkpoint"
    """How it is made sure that no kernel has repacked weights behind their loader: "checkpoint" compares live memory
    with the files that vLLM was started from; "trust" takes the caller's word, for engines started without files."""
    may_miss: list[str] = field(default_factory=list)
    """Patterns (fnmatch) of parameters of vLLM that the trainer does not have; names of a draft's parameters begin with
    "draft."."""
    modes: dict[str, str] = field(default_factory=dict)
    """Pattern (fnmatch) of names in `tensors` and mode ("in_place", "shadow", "nan_masked", "dense") where the choice
    is not left to vLLM's loader: docs/engines.md, "Modes"."""
    draft: Literal["follow", "keep"] = "follow"
    """Whether a draft model follows the tensors of it that the trainer has, or stays as it is."""
    draft_prefix: str = ""
    """Prefix of the draft's names in `tensors`, for a draft with files of its own (EAGLE, a small model) that the
    trainer trains. MTP heads in the target's files need none."""
    reach_timeout: float | None = None
    """Seconds in which the trainer's rank 0 must be reached; None: `timeout`."""
    timeout: float = 300.0
    """Seconds for meeting, and for every later update."""
    entry_bytes: int | None = None
    """Most bytes of a worker's device memory for decoded changes between staging and apply; None: a sixteenth of its
    weights. For the first call."""
    release: str = ""
    """Version of sparsecast at the trainer; refused if it differs in more than the patch number. Empty: not compared.
    """

    def __post_init__(self) -> None:
        if self.proof not in ("checkpoint", "trust"):
            raise ValueError(f"proof {self.proof!r} is neither 'checkpoint' nor 'trust'")
        if self.draft not in ("follow", "keep"):
            raise ValueError(f"draft {self.draft!r} is neither 'follow' nor 'keep'")
        if self.entry_bytes is not None and self.entry_bytes < 0:
            raise ValueError(f"entry_bytes {self.entry_bytes} is negative")
        if not self.tensors:
            raise ValueError("tensors is empty: the engine needs the trainer's table")
        for entry in self.tensors:
            if len(entry) != 3 or not isinstance(entry[0], str) or not isinstance(entry[1], str):
                raise ValueError(f"tensors: {entry!r} is not [name, dtype, shape]")
        if not self.secret and not os.environ.get(SECRET_VARIABLE):
            raise ValueError(f"no secret: neither in the init info nor in the workers' {SECRET_VARIABLE}")

    def table(self) -> list[CanonicalTensor]:
        return [(name, dtype, tuple(int(n) for n in shape)) for name, dtype, shape in self.tensors]

    def request(self) -> TraceRequest:
        """Returns the tensors that the address map of the model must cover, and how the trace is to treat them."""
        return TraceRequest(self.table(), self.may_miss, self.modes, self.draft == "follow", self.draft_prefix)

    def world(self, worker: int) -> World:
        """Returns the world for worker number `worker` of the engine, with the rank of that worker."""
        return World(
            host=self.host,
            port=self.port,
            rank_offset=self.rank_offset + worker,
            size=self.world_size,
            secret=self.secret or os.environ[SECRET_VARIABLE],
            generation=self.generation,
            interface=self.interface,
            channels=self.channels,
            reach_timeout=self.reach_timeout,
        )


@dataclass
class SparsecastUpdateInfo(WeightTransferUpdateInfo):
    """Arguments of one update, as plain JSON. The changes themselves travel between the ranks, not here."""

    base_version: int | None = None
    """Version from which the trainer updates; an engine at another version fails. None: not checked."""


class SparsecastWeightTransferEngine(WeightTransferEngine[SparsecastInitInfo, SparsecastUpdateInfo]):
    """Receiver of one vLLM worker, behind vLLM's interface of weight-transfer backends: patches the live weights of the
    worker in place. `receiver` has the version, the state and the receipts; it is None before the first join.
    """

    init_info_cls = SparsecastInitInfo
    update_info_cls = SparsecastUpdateInfo
    supports_draft_weight_update = False  # The draft follows with the target, in the same update.

    def __init__(
        self, config: WeightTransferConfig, vllm_config: VllmConfig, device: torch.device, model: torch.nn.Module
    ) -> None:
        check_version()
        super().__init__(config, vllm_config, device, model)
        add_follow_methods()  # The worker may be told to follow a log.
        self.receiver: Receiver | None = None
        self.traced: TracedLoader | None = None
        self.recomputations: list[Recomputation] = []
        """Recomputations of what vLLM computes from the weights of the target, and of a draft that follows."""
        self.followed = ""
        """Location of the log that the worker follows; empty if it follows none."""
        self.live = LiveModel(vllm_config, model)
        self._asked: tuple[list[CanonicalTensor], dict[str, str]] | None = None  # Table and modes of the receiver.
        self._fence = TrainerFence()
        self._timeout = 300.0
        self._in_update = False
        self._map_verified = False  # Compared once; later the weights differ from the files.
        self._shadows: dict[str, torch.Tensor] = {}  # Copies that have been filled.

    @with_code
    def parse_init_info(self, init_dict: dict[str, Any]) -> SparsecastInitInfo:
        """Returns the init info with the fields of `init_dict`. Checks the trainer's version first, because another
        version may have other fields: raises UnsupportedError if it does not work with this one.
        """
        refuse_other_release(init_dict.get("release", ""))
        if "follow" in init_dict:
            raise UsageError(
                "follow: the API process of the server leads workers that follow a log: start vLLM with "
                "VLLM_PLUGINS=sparsecast"
            )
        parsed: SparsecastInitInfo = super().parse_init_info(init_dict)
        return parsed

    # -- vLLM's life cycle ---------------------------------------------------------------------------------------

    @with_code
    def init_transfer_engine(self, init_info: SparsecastInitInfo) -> None:
        """Joins a group; collective over the workers of the engine and the trainer. A later call joins the next group.

        Raises UnsupportedError naming tensors that cannot be patched, UsageError for names that do not fit,
        UnauthenticatedError for another secret, DeadlineError if not all ranks come, DigestMismatchError if the weights
        differ from their version, and FencedError for a trainer that joined before the current one. Workers that did
        not fail themselves raise PeerFailedError.
        """
        say_what_is_missing()
        refuse_moving_experts(self.parallel_config)
        if self.followed:
            raise UsageError(
                f"a server takes its weights from a log or from a trainer, not from both, and this one follows "
                f"{self.followed} until it ends"
            )
        group = get_world_group()
        raise_if_any_failed(self._fence.refusal(init_info.engine, init_info.trainer), group.cpu_group)
        self._timeout = init_info.timeout
        if self.receiver is not None and self.receiver.state in ("receiving", "staged"):
            self.receiver.abandon("the engine joins another group", init_info.timeout)
        self._in_update = False
        if self.receiver is not None and init_info.needs_anchor:
            self.receiver.close(init_info.timeout)  # Its knowledge of the memory is no longer valid.
        if is_so_anywhere(self.receiver is not None and self.receiver.has_moved, group.cpu_group):
            assert self.receiver is not None
            self.receiver.close(init_info.timeout)  # The model has been given other memory: it is traced again.
        asked = (init_info.table(), init_info.modes)
        if self.receiver is None or self.receiver.state == "closed" or asked != self._asked:
            self.receiver = self._make_receiver(init_info, group.cpu_group, group.rank_in_group, group.world_size)
            self._asked = asked
        worker = self._replica(group.world_size) * group.world_size + group.rank_in_group
        self.receiver.join(init_info.world(worker), init_info.timeout)
        self._fence.follow(init_info.trainer)
        if self.traced is not None:
            self._shadows = self.traced.kept()

    @with_code
    def start_weight_update(self) -> None:
        """Starts staging the next version in the background, while the trainer runs its sync(). Generation goes on."""
        self._joined().start_receive(self._timeout)
        self._in_update = True

    def update_weights(self, update_info: dict[str, Any]) -> None:
        """Applies the staged version. When the call returns, the version has been verified on the device."""
        self.receive_weights(self.parse_update_info(update_info))

    @with_code
    def receive_weights(self, update_info: SparsecastUpdateInfo) -> None:
        """Runs the pause: waits for the staging, applies the version, and verifies it. Raises VersionGapError if the
        worker is at another version than the update's base. After a failure the weights are still of the previous
        version, unless `status` says that they are "dirty" or names a version in doubt; all workers of the engine, over
        which this is collective, hold the same one.
        """
        receiver, group = self._joined(), get_world_group()
        failure: Exception | None = None
        try:
            self._apply(receiver, update_info)
        except Exception as error:
            failure = error
        if group.world_size > 1:
            settle_alike(receiver, failure is None, group.cpu_group)
        if failure is not None:
            raise failure
        self._in_update = False

    def _apply(self, receiver: Receiver, update_info: SparsecastUpdateInfo) -> None:
        if update_info.base_version is not None and update_info.base_version != receiver.version:
            words = (
                f"engine {receiver.engine!r}, rank {receiver.rank}, is on version {receiver.version}, and the update "
                f"starts from {update_info.base_version}"
            )
            receiver.abandon(words, self._timeout)
            raise VersionGapError(words)
        receiver.wait_staged(self._timeout)
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)  # Work that vLLM has enqueued still reads the version before.
        receiver.apply(self._timeout)

    @with_code
    def finish_weight_update(self) -> None:
        """Ends the update. If the staged version was not applied, drops it and raises UsageError."""
        if self._in_update:
            self._in_update = False
            self._joined().abandon("finish_weight_update without update_weights", self._timeout)
            raise UsageError("finish_weight_update without update_weights: the staged version was dropped")

    def shutdown(self) -> None:
        """Leaves the group. The weights stay at the version that was last verified."""
        if self.receiver is not None:
            self.receiver.close(self._timeout)

    # -- more than vLLM asks for ---------------------------------------------------------------------------------

    def status(self) -> dict[str, Any]:
        """Returns the status of this worker as JSON values: version, state, the numbers of the last update, and how its
        tensors are updated. Thread-safe.
        """
        receiver = self.receiver
        if receiver is None:
            return {"state": "not initialised", "is_whole": True, "held_version": None}
        receipt = receiver.last_receipt
        return {
            **receiver.status(),
            "pause_seconds": receipt.pause_seconds if receipt is not None else 0.0,
            "received_bytes": receipt.received_bytes if receipt is not None else 0,
            "in_place": self.traced.in_place if self.traced is not None else 0,
            **report(self.recomputations),
        }

    @with_code
    def audit(self) -> dict[str, Any]:
        """Reads all weights of this worker and compares their digest with the digest of the version that `status`
        names. Returns the status.

        Raises DirtyError naming a tensor that differs, after which only a join repairs the weights; UsageError while a
        version is being received or is staged.
        """
        receiver = self._joined()
        if receiver.state in ("receiving", "staged"):
            raise UsageError("an update is under way: audit before start_weight_update or after finish_weight_update")
        receiver.audit()
        return self.status()

    @property
    def last_receipt(self) -> Receipt | None:
        return self.receiver.last_receipt if self.receiver is not None else None

    # -- inside --------------------------------------------------------------------------------------------------

    def _replica(self, size: int) -> int:
        """Returns the number of this data-parallel replica if vLLM runs its replicas as separate engines. Returns 0 if
        they are one engine, as with expert parallelism: then the group of `size` workers has the workers of all
        replicas.
        """
        apart = size == self.parallel_config.world_size
        return int(self.parallel_config.data_parallel_index) if apart else 0

    def _joined(self) -> Receiver:
        if self.receiver is None:
            raise UsageError("init_weight_transfer_engine comes before any update")
        return self.receiver

    def _make_receiver(self, init_info: SparsecastInitInfo, cpu_group: Any, rank: int, size: int) -> Receiver:
        from sparsecast.torch.layouts import gather_layout

        verify = init_info.proof == "checkpoint" and not self._map_verified
        failure: BaseException | None = None
        traced: TracedLoader | None = None
        recomputations: list[Recomputation] = []
        try:
            traced, recomputations = self.live.trace(init_info.request(), verify=verify)
            refuse_new_ties(traced, init_info.ties)
            if not (verify or init_info.needs_anchor):
                traced.fill_shadows(self._shadows)
            for recomputation in recomputations:
                recomputation.prove(as_loaded=not init_info.needs_anchor)
            traced.require_complete(recomputations[0].derived)
            own, memories = traced.layout(node=os.uname().nodename), traced.memories()
        except BaseException as error:  # Told to the other workers, and raised on all of them.
            failure = error
        raise_if_any_failed(failure, cpu_group)
        self._map_verified = True
        assert traced is not None
        if not init_info.needs_anchor:
            self._shadows = traced.kept()
        layout = gather_layout(own, cpu_group)
        replica = self._replica(size)
        receiver = Receiver(
            f"{init_info.engine}/{replica}" if replica else init_info.engine,
            layout,
            rank,
            memories,
            version=init_info.version,
            needs_anchor=init_info.needs_anchor,
            entry_bytes=init_info.entry_bytes,
            recomputations=recomputations,
            guard=self.live.guard(traced, "the engine must join again"),
            before=self.receiver.held if self.receiver is not None else None,
        )
        self.traced, self.recomputations = traced, recomputations
        return receiver


class WorkerExtension:
    """Worker extension for `--worker-extension-cls sparsecast.engines.vllm.WorkerExtension`: adds methods to vLLM's
    workers that `/collective_rpc` can call.
    """

    _weight_update_active: bool  # vLLM's worker sets it.

    @property
    def weight_transfer_engine(self) -> WeightTransferEngine[Any, Any] | None:
        """The weight-transfer engine, which vLLM's worker sets when its models are loaded. When it is set, an engine of
        sparsecast is told how to find the draft model.
        """
        engine: WeightTransferEngine[Any, Any] | None = vars(self).get("weight_transfer_engine")
        return engine

    @weight_transfer_engine.setter
    def weight_transfer_engine(self, engine: WeightTransferEngine[Any, Any] | None) -> None:
        vars(self)["weight_transfer_engine"] = engine
        if isinstance(engine, SparsecastWeightTransferEngine):
            engine.live.find_draft = lambda: draft_model(self)

    def sparsecast_status(self) -> dict[str, Any]:
        """Returns the status of this worker, with version and state. In state "staged", the next update_weights has to
        wait only for the apply.
        """
        engine = self.weight_transfer_engine
        if not isinstance(engine, SparsecastWeightTransferEngine):
            return {"state": "not configured"}
        return engine.status()

    def sparsecast_settle(self, committed: bool) -> dict[str, Any]:
        """Decides about the version in doubt (`Receiver.settle`) while generation is paused: with `committed` it
        stands, otherwise the previous version is restored. Returns the status afterwards, in which a failure is state
        "dirty".
        """
        engine = self.weight_transfer_engine
        if isinstance(engine, SparsecastWeightTransferEngine) and engine.receiver is not None:
            with contextlib.suppress(DirtyError):  # The state says so.
                engine.receiver.settle(committed)
        return self.sparsecast_status()

    def sparsecast_leave(self) -> None:
        """Leaves the group, as vLLM's `shutdown_weight_transfer_engine` does, which workers have from vLLM 0.32 on.
        Raises UsageError during an update.
        """
        if self._weight_update_active:
            raise UsageError("workers cannot leave their group during a weight update")
        if self.weight_transfer_engine is not None:
            self.weight_transfer_engine.shutdown()

    def sparsecast_audit(self) -> dict[str, Any]:
        """Reads all weights and compares their digest with the digest of the version. Returns the status if they are
        equal; raises DirtyError otherwise.
        """
        engine = self.weight_transfer_engine
        if not isinstance(engine, SparsecastWeightTransferEngine):
            return {"state": "not configured"}
        return engine.audit()
