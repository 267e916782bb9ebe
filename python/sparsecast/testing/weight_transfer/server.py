# SPDX-License-Identifier: Apache-2.0
"""A vLLM server in processes of its own: started, asked, measured, killed."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from .memory import status
from .verdicts import prompts

_START_SECONDS = 900.0


def free_port() -> int:
    """Returns a port of this machine on which nobody listens at this moment."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


class Server:
    """`vllm serve MODEL` on 127.0.0.1, started in the background with everything that it says in the file `log`."""

    def __init__(
        self, model: Path, vocabulary: int, flags: Sequence[str], variables: Mapping[str, str], log: Path
    ) -> None:
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self.log = log
        self._prompts = prompts(vocabulary)
        command = [sys.executable, "-m", "vllm.entrypoints.cli.main", "serve", str(model)]
        command += ["--host", "127.0.0.1", "--port", str(self.port), "--served-model-name", "m"]
        command += ["--max-model-len", "1024", "--enforce-eager", *flags]
        with log.open("wb") as output:
            self._process = subprocess.Popen(
                command,
                env=_environment(variables),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
            )

    def wait(self) -> Server:
        """Returns when it answers. Raises RuntimeError with the end of its log if it ends before."""
        until = time.monotonic() + _START_SECONDS
        while time.monotonic() < until:
            if not self.lives:
                raise RuntimeError(f"the server ended with {self._process.returncode}:\n{self.said()}")
            with contextlib.suppress(OSError):
                self.ask("/health", timeout=5)
                return self
            time.sleep(0.25)
        raise RuntimeError(f"the server did not start in {_START_SECONDS:g} s:\n{self.said()}")

    @property
    def lives(self) -> bool:
        return self._process.poll() is None

    def said(self, characters: int = 3000) -> str:
        """Returns the end of its log."""
        return self.log.read_text(errors="replace")[-characters:]

    def ask(self, path: str, body: object = None, timeout: float = 30.0) -> Any:
        """Gets, or posts `body` as JSON; returns the JSON of the answer. Raises OSError for anything but a 200."""
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(self.url + path, data, {"Content-Type": "application/json"})  # noqa: S310
        with urllib.request.urlopen(request, timeout=timeout) as answer:  # noqa: S310
            text = answer.read()
        return json.loads(text) if text.strip() else None

    def probe(self, timeout: float) -> list[float]:
        """Returns the log probabilities of the fixed prompts' tokens, and of four tokens after each. Raises OSError if
        an answer is an error or does not come in `timeout` seconds.
        """
        found: list[float] = []
        for prompt in self._prompts:
            body = {"model": "m", "prompt": prompt, "max_tokens": 4, "temperature": 0, "ignore_eos": True}
            answer = self.ask("/v1/completions", {**body, "logprobs": 0, "prompt_logprobs": 0}, timeout)
            choice = answer["choices"][0]
            for token, known in zip(prompt[1:], choice["prompt_logprobs"][1:], strict=True):
                found.append(float(known[str(token)]["logprob"]))
            found += choice["logprobs"]["token_logprobs"]
        return found

    def version(self) -> str:
        """Returns the version that the server names, or "-"."""
        with contextlib.suppress(OSError, KeyError):
            return str(self.ask("/weight_info")["weight_version"])
        return "-"

    def workers(self) -> int:
        """Returns the number of its workers."""
        return int(self.ask("/get_world_size")["world_size"])

    def worker(self) -> int:
        """Returns the process that holds the weights: the largest in host memory."""
        return max(_processes(self._process.pid), key=lambda pid: status(pid).get("VmRSS", 0))

    def kill(self) -> None:
        """Kills all its processes."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait(30)


def _processes(root: int) -> list[int]:
    """Returns a process and all below it."""
    parents: dict[int, int] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError):
                parents[int(entry.name)] = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
    found = [root]
    for pid in found:
        found += [child for child, parent in parents.items() if parent == pid]
    return found


def _environment(variables: Mapping[str, str]) -> dict[str, str]:
    import torch

    ours = {
        "VLLM_SERVER_DEV_MODE": "1",
        "VLLM_NO_USAGE_STATS": "1",
        # Buffers go back to the system when they are freed, so that peaks and limits count what is in use.
        "MALLOC_MMAP_THRESHOLD_": "131072",
        "MALLOC_TRIM_THRESHOLD_": "131072",
    }
    if not torch.cuda.is_available():
        # With wider vectors vLLM packs weights for oneDNN, and frees those that an update in place would reach.
        ours = {"VLLM_CPU_KVCACHE_SPACE": "1", "ONEDNN_MAX_CPU_ISA": "AVX2", **ours}
    return {**ours, **os.environ, **variables}
