# SPDX-License-Identifier: Apache-2.0
"""Passes NaN-masked tensors through the loader of an engine, whose copies and fills then skip the NaNs."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Sequence

import torch

from sparsecast.buffers import bits_of
from sparsecast.engines.refresh.followed_copies import MaskedCopies, ReadBack, has_nans, nan_bits
from sparsecast.engines.trace.dispatch_mode import pools_run_here, storage_key
from sparsecast.engines.trace.dtypes import TORCH_DTYPES
from sparsecast.engines.trace.loader import LoadWeights
from sparsecast.engines.trace.memory import tensor_at
from sparsecast.engines.trace.slots import slots
from sparsecast.engines.trace.watch import Watch
from sparsecast.errors import UnsupportedError


class MaskedLoader:
    """Passes NaN-masked tensors through the loader `load_weights` of an engine. The object is the callback for
    `Subscriber.apply_nan_masked`, which calls it once for each tensor.

    `table` lists the canonical tensors as (name, dtype, shape), in the order of the subscriber's table. The loader may
    slice, transpose, pad and concatenate what it gets, and copies it into live tensors at the end; these copies keep
    the live element where there is a NaN. One tensor is in memory at a time, on `device`.
    """

    def __init__(
        self,
        table: Iterable[tuple[str, str, Sequence[int]]],
        load_weights: LoadWeights,
        device: str | torch.device = "cpu",
    ) -> None:
        self._table = [(name, dtype, tuple(shape)) for name, dtype, shape in table]
        self._load_weights = load_weights
        self._device = torch.device(device)

    def prove(self, model: torch.nn.Module) -> None:
        """Shows that every tensor of the table can be NaN-masked: loads, for each name, a tensor that is NaN
        throughout, which must change no parameter or buffer of `model`. Puts back whatever was changed.

        Raises UnsupportedError naming the tensor if it is an integer tensor, if the loader computes with it or writes
        something else than copies of it, or if the loader fails.
        """
        found = list(slots(model))
        known = {storage_key(slot.data): slot.name for slot in found}
        for name, dtype, shape in self._table:
            kind = TORCH_DTYPES[dtype]
            if not has_nans(kind):
                raise UnsupportedError(f"tensor {name!r} is of {dtype}, which has no NaN to mark what did not change")
            tensor = torch.empty(shape, dtype=kind, device=self._device)
            bits_of(tensor).fill_(nan_bits(kind))
            watch = Watch(known)
            try:
                with watch:
                    self.load(name, tensor)
                changed = watch.has_changed() or not all(slot.is_as_found() for slot in found)
            except UnsupportedError:
                raise
            except Exception as error:  # The engine's code may raise anything.
                raise UnsupportedError(
                    f"tensor {name!r} cannot be NaN-masked: the loader fails: {type(error).__name__}: {error}"
                ) from error
            finally:
                for slot in found:
                    slot.put_back()
                watch.undo()
            if changed:
                raise UnsupportedError(f"tensor {name!r}: the loader writes something else than copies of its elements")

    def __call__(self, index: int, address: int, stream: int) -> None:
        """Loads the NaN-masked tensor whose index in the table is `index` and whose elements lie at `address`. On a
        CUDA device the loading is enqueued on the stream whose handle is `stream`.
        """
        name, dtype, shape = self._table[index]
        tensor = tensor_at(address, TORCH_DTYPES[dtype], shape, self._device)
        with _on_stream(stream, self._device):
            self.load(name, tensor)

    def load(self, name: str, tensor: torch.Tensor) -> None:
        """Loads a tensor in which NaN marks the elements that do not change. Raises UnsupportedError naming the tensor
        if the loader computes with it, and otherwise the loader's own errors. After an error, a part of the tensor may
        have been loaded.
        """
        with torch.no_grad(), pools_run_here(), MaskedCopies(name, tensor):
            self._load_weights(iter([(name, tensor)]))

    def read_back(self, name: str, tensor: torch.Tensor) -> list[torch.Tensor]:
        """Fills `tensor`, which has the canonical shape, with its elements in the model, by running the loader's own
        copies backwards. Elements that the loader copies nowhere (those of other ranks, for example) stay as they are.
        Writes no weight.

        Returns views of the places of these elements in the model. Raises UnsupportedError if the loader does more than
        copy.
        """
        reading = ReadBack(name, tensor)
        with torch.no_grad(), pools_run_here(), reading:
            self._load_weights(iter([(name, tensor)]))
        reading.finish()
        return reading.places


@contextlib.contextmanager
def _on_stream(stream: int, device: torch.device) -> Iterator[None]:
    if device.type != "cuda":
        yield
        return
    with torch.cuda.stream(torch.cuda.ExternalStream(stream, device=device)):  # type: ignore[no-untyped-call]
        yield
