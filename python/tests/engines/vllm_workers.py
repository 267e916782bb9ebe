# SPDX-License-Identifier: Apache-2.0
"""The workers of a vLLM server as processes, for the tests of both trainers' interfaces."""

from __future__ import annotations

import json
import uuid
from concurrent.futures import ThreadPoolExecutor
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from fork_server import forks_of

WAIT_SECONDS = 300.0


class WorkerFailedError(RuntimeError):
    """A worker raised; `kind` is the exception's name."""

    def __init__(self, kind: str, words: str) -> None:
        super().__init__(f"{kind}: {words}")
        self.kind = kind


def _serve(*arguments: Any) -> None:
    """Runs in the worker's process, the only one that imports all of vLLM."""
    import vllm_rank

    vllm_rank.serve(*arguments)


class Workers:
    """The server's end of a `VLLMWeightSyncClient`: calls every worker, as collective_rpc does."""

    def __init__(self, size: int) -> None:
        self.weight_version: str | None = None
        self.opened = 0
        self.processes = []
        self._pipes: list[Connection] = []
        context = forks_of("vllm_rank")
        self.ident = f"sparsecast-{uuid.uuid4().hex[:12]}"
        environment = {"GLOO_SOCKET_IFNAME": "lo", "VLLM_DIST_IDENT": self.ident}
        for rank in range(size):
            ours, theirs = context.Pipe()
            process = context.Process(target=_serve, args=(theirs, rank, size, environment), daemon=True)
            process.start()
            theirs.close()
            self.processes.append(process)
            self._pipes.append(ours)
        self.pool = ThreadPoolExecutor(size)
        for rank in range(size):
            assert self._reply(rank) == "ready"

    def _reply(self, rank: int) -> Any:
        try:
            if not self._pipes[rank].poll(WAIT_SECONDS):
                raise TimeoutError(f"worker {rank} does not answer")
            kind, value = self._pipes[rank].recv()
        except EOFError:
            raise WorkerFailedError("Exit", f"worker {rank} has ended") from None
        if kind != "value":
            raise WorkerFailedError(kind, value)
        return value

    def ask(self, rank: int, name: str, arguments: dict[str, Any]) -> Any:
        """Calls one worker."""
        self._pipes[rank].send((name, arguments))
        return self._reply(rank)

    def call(self, name: str, **arguments: Any) -> list[Any]:
        """Calls all workers at once. Raises the first failure, after all have answered."""
        calls = [self.pool.submit(self.ask, rank, name, arguments) for rank in range(len(self.processes))]
        failures = [call.exception() for call in calls if call.exception() is not None]
        if failures:
            raise failures[0]  # type: ignore[misc]
        return [call.result() for call in calls]

    def failures(self, name: str, **arguments: Any) -> list[WorkerFailedError | None]:
        """Calls all workers at once, for their failures."""
        calls = [self.pool.submit(self.ask, rank, name, arguments) for rank in range(len(self.processes))]
        return [call.exception() for call in calls]  # type: ignore[misc]

    def init_weight_transfer_engine(self, init_info: dict[str, Any]) -> None:
        self.call("init_weight_transfer_engine", init_info=json.loads(json.dumps(init_info)))

    def start_weight_update(self) -> None:
        self.call("start_weight_update")

    def update_weights(self, update_info: Any) -> None:
        self.call("update_weights", update_info=update_info)

    def finish_weight_update(self, weight_version: str | None = None) -> None:
        self.weight_version = weight_version
        self.call("finish_weight_update")

    def staged(self) -> bool:
        return all(status["state"] == "staged" for status in self.call("status"))

    def close(self) -> None:
        for process in self.processes:
            process.kill()
            process.join()
        self.pool.shutdown(wait=False)
        for left in Path("/dev/shm").glob(f"*{self.ident}*"):  # vLLM for CPUs leaves it when it is killed.
            left.unlink(missing_ok=True)
