# SPDX-License-Identifier: Apache-2.0
"""TRL's client of a vLLM server, with updates of weights or of an adapter by sparsecast. Imports TRL."""

from __future__ import annotations

import atexit
import contextlib
import logging
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch
from accelerate.utils import is_peft_model
from torch.distributed.tensor import DTensor
from trl.generation.vllm_client import VLLMClient
from trl.generation.vllm_generation import VLLMGeneration

from sparsecast.adapters import Adapter
from sparsecast.errors import UnsupportedError, UsageError

from ._adapter_sync import AdapterSync
from ._gathered import drain
from ._gathered_sync import GatheredSync
from ._log_sync import LogOptions, LogSync

if TYPE_CHECKING:
    from .trl import Enabled

_log = logging.getLogger(__name__)

_HOOKS = ("init_communicator", "update_named_param", "update_named_params", "weight_update", "close_communicator")
_LOG_HOOKS = ("reset_prefix_cache", "get_server_info")
_GENERATION_HOOKS = ("_init_vllm", "sync_weights")


class SparsecastClient(VLLMClient):
    """A `VLLMClient` that sends weights by sparsecast. `init_communicator` turns TRL's clients into clients of this
    class.
    """

    _enabled: Enabled
    _sync: GatheredSync | LogSync

    def init_communicator(self, device: torch.device | str | int = 0) -> None:
        """Checks that the servers were started in the right way. `device` is ignored."""
        del device
        servers, options = [self.base_url, *self._enabled.also], self._enabled.options
        if isinstance(options, LogOptions):
            self._sync = LogSync(servers, options)
        else:
            self._sync = GatheredSync(servers, replace(options, port=self.group_port, wait=0.0))
        self._sync.check()
        atexit.register(_close_quietly, weakref.ref(self))

    def update_named_params(
        self, metadata: list[tuple[str, str, list[int]]], named_params: Iterator[tuple[str, torch.Tensor]]
    ) -> None:
        """Sends the changes of `named_params`, and returns when every server has verified them. Inside `weight_update`
        it only copies the weights, which are sent at the end of the context.
        """
        del metadata  # The tensors say the same of themselves.
        if self._updating_weights:
            self._sync.collect(named_params, complete=False)
        else:
            self._enabled.keep(self._sync.send(named_params))

    def update_named_param(self, name: str, weights: torch.Tensor) -> None:
        """Sends the changes of one tensor, once the names of all tensors are known. Inside `weight_update` it only
        copies the tensor, which is sent at the end of the context. Raises UsageError if the names are not known yet.
        """
        if not self._updating_weights and not self._sync.knows_all:
            raise UsageError(
                f"'{name}' comes before the names of all weights are known: begin with update_model_params, or call "
                "update_named_param for every weight inside weight_update()"
            )
        self._sync.collect([(name, weights)], complete=False)
        if not self._updating_weights:
            self._enabled.keep(self._sync.sync())

    @contextlib.contextmanager
    def weight_update(self) -> Iterator[None]:
        """Context that sends all weights that were updated inside at once, at its end. Sends nothing if the code inside
        raised.
        """
        self._updating_weights = True
        try:
            yield
        finally:
            self._updating_weights = False
        self._enabled.keep(self._sync.sync())

    def close_communicator(self) -> None:
        """Disconnects from the servers, which keep serving the weights that they have. With a log, it waits until the
        last version is in the log.
        """
        self._sync.close()


class LogClient(SparsecastClient):
    """A client of a server that follows a log; weights are sent to the log. The server needs none of vLLM's development
    routes.
    """

    def reset_prefix_cache(self) -> None:
        """Does nothing: the server resets its cache with each version."""

    def get_server_info(self) -> dict[str, Any]:
        """Returns information about the server for TRL, which reads in it how logprobs are processed. If the server
        does not tell this, because it is not in development mode, logs a warning and assumes `processed_logprobs`.
        """
        try:
            info: dict[str, Any] = super().get_server_info()
        except RuntimeError:
            _log.warning(
                "the vLLM server at %s does not tell its --logprobs-mode without VLLM_SERVER_DEV_MODE=1; the "
                "importance sampling correction needs processed_logprobs there",
                self.base_url,
            )
            info = {"model_config": {"logprobs_mode": "processed_logprobs"}}
        return info


