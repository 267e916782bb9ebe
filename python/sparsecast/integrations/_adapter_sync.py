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

    version     of its log, which every server has loaded.
    changed     elements that differ from the version before, of `elements`; all of them at the first sync.
    sent_bytes  of the delta; at the first sync, of the whole adapter.
    """

    version: int
    changed: int
    elements: int
    sent_bytes: int
    seconds: float


@dataclass(frozen=True, kw_only=True)
class ServedAdapter:
    """Where a trainer's adapter goes, instead of being merged into the base weights.

    name        under which the servers have it; the trainer's requests name it as their model.
    directory   that trainer and servers see under the same path, where versions are written for them (on one machine
                "/dev/shm/adapters"). Empty: beside each server runs `python -m sparsecast.adapters follow`.
    log         a new delta log for this run: a directory or "s3://bucket/prefix". May be left out with a directory.
    description file with the adapter's description, for followers; by default the log's path with ".json".
    mirror      a `*.safetensors` file of this process, from which anchors are made; by default a temporary one.
    key         path of a signing key for the log.
    wire_dtype  of A and B at the servers; by default that in which vLLM keeps adapters.
    timeout     seconds for a server, or its follower, to have a version loaded, and for the log.
    on_report   called with the report of every sync; it must not raise.
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
    """The servers and the adapter that they have. Used from one thread.

    servers   URLs of vLLM servers, or endpoints of them.
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
        """Waits for the servers, and raises what `look_at_lora` raises for one that takes no adapters."""
        self._servers = [look_at_lora(endpoint, wait_seconds) for endpoint in self._endpoints]

    def send(self, config: Mapping[str, Any], named: Iterable[tuple[str, torch.Tensor]]) -> AdapterReport:
        """Publishes A and B, whole, and returns when every server has loaded that version.

        `config` is that of `adapter_config.json`, names are PEFT's. Raises UsageError for other names and shapes than
        before, UnsupportedError for what is more than A and B or what a server refuses, DeadlineError if no follower
        has brought the version to a server in time, and the errors of the log. The next call sends all changes since.
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
        """Ends the log's publisher. The servers go on with the adapter that they have."""
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
        """Returns how many elements changed, and the bytes that were written for them."""
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
        """Has the server load the newest version from the directory that it shares with this process."""
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
        """Whether it serves the version: followers name each directory by it."""
        try:
            path = server.served().get(self._options.name)
        except Error as error:
            if error.code not in PASSING:
                raise
            return False  # Its follower waits for a server that is being started again, too.
        return path is not None and path.name.startswith(f"v{version}-")
