# SPDX-License-Identifier: Apache-2.0
r"""TRL over sparsecast: `AsyncGRPOTrainer` by an argument, trainers in server mode by one call (docs/integrations.md).

    AsyncGRPOTrainer(..., weight_transfer=WeightTransfer("http://localhost:8000"))

    with sparsecast.integrations.trl.enable():
        GRPOTrainer(..., args=GRPOConfig(use_vllm=True, vllm_mode="server", ...)).train()

The server is `vllm serve` with `--weight-transfer-config '{"backend": "sparsecast"}'`. With `log="s3://bucket/run"` the
weights go to a delta log instead, and any number of servers follow it by themselves (`SPARSECAST_FOLLOW`).

TRL gathers every parameter and hands it to rank 0, which alone talks to servers; so rank 0 sends, and keeps two copies
of the weights in the dtype of the server, in host memory. A trainer of several ranks that should not gather uses
`sparsecast.torch.Publisher` and `DistributedSource` itself (docs/control.md).

Adapters (PEFT): `enable(adapter=ServedAdapter(...))` sends them as they are to a server with `--enable-lora`. Otherwise
TRL merges them into the base weights for the send, and only the changes of the merged weights travel.
"""

from __future__ import annotations

import dataclasses
import importlib.metadata
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any

from sparsecast.control import Endpoint, SyncPolicy, SyncReport
from sparsecast.errors import UnsupportedError, UsageError
from sparsecast.torch import Log, PublishReport
from sparsecast.transports import AnyPath

from ._adapter_sync import AdapterReport, ServedAdapter
from ._gathered import Rename, WireDtype
from ._gathered_sync import First, GatheredSync, SyncOptions
from ._log_sync import LogOptions, LogSync

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


def _log_options(log: AnyPath | Log, given: Mapping[str, Any]) -> LogOptions:
    """Returns the options of a transfer to a log. Raises UsageError for an option that is only for transfers to
    servers.
    """
    known = {field.name for field in dataclasses.fields(LogOptions)}
    if strange := sorted(set(given) - known):
        holding = ", ".join(sorted(known - {"log"}))
        raise UsageError(f"with log= there is no option {strange[0]}: servers follow by themselves, and {holding} hold")
    return LogOptions(log=log, **given)


class WeightTransfer:
    """Weight transfer for `AsyncGRPOTrainer(weight_transfer=...)` (TRL's `WeightTransferProtocol`).

    servers   base URL of the vLLM server (the trainer's `vllm_server_base_url`), or several URLs or endpoints of the
              control plane: `Endpoint("10.0.0.7", 8000, kind="vllm", token=...)`. An SGLang endpoint gets weights as
              well, but TRL's own rollout worker talks to vLLM only. With `log` no server needs to be named; servers
              that are named are told the number of each version, and must serve it.
    log       directory or "s3://bucket/prefix" of a delta log that servers follow, or a `sparsecast.torch.Log`.
    options   the fields of `SyncOptions`: host, port, channels, policy, wire_dtype, rename, may_miss, first, wait,
              on_report. With `log` the fields of `LogOptions`: durable, positions, wire_dtype, rename, wait, on_report.

    The control plane, or the server that follows the log, pauses generation by itself, and only while a received update
    is applied. Therefore `pause` and `resume` do nothing, and generation goes on while TRL gathers and sends weights.
    """

    def __init__(
        self, servers: str | Endpoint | Iterable[str | Endpoint] = (), *, log: AnyPath | Log = "", **options: Any
    ) -> None:
        require_trl()
        self._sync: GatheredSync | LogSync
        if log:
            given = [servers] if isinstance(servers, (str, Endpoint)) else list(servers)
            self._sync = LogSync(given, _log_options(log, options))
        else:
            self._sync = GatheredSync(servers, SyncOptions(**options))
        self._last: SyncReport | PublishReport | None = None

    @property
    def last_report(self) -> SyncReport | None:
        """Report of the last sync that succeeded; None with `log`."""
        return self._last if isinstance(self._last, SyncReport) else None

    @property
    def last_publication(self) -> PublishReport | None:
        """With `log`, the report of the last version that `send_weights` has published and the named servers serve.
        None without `log`, before the first version, and with durable=False.
        """
        return self._last if isinstance(self._last, PublishReport) else None

    def init_weight_transfer(self) -> None:
        """Waits for the servers and checks that they were started in the right way. Raises an error that says what to
        do if one was not.
        """
        self._sync.check()

    def pause(self) -> None:
        """Does nothing: the control plane, or the server that follows the log, pauses generation by itself."""

    def send_weights(self, iterator: Iterator[tuple[str, torch.Tensor]]) -> None:
        """Sends what changed since the last call, and returns when every server has verified it. Raises SyncError if a
        server or the sync failed.

        With `log` it returns when the version is durable and the named servers serve it; with durable=False it returns
        when the changes are encoded, and the next call raises the error of this version, if it fails. It then raises
        the errors of the log, and EndpointError for a server.
        """
        self._last = self._sync.send(iterator)

    def resume(self) -> None:
        """Does nothing: the control plane, or the server that follows the log, resumes generation by itself."""

    def destroy(self) -> None:
        """Disconnects from the servers, which keep serving the weights that they have. With `log` it waits until the
        last version is in the log, and raises the error of that version, if it failed.
        """
        self._sync.close()


