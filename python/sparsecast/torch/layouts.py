# SPDX-License-Identifier: Apache-2.0
"""Gathers the layouts of the ranks of a torch process group."""

from __future__ import annotations

import torch
import torch.distributed as dist

from .._core import Layout
from ..errors import CorruptError
from ..layouts import join_layouts

#: Largest compressed layout of one rank in bytes; a larger one is an error before memory is allocated for it.
MAX_LAYOUT_BYTES = 1 << 30


def gather_layout(own: Layout, group: dist.ProcessGroup | None = None) -> Layout:
    """Returns the layout of all ranks of ``group`` (None: the world). ``own`` is the layout of this rank alone.

    Collective over the group. Sends the bytes of the layouts (as uint8 tensors on the CPU, or on the current CUDA
    device if the only backend of the group is NCCL), no weights and no pickles. Without a process group it returns
    ``own``. Raises CorruptError for a layout of more than MAX_LAYOUT_BYTES.
    """
    if not dist.is_available() or not dist.is_initialized() or dist.get_world_size(group) == 1:
        return own
    parts = gather_bytes(own.serialize(), group, MAX_LAYOUT_BYTES, "a layout")
    return join_layouts([Layout.parse(part) for part in parts])


def gather_bytes(own: bytes, group: dist.ProcessGroup | None, most: int, what: str) -> list[bytes]:
    """Returns the bytes ``own`` of every rank of ``group`` (None: the world), in the order of the ranks. Collective
    over the group.

    Raises CorruptError if a rank has more than ``most`` bytes; ``what`` names the bytes in the message ("a layout").
    """
    device = collective_device(group)
    size = dist.get_world_size(group)
    lengths = [torch.zeros(1, dtype=torch.int64, device=device) for _ in range(size)]
    dist.all_gather(lengths, torch.tensor([len(own)], dtype=torch.int64, device=device), group=group)
    counts = [int(length.item()) for length in lengths]
    longest = max(counts)
    if longest > most:
        raise CorruptError(f"{what} of {longest} bytes", f"rank {counts.index(longest)}")
    padded = torch.zeros(longest, dtype=torch.uint8, device=device)
    padded[: len(own)] = torch.frombuffer(bytearray(own), dtype=torch.uint8).to(device)
    gathered = [torch.empty_like(padded) for _ in range(size)]
    dist.all_gather(gathered, padded, group=group)
    return [part[:count].cpu().numpy().tobytes() for part, count in zip(gathered, counts, strict=True)]


def collective_device(group: dist.ProcessGroup | None) -> torch.device:
    """Returns the device on which tensors of a collective over ``group`` must lie: the CPU, unless its only backend is
    NCCL.
    """
    backends = str(dist.get_backend_config(group))
    return torch.device("cpu" if "cpu:" in backends or "gloo" in backends else "cuda")
