# SPDX-License-Identifier: Apache-2.0
"""Torch tensors over memory that torch has not allocated, and host memory that a device reaches."""

from __future__ import annotations

import ctypes

import torch

from sparsecast.errors import UsageError


def tensor_at(
    address: int, dtype: torch.dtype, shape: tuple[int, ...], device: torch.device, owner: object = None
) -> torch.Tensor:
    """Returns a tensor over the memory at `address`, without a copy. On a CUDA device the tensor keeps `owner` alive;
    on the CPU the caller keeps the memory alive. Raises UsageError if the memory does not belong to the CUDA device
    `device`.
    """
    elements = 1
    for extent in shape:
        elements *= extent
    size = elements * dtype.itemsize
    if size == 0:
        return torch.empty(shape, dtype=dtype, device=device)
    if device.type == "cpu":
        memory = torch.frombuffer((ctypes.c_uint8 * size).from_address(address), dtype=torch.uint8)
    else:
        memory = torch.as_tensor(_DeviceBytes(address, size, owner), device=device)
        if memory.data_ptr() != address:  # Torch copies memory of another device, and writes would be lost.
            raise UsageError(
                f"the {size} bytes at {address:#x} are not memory of {device}, nor pinned while it was current"
            )
    return memory.view(dtype).view(shape)


def host_memory(elements: int, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    """Returns a tensor of `elements` zeros in host memory; pinned if `device` is a CUDA device, so that `seen_by`
    works.
    """
    return torch.zeros(elements, dtype=dtype, pin_memory=device.type == "cuda")


def seen_by(device: torch.device | None, tensor: torch.Tensor) -> torch.Tensor:
    """Returns a tensor of CUDA device `device` over the memory of `tensor`, which must be pinned host memory: the
    device reaches it at the same address. Returns `tensor` itself if it is on a CUDA device already, or if `device` is
    None.
    """
    if device is None or tensor.is_cuda:
        return tensor
    return tensor_at(tensor.data_ptr(), tensor.dtype, tuple(tensor.shape), device, tensor)


class _DeviceBytes:
    """Range of device memory in the form in which torch takes it without a copy (CUDA array interface); keeps `owner`
    alive.
    """

    def __init__(self, address: int, size: int, owner: object) -> None:
        self.__cuda_array_interface__ = {"shape": (size,), "typestr": "|u1", "data": (address, False), "version": 3}
        self._owner = owner
