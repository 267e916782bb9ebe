# SPDX-License-Identifier: Apache-2.0
"""Ports on loopback."""

from __future__ import annotations

import socket


def free_port() -> int:
    """A port that nobody listens on now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def held_port() -> socket.socket:
    """A socket that holds a port, its `getsockname()[1]`, until it is closed: the system gives the port to nobody who
    asks for any, while a listener that is told of it, and allows addresses to be used again, gets it.
    """
    held = socket.socket()
    held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    held.bind(("127.0.0.1", 0))
    return held
