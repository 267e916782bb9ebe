# SPDX-License-Identifier: Apache-2.0
"""The workers of a vLLM server as processes, for the tests of both trainers' interfaces."""

from __future__ import annotations

import json
import os
import queue
import subprocess
import sys
import threading
import uuid
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

WAIT_SECONDS = 300.0


class WorkerFailedError(RuntimeError):
    """A worker raised; `kind` is the exception's name."""

    def __init__(self, kind: str, words: str) -> None:
        super().__init__(f"{kind}: {words}")
        self.kind = kind


class Workers:
    """The server's end of a `VLLMWeightSyncClient`: calls every worker, as collective_rpc does."""

    def __init__(self, size: int) -> None:
        self.weight_version: str | None = None
        self.opened = 0
        self.processes = []
        self.replies: list[queue.Queue[str]] = []
        script = Path(__file__).with_name("vllm_rank.py")
        self.ident = ident = f"sparsecast-{uuid.uuid4().hex[:12]}"
        for rank in range(size):
            argument = {"rank": rank, "size": size}
            process = subprocess.Popen(
                [sys.executable, str(script), json.dumps(argument)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                env={**os.environ, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo", "VLLM_DIST_IDENT": ident},
                text=True,
            )
            self.processes.append(process)
            self.replies.append(queue.Queue())
            threading.Thread(target=self._read, args=(rank,), daemon=True).start()
        self.pool = ThreadPoolExecutor(size)
        for rank in range(size):
            assert self._reply(rank) == "ready"

    def _read(self, rank: int) -> None:
        output = self.processes[rank].stdout
        assert output is not None
        for line in output:
            if line.startswith("REPLY "):
                self.replies[rank].put(line[6:])
        self.replies[rank].put(json.dumps({"error": "Exit", "words": f"worker {rank} has ended"}))

    def _reply(self, rank: int) -> Any:
        reply = json.loads(self.replies[rank].get(timeout=WAIT_SECONDS))
        if "error" in reply:
            raise WorkerFailedError(reply["error"], reply["words"])
        return reply["value"]

    def ask(self, rank: int, name: str, arguments: dict[str, Any]) -> Any:
        """Calls one worker."""
        stdin = self.processes[rank].stdin
        assert stdin is not None
        stdin.write(json.dumps({"call": name, "arguments": arguments}) + "\n")
        stdin.flush()
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
            process.wait()
        self.pool.shutdown(wait=False)
        for left in Path("/dev/shm").glob(f"*{self.ident}*"):  # vLLM for CPUs leaves it when it is killed.
            left.unlink(missing_ok=True)
