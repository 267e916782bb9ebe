# SPDX-License-Identifier: Apache-2.0
"""vLLM's `VLLMWeightSyncClient` as an engine that the control plane's `BothSides` leads through an update."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, TypeVar

from vllm.distributed.weight_transfer.base import VLLMWeightSyncClient

from sparsecast.control.errors import EndpointError
from sparsecast.control.vllm import UpdateSteps
from sparsecast.engines.vllm.meeting import worker_states

_SHOWN_CHARACTERS = 2000  # of the answer of a server
_Result = TypeVar("_Result")


class SyncClientSteps(UpdateSteps):
    """The steps of an update of one engine, by the blocking calls of vLLM's client, each in a thread of its own.

    A call that does not end in time is not waited for: its thread ends when the client gives up.
    """

    def __init__(self, client: VLLMWeightSyncClient, name: str) -> None:
        self.is_staged: Callable[[], bool] | None = None
        """Returns whether the workers have staged the version. None: the workers are asked, if they can be."""
        self._client = client
        self._name = name

    @property
    def name(self) -> str:
        return self._name

    async def join(self, init_info: dict[str, object], timeout: float) -> None:
        """Makes the workers join a group, and returns when they have joined. `init_info` is sent to them. Raises
        EndpointError if they refuse, or do not answer within `timeout` seconds.
        """
        await self._post("/init_weight_transfer_engine", "join", timeout, {"init_info": init_info})

    async def _post(
        self, path: str, step: str, timeout: float, body: dict[str, Any] | None = None, **params: str
    ) -> dict[str, Any]:
        # The client has a method for each of the routes, by its name; the fields of the JSON are the arguments.
        method = getattr(self._client, path.removeprefix("/"))
        await self._in_thread(step, timeout, method, *(body or {}).values())
        return {}

    async def _states(self, timeout: float) -> set[str]:
        if self.is_staged is not None:
            return {"staged" if await self._in_thread("staged", timeout, self.is_staged) else "receiving"}
        states = await self._in_thread("staged", timeout, worker_states, self._client)
        self._tells_states = states is not None
        # A worker in any other state is taken for staged: it names its own error when the apply is called.
        return {"receiving" if states is not None and "receiving" in states else "staged"}

    async def _in_thread(self, step: str, timeout: float, call: Callable[..., _Result], *arguments: Any) -> _Result:
        try:
            return await asyncio.wait_for(asyncio.to_thread(call, *arguments), timeout)
        except asyncio.TimeoutError as error:
            raise EndpointError(self.name, step, "it has not answered in time", code="timeout") from error
        except Exception as error:
            raise EndpointError(self.name, step, _words(error)) from error


def _words(failure: Exception) -> str:
    """Returns the message of a failed call. The error of vLLM's HTTP client has only the HTTP status, so the text of
    the server's answer is added to it.
    """
    said = getattr(getattr(failure, "response", None), "text", "")
    return f"{failure}: {said[:_SHOWN_CHARACTERS]}" if isinstance(said, str) and said else str(failure)
