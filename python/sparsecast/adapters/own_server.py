# SPDX-License-Identifier: Apache-2.0
"""The adapter interfaces of a vLLM or SGLang server within the process of its HTTP server, without its routes."""

from __future__ import annotations

import asyncio
import concurrent.futures
import pathlib
from collections.abc import Callable, Coroutine
from typing import Any

from ..errors import DeadlineError
from .engines import _refused, _Replaced

_SECONDS = 120.0


class _OwnServer(_Replaced):
    """Adapter interface of the server of this process. ``loop`` is the event loop of the server; the methods are for
    other threads. Each call ends within 120 s.
    """

    name = "this server"

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop

    def served(self) -> dict[str, pathlib.Path]:
        raise NotImplementedError

    def load(self, name: str, directory: pathlib.Path, previous: pathlib.Path | None) -> None:
        # A request to the server's own routes may have loaded one under the name.
        super().load(name, directory, previous or self.served().get(name))

    def _call(self, engine: str, name: str, call: Coroutine[Any, Any, Any]) -> Any:
        """Returns what the server's coroutine ``call`` returns. Raises UnsupportedError with its exception, and
        DeadlineError if it does not end in time; it goes on then, because half of it would leave the engine unusable.
        """
        future = asyncio.run_coroutine_threadsafe(call, self._loop)
        try:
            return future.result(_SECONDS)
        except concurrent.futures.TimeoutError as error:
            raise DeadlineError(f"{engine} does not answer within {_SECONDS:.0f} s", f"adapter '{name}'") from error
        except Exception as error:  # The engine may raise anything.
            raise _refused(engine, name, f"{type(error).__name__}: {error}") from error


class VllmOwnServer(_OwnServer):
    """The adapter interface of vLLM's API server. ``models`` returns its ``OpenAIServingModels``. A new version takes
    the place of the one before as in ``VllmServer``.
    """

    def __init__(self, models: Callable[[], Any], loop: asyncio.AbstractEventLoop) -> None:
        super().__init__(loop)
        self._models = models

    def served(self) -> dict[str, pathlib.Path]:
        """Returns the adapters that the server has loaded: by name, the directory from which it was loaded."""
        return {name: pathlib.Path(known.lora_path) for name, known in dict(self._models().lora_requests).items()}

    def load(self, name: str, directory: pathlib.Path, previous: pathlib.Path | None) -> None:
        from vllm import __version__

        from .engines import replaces_in_place

        if replaces_in_place(__version__):
            self._load(name, directory, load_inplace=True)
        else:
            super().load(name, directory, previous)

    def unload(self, name: str) -> None:
        from vllm.entrypoints.serve.lora.protocol import UnloadLoRAAdapterRequest

        self._ask(name, self._models().unload_lora_adapter(UnloadLoRAAdapterRequest(lora_name=name)))

    def _load(self, name: str, directory: pathlib.Path, *, load_inplace: bool = False) -> None:
        from vllm.entrypoints.serve.lora.protocol import LoadLoRAAdapterRequest

        path = str(directory.absolute())
        request = LoadLoRAAdapterRequest(lora_name=name, lora_path=path, load_inplace=load_inplace)
        self._ask(name, self._models().load_lora_adapter(request))

    def _ask(self, name: str, call: Coroutine[Any, Any, Any]) -> None:
        answer = self._call("vLLM", name, call)
        if not isinstance(answer, str):  # Else a sentence.
            raise _refused("vLLM", name, str(getattr(getattr(answer, "error", answer), "message", answer)))


class SglangOwnServer(_OwnServer):
    """The adapter interface of SGLang's HTTP server. ``tokenizer`` is its tokenizer manager."""

    def __init__(self, tokenizer: Any, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__(loop)
        self._tokenizer = tokenizer

    def served(self) -> dict[str, pathlib.Path]:
        """Returns the adapters that the server has loaded: by name, the directory from which it was loaded."""
        known = self._tokenizer.lora_registry.get_all_adapters()
        return {name: pathlib.Path(adapter.lora_path) for name, adapter in dict(known).items()}

    def unload(self, name: str) -> None:
        from sglang.srt.managers.io_struct import UnloadLoRAAdapterReqInput

        self._ask(name, self._tokenizer.unload_lora_adapter(UnloadLoRAAdapterReqInput(lora_name=name)))

    def _load(self, name: str, directory: pathlib.Path) -> None:
        from sglang.srt.managers.io_struct import LoadLoRAAdapterReqInput

        if name in getattr(
            self._tokenizer, "pending_lora_unloads", ()
        ):  # SGLang loads none under the name before it is gone.
            self.unload(name)
        request = LoadLoRAAdapterReqInput(lora_name=name, lora_path=str(directory.absolute()))
        self._ask(name, self._tokenizer.load_lora_adapter(request))

    def _ask(self, name: str, call: Coroutine[Any, Any, Any]) -> None:
        answer = self._call("SGLang", name, call)
        if not answer.success:
            raise _refused("SGLang", name, str(answer.error_message))
