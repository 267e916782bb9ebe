# SPDX-License-Identifier: Apache-2.0
"""Sends a LoRA adapter as it is from rank 0 of a trainer to vLLM servers: a delta log, and what loads each version."""

from __future__ import annotations

import contextlib
import pathlib
import tempfile
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from sparsecast.adapters import Adapter, AdapterReceiver, VllmServer
from sparsecast.adapters.follow import PASSING
from sparsecast.control import Endpoint
from sparsecast.errors import DeadlineError, Error, UnsupportedError, UsageError
from sparsecast.torch import Log, Publisher
from sparsecast.transports import AnyPath, keep_paths, path_text

from ._gathered import GatheredWeights
from ._vllm_server import LoraServer, endpoint_of, look_at_lora

_POLL_SECONDS = 0.1
_RANK_TOO_HIGH = (
    "the adapter has rank {rank}, and the server at {url} takes {most}: start it with --max-lora-rank {rank}"
)


@dataclass(frozen=True)
class AdapterReport:
    """Report of one sync of an adapter.

    version     version of the adapter's log that every server has loaded.
    changed     number of the adapter's `elements` that differ from the version before; at the first sync, all of them.
    sent_bytes  bytes of the delta; at the first sync, bytes of the whole adapter.
    seconds     duration of the sync.
    """

    version: int
    changed: int
    elements: int
    sent_bytes: int
    seconds: float


@dataclass(frozen=True, kw_only=True)
class ServedAdapter:
    """Options for sending a trainer's LoRA adapter to servers as it is, instead of merging it into the base weights.

    name        name of the adapter at the servers; the trainer's requests name it as their model.
    directory   directory where the versions are written for the servers; the trainer and the servers see it under the
                same path (on one machine, for example "/dev/shm/adapters"). Empty: every server needs a follower of the
                log, `python -m sparsecast.adapters follow`.
    log         place of a new delta log for this run: a directory or "s3://bucket/prefix". If it is empty, which needs
                a `directory`, a temporary log is used.
    description path of the file to which the adapter's description is written, for followers; by default the log's path
                with ".json".
    mirror      path of a `*.safetensors` file on this machine, which holds the newest version and from which anchors
                are made; by default a temporary file.
    key         path of a signing key for the log; None: the log is not signed.
    wire_dtype  dtype of A and B at the servers; None: the dtype in which vLLM keeps adapters.
    timeout     seconds in which a server, or its follower, must load a version, and for requests to the log.
    on_report   function that is called with the report of every sync; it must not raise.
    """

    name: str = "policy"
    directory: AnyPath = ""
    log: AnyPath = ""
    description: AnyPath = ""
    mirror: AnyPath = ""
    key: AnyPath | None = None
    wire_dtype: torch.dtype | None = None
    timeout: float = 120.0
    on_report: Callable[[AdapterReport], None] | None = None

    def __post_init__(self) -> None:
        keep_paths(self, "directory", "log", "description", "mirror", "key")
        if not self.directory and not self.log:
            raise UsageError("an adapter needs a directory that the servers see, or a log that followers read")
        if "://" in path_text(self.log) and not self.description:
            raise UsageError("followers of a log in a bucket need the adapter's description: say a file for it")


