# SPDX-License-Identifier: Apache-2.0
r"""TRL over sparsecast: `AsyncGRPOTrainer` by an argument, trainers in server mode by one call (docs/integrations.md).

    AsyncGRPOTrainer(..., weight_transfer=WeightTransfer("http://localhost:8000"))

    with sparsecast.integrations.trl.enable():
        GRPOTrainer(..., args=GRPOConfig(use_vllm=True, vllm_mode="server", ...)).train()

The server is `vllm serve` with `--weight-transfer-config '{"backend": "sparsecast"}'`.

TRL gathers every parameter and hands it to rank 0, which alone talks to servers; so rank 0 sends, and keeps two copies
of the weights in the dtype of the server, in host memory. A trainer of several ranks that should not gather uses
`sparsecast.torch.Publisher` and `DistributedSource` itself (docs/control.md).

Adapters (PEFT): `enable(adapter=ServedAdapter(...))` sends them as they are to a server with `--enable-lora`. Otherwise
TRL merges them into the base weights for the send, and only the changes of the merged weights travel.
"""

from __future__ import annotations

import importlib.metadata
from collections.abc import Callable, Iterable, Iterator, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any

from sparsecast.control import Endpoint, SyncPolicy, SyncReport
from sparsecast.errors import UnsupportedError, UsageError

from ._adapter_sync import AdapterReport, ServedAdapter
from ._gathered import Rename, WireDtype
from ._gathered_sync import First, GatheredSync, SyncOptions

if TYPE_CHECKING:
    import torch

TRL_VERSION = "1.16"
"""Release of TRL whose hooks are used here."""

__all__ = ["TRL_VERSION", "AdapterReport", "Enabled", "ServedAdapter", "WeightTransfer", "disable", "enable"]


def require_trl() -> None:
    """Raises UnsupportedError unless TRL is installed in the release that this module is written for."""
    try:
        found = importlib.metadata.version("trl")
    except importlib.metadata.PackageNotFoundError:
        raise UnsupportedError(f"TRL is not installed: pip install 'trl=={TRL_VERSION}.*'") from None
    if found.split(".")[:2] != TRL_VERSION.split("."):
        raise UnsupportedError(
            f"sparsecast.integrations.trl is written for TRL {TRL_VERSION}, and {found} is installed: "
            f"pip install 'trl=={TRL_VERSION}.*', or a sparsecast that names {found} in docs/integrations.md"
        )


class WeightTransfer:
    """Weight transfer for `AsyncGRPOTrainer(weight_transfer=...)` (TRL's `WeightTransferProtocol`).

    servers   base URL of the vLLM server, the trainer's `vllm_server_base_url`; or several, or endpoints of the control
              plane: `Endpoint("10.0.0.7", 8000, kind="vllm", token=...)`. An SGLang endpoint gets weights as well, but
              TRL's own rollout worker speaks to vLLM only.
    options   the fields of `SyncOptions`: host, port, channels, policy, wire_dtype, rename, may_miss, first, wait,
              on_report.

    The control plane pauses a server itself, once the update lies there and only has to be applied: `pause` and
    `resume` do nothing, and generation goes on while TRL gathers and sends.
    """

    def __init__(self, servers: str | Endpoint | Iterable[str | Endpoint], **options: Any) -> None:
        require_trl()
        self._sync = GatheredSync(servers, SyncOptions(**options))
        self._last: SyncReport | None = None

    @property
    def last_report(self) -> SyncReport | None:
        """Report of the last sync that succeeded."""
        return self._last

    def init_weight_transfer(self) -> None:
        """Waits for the servers and checks how they were started. Raises an error that names the cure."""
        self._sync.check()

    def pause(self) -> None:
        """Does nothing: see the class."""

    def send_weights(self, iterator: Iterator[tuple[str, torch.Tensor]]) -> None:
        """Sends what changed since the last call; returns when every server has verified it. Raises SyncError."""
        self._last = self._sync.send(iterator)

    def resume(self) -> None:
        """Does nothing: see the class."""

    def destroy(self) -> None:
        """Leaves the servers, which go on with the weights that they have."""
        self._sync.close()


class Enabled:
    """What `enable` returns: a context that ends with `disable`.

    last_report          report of the last sync of any trainer that succeeded; None before the first.
    last_adapter_report  the same with `adapter`.
    """

    def __init__(self, options: SyncOptions, also: Sequence[str | Endpoint], adapter: ServedAdapter | None) -> None:
        from ._trl_client import install

        self.options = options
        self.also = tuple(also)
        self.adapter = adapter
        self.last_report: SyncReport | None = None
        self.last_adapter_report: AdapterReport | None = None
        self._undo = install(self)

    def __enter__(self) -> Enabled:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if _enabled is self:
            disable()


_enabled: Enabled | None = None


def enable(
    *,
    also: Sequence[str | Endpoint] = (),
    adapter: ServedAdapter | None = None,
    host: str = "",
    channels: str = "control",
    policy: SyncPolicy | None = None,
    wire_dtype: WireDtype | None = None,
    rename: Rename | None = None,
    may_miss: Sequence[str] = (),
    first: First = "auto",
    on_report: Callable[[SyncReport], None] | None = None,
) -> Enabled:
    """Makes trainers that sync to a vLLM server (`vllm_mode="server"`: GRPO, RLOO, ...) do so by sparsecast.

    also     more servers that get the weights, beside the one that generates (a judge, SGLang servers).
    adapter  sends the trainer's adapter (PEFT) as it is to servers with `--enable-lora`, and generates with it; base
             weights are neither merged nor sent. It has options of its own, and none of the others hold.

    The other arguments are those of `SyncOptions`; ranks meet at the trainer's `vllm_group_port`, and the trainer waits
    for its server as long as `vllm_server_timeout` says. Call it before the trainer is made, on every rank. TRL has no
    hook there: `VLLMClient.init_communicator` of TRL (with `adapter` `VLLMGeneration._init_vllm`, too) is replaced
    until `disable`; trainers made meanwhile keep what they have. `vllm_mode="colocate"` is not concerned.

    Raises UnsupportedError for another release of TRL, UsageError if it is enabled already, and for other options with
    `adapter`.
    """
    global _enabled
    require_trl()
    if _enabled is not None:
        raise UsageError("sparsecast is enabled in TRL already: call disable() before you enable it with other options")
    options = SyncOptions(
        host=host,
        channels=channels,
        policy=policy if policy is not None else SyncOptions.policy,
        wire_dtype=wire_dtype,
        rename=rename,
        may_miss=may_miss,
        first=first,
        on_report=on_report,
    )
    if adapter is not None and options != SyncOptions():
        raise UsageError("with adapter= only also= holds: ServedAdapter has its own options")
    _enabled = Enabled(options, also, adapter)
    return _enabled


def disable() -> None:
    """Undoes `enable`; does nothing if it is not enabled."""
    global _enabled
    enabled, _enabled = _enabled, None
    if enabled is not None:
        enabled._undo()