class AdapterClient(VLLMClient):
    """A `VLLMClient` of a server that receives the adapter from `AdapterGeneration`, and generates with it."""

    _enabled: Enabled
    _sync: AdapterSync

    def init_communicator(self, device: torch.device | str | int = 0) -> None:
        """Checks that the servers were started in the right way. `device` is ignored."""
        del device
        assert self._enabled.adapter is not None
        self._sync = AdapterSync([self.base_url, *self._enabled.also], self._enabled.adapter)
        self._sync.check(wait_seconds=0.0)
        atexit.register(_close_quietly, weakref.ref(self))

    def send_adapter(self, config: Mapping[str, Any], named: Iterable[tuple[str, torch.Tensor]]) -> None:
        """Sends the changes of the adapter, and returns when every server has loaded it. From then on, this client's
        requests use the adapter. `config` has the fields of `adapter_config.json`, and `named` all A and B.
        """
        self._enabled.last_adapter_report = self._sync.send(config, named)
        assert self._enabled.adapter is not None
        self.model = self._enabled.adapter.name
        self.reset_prefix_cache()

    def update_named_params(
        self, metadata: list[tuple[str, str, list[int]]], named_params: Iterator[tuple[str, torch.Tensor]]
    ) -> None:
        """Raises UnsupportedError: this client sends only adapters, and the trainer calls it with merged weights."""
        drain(named_params)
        raise UnsupportedError(
            "this trainer hands its client merged weights, not the adapter: enable() without adapter=, and a server "
            "without --enable-lora"
        )

    def close_communicator(self) -> None:
        """Closes the log. The servers keep serving the adapter that they have."""
        self._sync.close()


class AdapterGeneration(VLLMGeneration):
    """TRL's generation in server mode, but the adapter is sent as it is instead of merged weights. `_init_vllm` turns
    TRL's objects into objects of this class.
    """

    def sync_weights(self) -> None:
        """Sends the adapter's A and B to the servers. Called on all ranks of the trainer, because A and B may be
        sharded over them.
        """
        model = self.model
        if not is_peft_model(model):
            raise UsageError("enable(adapter=...) is for a trainer with peft_config, and this model has no adapter")
        if len(model.active_adapters) != 1:
            raise UsageError(f"one adapter is sent, and these are active: {', '.join(model.active_adapters)}")
        name = model.active_adapters[0]
        parameters = [parameter for own, parameter in model.named_parameters() if "lora_" in own]
        with self._dist.gather_params(parameters):
            adapter = Adapter.from_peft(model, name)
            whole = ((_plain(own), _whole(tensor)) for own, tensor in adapter.tensors.items())
            if self.accelerator.is_main_process:
                self.vllm_client.send_adapter(adapter.config, whole)
            else:
                drain(whole)


def _plain(name: str) -> str:
    return name.replace("_checkpoint_wrapped_module.", "")


def _whole(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def install(enabled: Enabled) -> Callable[[], None]:
    """Replaces methods of TRL so that its clients turn into clients of sparsecast when they set up weight updates.
    Returns a function that restores the methods. Raises UnsupportedError if this TRL does not have the methods.
    """
    missing = [name for name in _HOOKS + _LOG_HOOKS if not hasattr(VLLMClient, name)]
    missing += [name for name in _GENERATION_HOOKS if not hasattr(VLLMGeneration, name)]
    if missing:
        raise UnsupportedError(f"TRL's vLLM classes have no {', '.join(missing)}: this is no released TRL 1.16")
    original = VLLMClient.init_communicator
    generation = VLLMGeneration._init_vllm

    def init_communicator(self: Any, device: torch.device | str | int = 0) -> None:
        if type(self) is not VLLMClient:
            raise UsageError(f"{type(self).__name__} is a client of somebody else's: disable() one of the two")
        if enabled.adapter is not None:
            self.__class__ = AdapterClient
        else:
            self.__class__ = LogClient if isinstance(enabled.options, LogOptions) else SparsecastClient
        self._enabled = enabled
        self.init_communicator(device)

    def init_vllm(self: Any) -> None:
        generation(self)
        if self.mode == "server":
            self.__class__ = AdapterGeneration

    VLLMClient.init_communicator = init_communicator
    if enabled.adapter is not None:
        VLLMGeneration._init_vllm = init_vllm

    def undo() -> None:
        VLLMClient.init_communicator = original
        VLLMGeneration._init_vllm = generation

    return undo


def _close_quietly(client: weakref.ref[Any]) -> None:
    alive = client()
    if alive is not None:
        with contextlib.suppress(Exception):
            alive.close_communicator()
