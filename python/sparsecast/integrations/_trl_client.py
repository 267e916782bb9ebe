# SPDX-License-Identifier: Apache-2.0
"""TRL's client of a vLLM server, with weight updates by sparsecast. Imports TRL."""

from __future__ import annotations

import atexit
import contextlib
import weakref
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch
from trl.generation.vllm_client import VLLMClient

from sparsecast.errors import UnsupportedError, UsageError

from ._gathered_sync import GatheredSync

if TYPE_CHECKING:
    from .trl import Enabled

_HOOKS = ("init_communicator", "update_named_param", "update_named_params", "weight_update", "close_communicator")


class SparsecastClient(VLLMClient):
    """A `VLLMClient` whose weights travel by sparsecast. Clients become one in `init_communicator`."""

    _enabled: Enabled
    _sync: GatheredSync

    def init_communicator(self, device: torch.device | str | int = 0) -> None:
        """Checks how the servers were started; any device will do."""
        del device
        options = replace(self._enabled.options, port=self.group_port, wait=0.0)
        self._sync = GatheredSync([self.base_url, *self._enabled.also], options)
        self._sync.check()
        atexit.register(_close_quietly, weakref.ref(self))

    def update_named_params(
        self, metadata: list[tuple[str, str, list[int]]], named_params: Iterator[tuple[str, torch.Tensor]]
    ) -> None:
        """Sends what changed; returns when every server has verified it. Inside `weight_update`, at its end."""
        del metadata  # The tensors say the same of themselves.
        if self._updating_weights:
            self._sync.collect(named_params, complete=False)
        else:
            self._enabled.last_report = self._sync.send(named_params)

    def update_named_param(self, name: str, weights: torch.Tensor) -> None:
        """Sends one tensor, once the names of all are known; inside `weight_update` at its end."""
        if not self._updating_weights and not self._sync.knows_all:
            raise UsageError(
                f"'{name}' comes before the names of all weights are known: begin with update_model_params, or call "
                "update_named_param for every weight inside weight_update()"
            )
        self._sync.collect([(name, weights)], complete=False)
        if not self._updating_weights:
            self._enabled.last_report = self._sync.sync()

    @contextlib.contextmanager
    def weight_update(self) -> Iterator[None]:
        """Sends once, at its end, what was updated inside; nothing if that raised."""
        self._updating_weights = True
        try:
            yield
        finally:
            self._updating_weights = False
        self._enabled.last_report = self._sync.sync()

    def close_communicator(self) -> None:
        """Leaves the servers, which go on with the weights that they have."""
        self._sync.close()


def install(enabled: Enabled) -> Callable[[], None]:
    """Makes TRL's clients become ours when they set up weight updates; returns a function that undoes it."""
    missing = [name for name in _HOOKS if not hasattr(VLLMClient, name)]
    if missing:
        raise UnsupportedError(f"TRL's VLLMClient has no {', '.join(missing)}: this is no released TRL 1.16")
    original = VLLMClient.init_communicator

    def init_communicator(self: Any, device: torch.device | str | int = 0) -> None:
        if type(self) is not VLLMClient:
            raise UsageError(f"{type(self).__name__} is a client of somebody else's: disable() one of the two")
        self.__class__ = SparsecastClient
        self._enabled = enabled
        self.init_communicator(device)

    VLLMClient.init_communicator = init_communicator

    def undo() -> None:
        VLLMClient.init_communicator = original

    return undo


def _close_quietly(client: weakref.ref[Any]) -> None:
    alive = client()
    if alive is not None:
        with contextlib.suppress(Exception):
            alive.close_communicator()
