# SPDX-License-Identifier: Apache-2.0
"""Gives an engine's own loader, after each update, the changed elements of canonical tensors, NaN-masked.

This is for tensors whose places in the model are not known, so that updates patch a copy of them that is kept outside
the model, and with which the loader does nothing but copy.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch

from sparsecast.buffers import bits_of, dtype_name
from sparsecast.engines.refresh.followed_copies import is_nan, nan_bits
from sparsecast.engines.refresh.masked_loader import MaskedLoader
from sparsecast.engines.trace.dispatch_mode import storage_key
from sparsecast.engines.trace.loader import LoadWeights
from sparsecast.engines.trace.slots import slots
from sparsecast.errors import DirtyError, UnsupportedError


class MaskedReload:
    """Loads into the model, after an update, the changed elements of copies of canonical tensors: one tensor at a time,
    which is read back afterwards to check it.

    `copies` are the canonical tensors in canonical shapes, in host memory or on the device of the model; the caller
    patches them. Needs, in addition, memory on the device for four times the tensor that is being loaded, and 8 bytes
    for each of its elements that has changed. For the engine's thread, while nothing runs.
    """

    def __init__(self, model: torch.nn.Module, load_weights: LoadWeights, copies: Mapping[str, torch.Tensor]) -> None:
        self.copies = dict(copies)
        self.derived: list[str] = []
        """Names of the live tensors into which the loader copies `copies`; `prove` finds them."""
        self.loaded_whole: list[str] = []
        """Names of tensors that the last `run` gave the loader whole instead of NaN-masked, because elements have
        become NaNs.
        """
        self._model = model
        self._load_weights = load_weights
        self._device = next((slot.data.device for slot in slots(model)), torch.device("cpu"))
        table = [(name, dtype_name(copy.dtype), tuple(copy.shape)) for name, copy in self.copies.items()]
        self._loader = MaskedLoader(table, load_weights, self._device)

    def prove(self, *, as_loaded: bool) -> None:
        """Shows that every tensor of `copies` can be NaN-masked and read back, and leaves the model as it was. With
        `as_loaded`, the model must also hold the same bits as the copies.

        Raises UnsupportedError naming the tensor: an integer tensor, a tensor with which the loader does more than
        copy, a tensor of which it copies nothing, or, with `as_loaded`, a tensor whose bits in the model differ from
        the copy.
        """
        self._loader.prove(self._model)
        names = {storage_key(slot.data): slot.name for slot in slots(self._model)}
        found: dict[str, None] = {}
        for name, copy in self.copies.items():
            new = copy.to(self._device)
            live, places = self._read(name, new)
            if not places:
                raise UnsupportedError(f"tensor {name!r} cannot be NaN-masked: the loader copies nothing of it")
            if as_loaded and not torch.equal(bits_of(live), bits_of(new)):
                raise UnsupportedError(
                    f"tensor {name!r} cannot be NaN-masked: what the engine's load has left is not read back as it was"
                )
            found.update({names[storage_key(place)]: None for place in places if storage_key(place) in names})
        self.derived = list(found)

    def run(self) -> None:
        """Loads every element of the copies that differs from the model into the model. Raises DirtyError naming the
        tensor if the loader fails, or if the model then holds other bits than the copy.
        """
        self.loaded_whole = []
        for name, copy in self.copies.items():
            try:
                self._update(name, copy.to(self._device))
            except DirtyError:
                raise
            except Exception as error:  # The engine's code: whatever it raises, a part may be loaded.
                raise DirtyError(
                    f"tensor {name!r}: the engine's loader failed: {type(error).__name__}: {error}"
                ) from error

    def audit(self) -> None:
        """Reads every tensor back from the model. Raises DirtyError naming a tensor whose bits differ from its copy."""
        for name, copy in self.copies.items():
            new = copy.to(self._device)
            if not torch.equal(bits_of(self._read(name, new)[0]), bits_of(new)):
                raise DirtyError(f"tensor {name!r}: the model does not hold what was loaded")

    def _update(self, name: str, new: torch.Tensor) -> None:
        bits = bits_of(new).view(-1)
        changed = (bits_of(self._read(name, new)[0]).view(-1) != bits).nonzero().view(-1)
        if not changed.numel():
            return
        values = bits[changed]
        if bool(is_nan(values.view(new.dtype)).any()):
            self.loaded_whole.append(name)
            with torch.no_grad():
                self._load_weights(iter([(name, new.clone())]))
        else:
            masked = torch.full_like(bits, nan_bits(new.dtype))
            masked[changed] = values
            self._loader.load(name, masked.view(new.dtype).view(new.shape))
        if not torch.equal(bits_of(self._read(name, new)[0]), bits_of(new)):
            raise DirtyError(f"tensor {name!r}: the engine's loader left other bytes")

    def _read(self, name: str, new: torch.Tensor) -> tuple[torch.Tensor, list[torch.Tensor]]:
        """Returns the tensor as the model holds it, and views of its places in the model. Elements that the model does
        not hold are taken from `new`.
        """
        live = new.clone()
        return live, self._loader.read_back(name, live)
