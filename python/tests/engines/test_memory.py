# SPDX-License-Identifier: Apache-2.0
"""Torch tensors over memory of others are that memory, or refused."""

from __future__ import annotations

import pytest
import torch

from sparsecast.engines.trace.memory import _DeviceBytes, tensor_at
from sparsecast.errors import UsageError

DEVICE = torch.device("cuda", 1)


def over(monkeypatch: pytest.MonkeyPatch, *, copies: bool) -> torch.Tensor:
    """Asks for a tensor over host memory as one of a device, from a torch that copies what lies on another one."""
    memory = torch.arange(8, dtype=torch.int16)

    def as_tensor(data: _DeviceBytes, device: torch.device) -> torch.Tensor:
        assert device == DEVICE
        assert data.__cuda_array_interface__["data"] == (memory.data_ptr(), False)
        given = memory.view(torch.uint8)
        return given.clone() if copies else given

    monkeypatch.setattr(torch, "as_tensor", as_tensor)
    return tensor_at(memory.data_ptr(), torch.int16, (2, 4), DEVICE)


def test_a_tensor_of_a_device_is_the_memory_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    assert over(monkeypatch, copies=False).tolist() == [[0, 1, 2, 3], [4, 5, 6, 7]]


def test_a_copy_that_torch_makes_of_memory_elsewhere_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UsageError, match="the 16 bytes at 0x[0-9a-f]+ are not memory of cuda:1"):
        over(monkeypatch, copies=True)
