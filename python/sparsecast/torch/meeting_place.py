# SPDX-License-Identifier: Apache-2.0
"""A place where the ranks of a torch process group can meet over TCP."""

from __future__ import annotations

import json
import secrets
import socket
from typing import Any

import torch.distributed as dist

from ..transports import address_facing, free_port
from .layouts import gather_bytes

LOOPBACK = "127.0.0.1"

_MOST_BYTES = 1 << 20


def meeting_place(group: dist.ProcessGroup) -> dict[str, Any]:
    """Returns the fields ``host``, ``port`` and ``secret`` of a new :class:`sparsecast.transports.World`, the same on
    all ranks of ``group``. The place is a free port of rank 0, at the loopback address if all ranks are on one host.
    Collective over the group.
    """
    hosts = [part.decode() for part in gather_bytes(socket.gethostname().encode(), group, _MOST_BYTES, "a host's name")]
    chosen = b"{}"
    if dist.get_rank(group) == 0:
        others = [host for host in hosts if host != hosts[0]]
        host = address_facing(others[0], 1) if others else LOOPBACK
        chosen = json.dumps({"host": host, "port": free_port(), "secret": secrets.token_hex(32)}).encode()
    place: dict[str, Any] = json.loads(gather_bytes(chosen, group, _MOST_BYTES, "a meeting place")[0])
    return place
