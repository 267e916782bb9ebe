# SPDX-License-Identifier: Apache-2.0
"""Memory that the rollout workers of one node share: files without a name in a directory that all of them see."""

from __future__ import annotations

import json
import mmap
import os
import stat
import tempfile
from collections.abc import Iterable, Mapping
from typing import Any

from sparsecast import ControlChannel
from sparsecast.errors import CorruptError, IoError

from ._checkpoint_group import json_object

_PREFIX = "sparsecast-"


class NodeFiles:
    """Shares memory between the rollout workers of one node: the leader creates files, and the other workers open them.
    All workers of the node must call at the same time: the leader `create`, the others `open`.

    node       control channel of the workers of the node.
    directory  directory, best in memory, that all workers of the node see.
    option     name of the framework's option that sets the directory, for errors.
    timeout    seconds for each call.
    """

    def __init__(self, node: ControlChannel, directory: str, option: str, timeout: float) -> None:
        self._node = node
        self._directory = os.path.realpath(directory)
        self._option = option
        self._timeout = timeout

    def create(self, size: int, parts: Iterable[memoryview] = (), **fields: Any) -> mmap.mmap:
        """Called on the leader: returns new memory of `size` bytes that begins with `parts`, when every worker of the
        node has mapped it and received `fields`. Raises IoError, whose message says what to do, if the directory has no
        room.
        """
        try:
            handle, path = tempfile.mkstemp(prefix=_PREFIX, dir=self._directory)
        except OSError as error:
            raise self._failed(error, size) from error
        try:
            memory = self._filled(handle, size, parts)
            note = {**fields, "file": os.path.basename(path), "size": size}
            self._node.broadcast(json.dumps(note).encode(), self._timeout)
            self._node.all_gather(b"", self._timeout)
            return memory
        finally:
            os.unlink(path)
            os.close(handle)

    def _filled(self, handle: int, size: int, parts: Iterable[memoryview]) -> mmap.mmap:
        try:
            os.posix_fallocate(handle, 0, size)  # Or a full directory would end the process when it is written to.
            memory = mmap.mmap(handle, size)
        except OSError as error:
            raise self._failed(error, size) from error
        for part in parts:
            memory.write(part)
        return memory

    def open(self) -> tuple[mmap.mmap, Mapping[str, Any]]:
        """Called on another worker: returns the leader's memory and fields. Raises IoError, whose message says what to
        do, if the file cannot be opened, and CorruptError for a file that is not the leader's.
        """
        fields = parse_note(self._node.broadcast(b"", self._timeout))
        path, size = os.path.join(self._directory, fields["file"]), fields["size"]
        try:
            handle = os.open(path, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
            try:
                state = os.fstat(handle)
                if not stat.S_ISREG(state.st_mode) or state.st_uid != os.getuid() or state.st_size != size:
                    raise CorruptError(f"it is not the leader's file of {size} bytes", path)
                memory = mmap.mmap(handle, size)
            finally:
                os.close(handle)
        except OSError as error:
            raise self._failed(error, size) from error
        self._node.all_gather(b"", self._timeout)
        return memory, fields

    def _failed(self, error: OSError, size: int) -> IoError:
        return IoError(
            f"{error.strerror}: the rollout workers of a node share {size >> 20} MiB more there; name a directory in "
            f"memory that all of them see and that has room for that, as {self._option} (in a container: --shm-size)",
            self._directory,
        )


def parse_note(data: bytes) -> dict[str, Any]:
    """Returns the fields that came with a file, after checking that they have a valid file name and a size in bytes.
    Raises CorruptError if they do not.
    """
    fields = json_object(data, "memory of the node")
    name, size = fields.get("file"), fields.get("size")
    if not isinstance(name, str) or os.path.basename(name) != name or not name.startswith(_PREFIX):
        raise CorruptError(f"{name!r} is no file of the leader", "memory of the node")
    if type(size) is not int or size <= 0:
        raise CorruptError(f"{size!r} is no size of a file", "memory of the node")
    return fields
