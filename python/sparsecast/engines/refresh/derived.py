# SPDX-License-Identifier: Apache-2.0
"""Finds the tensors of a model that its engine has computed from weights after loading."""

from __future__ import annotations

from collections.abc import Collection
from types import FunctionType

import torch

from sparsecast.engines.trace.slots import slots


def derived_tensors(model: torch.nn.Module, besides: Collection[str] = ()) -> set[str]:
    """Returns the names of floating-point matrices that modules keep in memory that no parameter or buffer has: tensors
    that the engine has computed from weights, such as factors of MLA and packed copies.

    A patch of the weights does not update these matrices. Vectors are left out, because they come from the
    configuration (slopes, frequencies, scales). Attributes whose name is in `besides` are left out, too, and those of a
    module around a `base_layer`: they hold adapters, which are served beside the weights.
    """
    found = list(slots(model))
    around = {name for name, part in model.named_modules() if "base_layer" in dict(part.named_children())}
    live = {slot.data.untyped_storage().data_ptr() for slot in found if slot.registered}
    return {
        slot.name
        for slot in found
        if slot.key not in besides
        and not slot.data.is_meta
        and slot.data.dim() >= 2
        and slot.data.is_floating_point()
        and slot.data.untyped_storage().data_ptr() not in live
        and slot.name.rpartition(".")[0] not in around
    }


def packed_copies(model: torch.nn.Module) -> set[str]:
    """Returns the names ("module.attribute") of functions that modules keep for a computation of their own, and that
    hold a copy of weights which a CPU kernel has packed. Such a function's closure has a tensor that is no live weight,
    or an object that keeps a tensor (vLLM's `cpu_linear` over oneDNN: its handle is a tensor in an object).

    No attribute shows such a copy, and the weight that was packed may be there unchanged, or be gone.
    """
    live = {t.untyped_storage().data_ptr() for t in (*model.parameters(), *model.buffers())}

    def holds_a_copy(held: object) -> bool:
        if isinstance(held, torch.Tensor):
            return held.untyped_storage().data_ptr() not in live
        if isinstance(held, (torch.nn.Module, type)):
            return False
        return any(isinstance(inner, torch.Tensor) for inner in getattr(held, "__dict__", {}).values())

    found: set[str] = set()
    for module_name, module in model.named_modules():
        for key, value in vars(module).items():
            cells = (value.__closure__ or ()) if isinstance(value, FunctionType) else ()
            if any(holds_a_copy(cell.cell_contents) for cell in cells):
                found.add(f"{module_name}.{key}")
    return found