class AdapterSync:
    """Sends an adapter to servers through a delta log, version by version. Used from one thread.

    servers   URLs or endpoints of vLLM servers.
    """

    def __init__(self, servers: Sequence[str | Endpoint], options: ServedAdapter) -> None:
        self._endpoints = [each if isinstance(each, Endpoint) else endpoint_of(each) for each in servers]
        if strange := [endpoint.name for endpoint in self._endpoints if endpoint.kind != "vllm"]:
            raise UnsupportedError(f"{strange[0]} is no vLLM server: adapters go to another kind by a follower")
        self._options = options
        self._servers: list[LoraServer] = []
        self._weights: GatheredWeights | None = None
        self._adapter: Adapter | None = None
        self._publisher: Publisher | None = None
        self._receivers: dict[str, AdapterReceiver] = {}
        self._scratch: tempfile.TemporaryDirectory[str] | None = None
        self._location = ""

    def check(self, wait_seconds: float) -> None:
        """Waits until every server answers. Raises DeadlineError for a server that does not answer within
        `wait_seconds`, and UsageError or UnsupportedError for a server that does not take adapters (`look_at_lora`).
        """
        self._servers = [look_at_lora(endpoint, wait_seconds) for endpoint in self._endpoints]

    def send(self, config: Mapping[str, Any], named: Iterable[tuple[str, torch.Tensor]]) -> AdapterReport:
        """Publishes the adapter's tensors `named` (all A and B, each as a whole), and returns the report when every
        server has loaded this version.

        `config` has the fields of `adapter_config.json`, and names are the names that PEFT gives. Raises UsageError for
        other names or shapes than at the first call, UnsupportedError for an adapter that has more than A and B or that
        a server refuses, DeadlineError if no follower has brought the version to a server in time, and the errors of
        the log. After an error, the next call sends all changes since the last version.
        """
        begin = time.perf_counter()
        changed, sent = self._publish(config, named)
        assert self._publisher is not None and self._adapter is not None
        version = self._publisher.version
        elements = sum(tensor.numel() for tensor in self._adapter.tensors.values())
        for endpoint in self._endpoints:
            server = VllmServer(endpoint, timeout=self._options.timeout)
            if self._options.directory:
                self._load(server)
            else:
                self._wait_for_follower(server, version)
        report = AdapterReport(version, changed, elements, sent, time.perf_counter() - begin)
        if self._options.on_report is not None:
            self._options.on_report(report)
        return report

    def close(self) -> None:
        """Closes the publisher of the log. The servers keep serving the adapter that they have."""
        publisher, self._publisher = self._publisher, None
        with contextlib.suppress(Error):
            if publisher is not None:
                publisher.close()
        self._receivers.clear()
        self._weights = self._adapter = None
        scratch, self._scratch = self._scratch, None
        if scratch is not None:
            scratch.cleanup()

    def _publish(self, config: Mapping[str, Any], named: Iterable[tuple[str, torch.Tensor]]) -> tuple[int, int]:
        """Publishes the tensors to the log, which the first call creates. Returns the number of elements that changed
        and the bytes of the delta; at the first call, the elements and bytes of the whole adapter.
        """
        if self._weights is None:
            dtype = self._options.wire_dtype or getattr(torch, self._servers[0].lora_dtype, None)
            self._weights = GatheredWeights(dtype)
        self._weights.take(named)
        if self._publisher is not None:
            done = self._publisher.publish()
            return done.changed, done.wire_bytes
        self._weights.seal()
        adapter = Adapter(self._options.name, config, self._weights.tensors)
        spec = adapter.spec()
        rank = max(spec.rank(module) for module in spec.pairs())
        for server in self._servers:
            if rank > server.max_rank:
                raise UsageError(_RANK_TOO_HIGH.format(rank=rank, url=server.url, most=server.max_rank))
        self._publisher = Publisher(adapter.tensors.items(), transport=self._log())
        self._adapter = adapter
        if self._options.log:
            spec.save(self._options.description or f"{self._location.rstrip('/')}.json")
        whole = sum(tensor.numel() * tensor.element_size() for tensor in adapter.tensors.values())
        return sum(tensor.numel() for tensor in adapter.tensors.values()), whole

    def _log(self) -> Log:
        self._scratch = tempfile.TemporaryDirectory(prefix="sparsecast-adapter-")
        own = pathlib.Path(self._scratch.name)
        self._location = path_text(self._options.log or own / "log")
        return Log(
            self._location,
            key=self._options.key,
            mirror=self._options.mirror or own / "mirror.safetensors",
            timeout=self._options.timeout,
        )

    def _load(self, server: VllmServer) -> None:
        """Makes the server load the newest version from the directory that it shares with this process."""
        assert self._adapter is not None
        name = server.endpoint.name
        receiver = self._receivers.get(name)
        if receiver is None:
            directory = pathlib.Path(self._options.directory) / name.replace(":", "-")
            receiver = AdapterReceiver(server, directory)
            receiver.add(self._adapter.spec(), Log(self._location, timeout=self._options.timeout))
            self._receivers[name] = receiver
            return
        receiver.restore(server.served())
        receiver.update(self._options.name)

    def _wait_for_follower(self, server: VllmServer, version: int) -> None:
        until = time.monotonic() + self._options.timeout
        while not self._has(server, version):
            if time.monotonic() >= until:
                raise DeadlineError(
                    f"the server at {server.endpoint.url} did not have version {version} of the adapter "
                    f"'{self._options.name}' within {self._options.timeout:g} s: see what the follower beside it says, "
                    f"or start it: python -m sparsecast.adapters follow {server.endpoint.url} {self._location} "
                    "--directory DIRECTORY"
                )
            time.sleep(_POLL_SECONDS)

    def _has(self, server: VllmServer, version: int) -> bool:
        """Returns whether the server serves this version of the adapter, as the name of the directory shows from which
        it has loaded the adapter. Returns False if the server does not answer.
        """
        try:
            path = server.served().get(self._options.name)
        except Error as error:
            if error.code not in PASSING:
                raise
            return False  # Its follower waits for a server that is being started again, too.
        return path is not None and path.name.startswith(f"v{version}-")
