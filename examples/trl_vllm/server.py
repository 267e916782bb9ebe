# SPDX-License-Identifier: Apache-2.0
"""A vLLM server in a process of its own, and what it answers to fixed prompts."""

from __future__ import annotations

import contextlib
import os
import pathlib
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from typing import Any

import httpx

PATIENCE_SECONDS = float(os.environ.get("SERVER_SECONDS", "300"))
"""Longest time for the server's start: minutes on few cores."""


class Server:
    """A server on `port` of this machine, started in the background. `log` has what it prints.

    follows  location of a delta log that it follows by itself; without, it takes weights from a trainer.
    state    directory for what it remembers of that log.
    """

    def __init__(
        self, model: pathlib.Path, port: int, log: pathlib.Path, follows: str = "", state: pathlib.Path | str = ""
    ) -> None:
        self.url = f"http://127.0.0.1:{port}"
        self._log = log
        if follows:
            variables = {"SPARSECAST_FOLLOW": follows, "SPARSECAST_FOLLOW_STATE": str(state)}
            variables["SPARSECAST_FOLLOW_INTERVAL"] = "0.2"
            flags = []
        else:
            variables = {"VLLM_SERVER_DEV_MODE": "1"}  # opens the routes for weights
            flags = ["--weight-transfer-config", '{"backend": "sparsecast"}']
            flags += ["--worker-extension-cls", "sparsecast.engines.vllm.WorkerExtension"]
        environment = {
            **os.environ,
            **variables,
            "VLLM_PLUGINS": "sparsecast",  # with it the server also resumes by itself if the trainer dies in a pause
            "VLLM_CPU_KVCACHE_SPACE": "1",
            # By itself vLLM binds the worker of every server to the same core.
            "VLLM_CPU_OMP_THREADS_BIND": str(sorted(os.sched_getaffinity(0))[port % len(os.sched_getaffinity(0))]),
            "OMP_NUM_THREADS": "1",
            "ONEDNN_MAX_CPU_ISA": "AVX2",  # with AVX-512, vLLM packs weights into layouts that cannot be patched
            "HF_HUB_OFFLINE": "1",
            "VLLM_NO_USAGE_STATS": "1",
        }
        command = [
            *(sys.executable, "-m", "vllm.entrypoints.cli.main", "serve", str(model)),
            *("--host", "127.0.0.1", "--port", str(port), "--dtype", "bfloat16", "--enforce-eager"),
            *("--max-model-len", "64", "--max-num-seqs", "128", "--logprobs-mode", "processed_logprobs"),
            *flags,
        ]
        with log.open("a") as output:
            self._process = subprocess.Popen(
                command, env=environment, stdout=output, stderr=subprocess.STDOUT, start_new_session=True
            )

    def wait(self) -> Server:
        """Returns once it answers."""
        _wait(self._process, self.url, self._log)
        return self

    def end(self) -> None:
        """Ends it and its workers."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGTERM)
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(20)
        self.kill()

    def kill(self) -> None:
        """Kills it and its workers."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()


@contextlib.contextmanager
def serving(model: pathlib.Path, port: int, log: pathlib.Path) -> Iterator[str]:
    """Starts a server that takes weights, yields its URL once it answers, and ends it."""
    server = Server(model, port, log)
    try:
        yield server.wait().url
    finally:
        server.end()


def _wait(process: subprocess.Popen[bytes], url: str, log: pathlib.Path) -> None:
    until = time.monotonic() + PATIENCE_SECONDS
    while time.monotonic() < until:
        if process.poll() is not None:
            raise SystemExit(f"vLLM ended with {process.returncode}; {_end_of(log)}")
        with contextlib.suppress(httpx.HTTPError):
            if httpx.get(f"{url}/health", timeout=2).status_code == 200:
                return
        time.sleep(0.5)
    raise SystemExit(
        f"vLLM did not answer at {url} in {PATIENCE_SECONDS:.0f} s (SERVER_SECONDS gives it more); {_end_of(log)}"
    )


def _end_of(log: pathlib.Path) -> str:
    """Returns what the server printed last: its log may lie in a folder that goes with this process."""
    return f"the end of {log}:\n{log.read_text()[-3000:]}"


def probe(url: str, prompts: list[str]) -> list[Any]:
    """Returns, for each prompt, the logprobs of its tokens and of 8 greedy ones, with the 5 next best each."""
    model = httpx.get(f"{url}/v1/models", timeout=30).raise_for_status().json()["data"][0]["id"]
    answers = []
    for prompt in prompts:
        question = {
            **{"model": model, "prompt": prompt, "max_tokens": 8, "temperature": 0, "ignore_eos": True},
            **{"logprobs": 5, "prompt_logprobs": 5},
        }
        answer = httpx.post(f"{url}/v1/completions", json=question, timeout=60).raise_for_status().json()
        choice = answer["choices"][0]
        answers.append([choice["text"], choice["logprobs"]["top_logprobs"], choice["prompt_logprobs"]])
    return answers
