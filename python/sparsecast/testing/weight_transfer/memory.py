# SPDX-License-Identifier: Apache-2.0
"""Memory of other processes: what they have, what they had at most, and a limit."""

from __future__ import annotations

import contextlib
import resource
import shutil
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path


def status(pid: int) -> dict[str, int]:
    """Returns the sizes of a process in bytes by their names in /proc/PID/status, such as VmRSS and VmHWM; nothing if
    there is no such process.
    """
    with contextlib.suppress(OSError):
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
        return {line.split(":")[0]: int(line.split()[1]) * 1024 for line in lines if line.endswith(" kB")}
    return {}


def forget_peak(pid: int) -> None:
    """Has the peak of a process (VmHWM) begin again at what it holds now."""
    Path(f"/proc/{pid}/clear_refs").write_text("5")


@contextlib.contextmanager
def little_memory(pid: int, more: int) -> Iterator[None]:
    """Inside the block a process can allocate no more than `more` bytes of host memory beyond what it has."""
    _, hard = resource.prlimit(pid, resource.RLIMIT_DATA)
    resource.prlimit(pid, resource.RLIMIT_DATA, (status(pid)["VmData"] + more, hard))
    try:
        yield
    finally:
        with contextlib.suppress(ProcessLookupError):
            resource.prlimit(pid, resource.RLIMIT_DATA, (resource.RLIM_INFINITY, hard))


class DevicePeak:
    """Most device memory that a process has had between `begin` and `end`, by what nvidia-smi says a few times a second:
    reserves of its allocator included, and peaks of a tenth of a second may be missed.
    """

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self._ends = threading.Event()
        self._first = self._most = self._look()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def begin(self) -> None:
        if self._first is not None:
            self._thread.start()

    def end(self) -> dict[str, int]:
        """Returns the bytes at the beginning and the most; nothing if there is no device, or none of that process."""
        self._ends.set()
        if self._first is None or self._most is None:
            return {}
        self._thread.join()
        return {"device_before_bytes": self._first, "device_peak_bytes": self._most}

    def _watch(self) -> None:
        while not self._ends.wait(0.05):
            self._most = max(self._most or 0, self._look() or 0)

    def _look(self) -> int | None:
        program = shutil.which("nvidia-smi")
        if program is None:
            return None
        query = [program, "--query-compute-apps=pid,used_memory", "--format=csv,noheader,nounits"]
        answer = subprocess.run(query, capture_output=True, text=True, timeout=30)
        for line in answer.stdout.splitlines():
            pid, _, mebibytes = line.partition(",")
            if pid.strip() == str(self._pid) and mebibytes.strip().isdigit():
                return int(mebibytes) << 20
        return None
