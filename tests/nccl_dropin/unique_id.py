# SPDX-License-Identifier: Apache-2.0
"""The unique id of a communicator, from the rank that makes it to the others by a file."""

import ctypes
import time
from pathlib import Path


class UniqueId(ctypes.Structure):
    _fields_ = [("internal", ctypes.c_byte * 128)]


def shared_id(nccl: ctypes.CDLL, rank: int, file: Path, seconds: float) -> UniqueId:
    """Returns the id that rank 0 makes and writes into `file`; other ranks wait for it so long."""
    if rank == 0:
        unique, draft = UniqueId(), file.with_suffix(".draft")
        result = nccl.ncclGetUniqueId(ctypes.byref(unique))
        nccl.ncclGetErrorString.restype = ctypes.c_char_p
        assert result == 0, f"NCCL: {nccl.ncclGetErrorString(result).decode()}"
        draft.write_bytes(bytes(unique))
        draft.rename(file)
    until = time.monotonic() + seconds
    while not file.exists():
        assert time.monotonic() < until, "rank 0 has made no id"
        time.sleep(0.01)
    return UniqueId.from_buffer_copy(file.read_bytes())