class Enabled:
    """Result of `enable`: a context that calls `disable` at its end.

    last_report          report of the last sync to servers that succeeded, of any trainer; None before the first.
    last_publication     report of the last version that was published, with `log`; None before it, and with
                         durable=False.
    last_adapter_report  report of the last sync of an adapter, with `adapter`; None before it.
    """

    def __init__(
        self, options: SyncOptions | LogOptions, also: Sequence[str | Endpoint], adapter: ServedAdapter | None
    ) -> None:
        from ._trl_client import install

        self.options = options
        self.also = tuple(also)
        self.adapter = adapter
        self.last_report: SyncReport | None = None
        self.last_publication: PublishReport | None = None
        self.last_adapter_report: AdapterReport | None = None
        self._undo = install(self)

    def keep(self, report: SyncReport | PublishReport | None) -> None:
        """Keeps the report of a sync of one of the trainers as `last_report` or `last_publication`."""
        if isinstance(report, SyncReport):
            self.last_report = report
        else:
            self.last_publication = report

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
    log: AnyPath | Log = "",
    durable: bool = True,
    positions: str = "auto",
    also: Sequence[str | Endpoint] = (),
    adapter: ServedAdapter | None = None,
    host: str = "",
    channels: str = "control",
    policy: SyncPolicy | None = None,
    wire_dtype: WireDtype | None = None,
    rename: Rename | None = None,
    may_miss: Sequence[str] = (),
    first: First = "auto",
    on_report: Callable[[SyncReport], None] | Callable[[PublishReport], None] | None = None,
) -> Enabled:
    """Makes TRL's trainers that use a vLLM server (`vllm_mode="server"`: GRPO, RLOO, ...) send weights by sparsecast.

    log        directory or "s3://bucket/prefix" of a delta log, or a `sparsecast.torch.Log`: weights go there, and the
               server that generates is told the number of each version. Other servers may follow the log as well.
    durable    with `log`, True: a sync returns when the version is durable and the servers that are told serve it.
               False: it returns when the changes are encoded, and the next sync waits for the rest and raises its
               error.
    positions  with `log`: "packed" if servers with several workers follow it (docs/delta-log.md).
    also       more servers that get the weights, or with `log` the version number, in addition to the server that
               generates (a judge, SGLang servers).
    adapter    options for sending the trainer's PEFT adapter as it is to servers with `--enable-lora`, which then
               generate with it; base weights are neither merged nor sent. Of the other arguments only `also` may be
               given with it.

    The other arguments are those of `SyncOptions`; with `log` only wire_dtype, rename and on_report may be given, as
    for `LogOptions`. Ranks meet at the trainer's `vllm_group_port`, and the trainer waits for its server as long as
    `vllm_server_timeout` says. Call this function on every rank before the trainer is made. TRL has no hook for this
    purpose, so its method `VLLMClient.init_communicator` (with `adapter` also `VLLMGeneration._init_vllm`) is replaced
    until `disable`; trainers that are made until then keep what they have. `vllm_mode="colocate"` is not affected.

    Raises UnsupportedError for another release of TRL, and UsageError if sparsecast is enabled already or if arguments
    are given that do not go with `adapter` or `log`.
    """
    global _enabled
    require_trl()
    if _enabled is not None:
        raise UsageError("sparsecast is enabled in TRL already: call disable() before you enable it with other options")
    of_group: dict[str, Any] = {"host": host, "channels": channels, "may_miss": may_miss, "first": first}
    if policy is not None:
        of_group["policy"] = policy
    of_both: dict[str, Any] = {"wire_dtype": wire_dtype, "rename": rename, "on_report": on_report}
    options: SyncOptions | LogOptions = SyncOptions(**of_group, **of_both)
    of_log = {"durable": durable, "positions": positions}
    is_of_log = of_log != {"durable": True, "positions": "auto"}
    if adapter is not None and (log or is_of_log or options != SyncOptions()):
        raise UsageError("with adapter= only also= holds: ServedAdapter has its own options")
    if log:
        if SyncOptions(**of_group) != SyncOptions():
            raise UsageError("with log= servers follow by themselves: host, channels, policy, may_miss and first go")
        options = LogOptions(log=log, durable=durable, positions=positions, wait=0.0, **of_both)
    elif is_of_log:
        raise UsageError("durable= and positions= are for weights that go to a log: say log=, or leave them out")
    _enabled = Enabled(options, also, adapter)
    return _enabled


def disable() -> None:
    """Undoes `enable`. Does nothing if sparsecast is not enabled."""
    global _enabled
    enabled, _enabled = _enabled, None
    if enabled is not None:
        enabled._undo()
