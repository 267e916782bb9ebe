# SPDX-License-Identifier: Apache-2.0
"""Reads and writes the files of a trace, atomically."""

from __future__ import annotations

import contextlib
import os
import pathlib
import re
from collections.abc import Callable
from typing import Any

import numpy as np
import safetensors

from ..errors import CorruptError, IoError

#: Suffix of the name of a file that is being written; no reader takes such a file for a step.
PARTIAL = ".partial"

_STEP_NAME = re.compile(r"step_(\d+)\.safetensors")


def step_path(directory: pathlib.Path, version: int) -> pathlib.Path:
    """Returns the path of the file of this version in a trace's directory."""
    return directory / f"step_{version:06d}.safetensors"


def steps_in(directory: pathlib.Path) -> list[tuple[int, pathlib.Path]]:
    """Returns (version, file) of every step in a trace's directory, in order of version; ignores other files. Raises
    IoError if the directory cannot be listed.
    """
    try:
        found = [(_STEP_NAME.fullmatch(entry.name), entry) for entry in directory.iterdir()]
    except OSError as error:
        raise IoError(error.strerror or str(error), str(directory)) from error
    return sorted((int(match[1]), entry) for match, entry in found if match)


def write_atomically(path: pathlib.Path, write: Callable[[pathlib.Path], None]) -> None:
    """Writes the file ``path`` so that it is never there in part: calls ``write`` to fill another file in its
    directory, makes that durable, and renames it.

    After an interruption at any point ``path`` is unchanged or complete. Raises IoError if the operating system
    refuses.
    """
    partial = path.with_name(path.name + PARTIAL)
    try:
        write(partial)
        _sync(partial)
        os.replace(partial, path)
        _sync(path.parent)
    except BaseException as error:
        with contextlib.suppress(OSError):
            partial.unlink()
        if isinstance(error, OSError):
            raise IoError(error.strerror or str(error), str(path)) from error
        if isinstance(error, safetensors.SafetensorError):
            raise IoError(str(error), str(path)) from error
        raise


def _sync(path: pathlib.Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


Entry = tuple[str, tuple[int, ...], "np.ndarray[Any, np.dtype[np.uint8]]"]


def read_safetensors(path: pathlib.Path) -> tuple[dict[str, Entry], dict[str, str]]:
    """Returns (safetensors dtype, shape, bytes) of each tensor by name, and the metadata of the file.

    Raises CorruptError if the file is not a safetensors file, and IoError if it cannot be read.
    """
    try:
        with safetensors.safe_open(path, framework="numpy") as file:
            metadata = dict(file.metadata() or {})
        deserialize: Any = safetensors.deserialize  # Typed in some releases only.
        entries = deserialize(path.read_bytes())
    except safetensors.SafetensorError as error:
        raise CorruptError(str(error), str(path)) from error
    except OSError as error:
        raise IoError(error.strerror or str(error), str(path)) from error
    tensors: dict[str, Entry] = {}
    for name, entry in entries:
        tensors[name] = (entry["dtype"], tuple(entry["shape"]), np.frombuffer(entry["data"], np.uint8))
    return tensors, metadata
