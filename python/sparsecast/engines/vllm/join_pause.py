# SPDX-License-Identifier: Apache-2.0
"""The pause of a vLLM server while its workers join a trainer that has vLLM's own interface, without a control plane.

Workers that join generate nothing in any case. The pause is for a join that ends in the middle of the weights that the
trainer sends: these are of no version, and must not be served. A lease is on the pause, so that the server itself
decides when the trainer is gone: it goes on if its weights are whole, and else stays paused until a trainer has joined.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from typing import Any

from sparsecast.engines.vllm.meeting import base_url, call, worker_statuses
from sparsecast.errors import IoError

_LEASE_SECONDS = 15.0
_RENEW_SECONDS = 4.0
_SOON_SECONDS = 1.0


@contextlib.contextmanager
def paused_join(client: Any) -> Iterator[None]:
    """Pauses the server behind vLLM's HTTP client inside the block, in which its workers join. After an error the server
    decides by itself, a second later, whether it goes on.

    Does nothing if the server has no leases (docs/control.md, "When the trainer dies"), if `client` is no HTTP client,
    or if the caller has paused the server. Raises IoError if the server takes a lease, but no pause.
    """
    base = base_url(client)
    if base is None or _is_paused_by_another(base) or not _lease(base, _LEASE_SECONDS):
        yield
        return
    ended = threading.Event()

    def renew() -> None:
        while not ended.wait(_RENEW_SECONDS):
            _lease(base, _LEASE_SECONDS)

    renewing = threading.Thread(target=renew, name="sparsecast-lease", daemon=True)
    renewing.start()
    try:
        call(f"{base}/pause?mode=keep&clear_cache=false", {})
        yield
        call(f"{base}/resume", {})
    except BaseException:
        ended.set()
        renewing.join()
        _lease(base, _SOON_SECONDS)
        raise
    ended.set()
    renewing.join()
    _lease(base, 0)


def _is_paused_by_another(base: str) -> bool:
    """Returns whether the server is paused although its weights are whole. The pause of a join that has failed in the
    middle is no such pause: it ends with the next join.
    """
    try:
        if call(f"{base}/is_paused").get("is_paused") is not True:
            return False
    except IoError:
        return False
    workers = worker_statuses(base)
    return workers is not None and all(
        isinstance(worker, dict) and worker.get("is_whole") is True for worker in workers
    )


def _lease(base: str, seconds: float) -> bool:
    """Takes, renews or ends (0) the lease. Returns False if the server does not have leases, or does not answer."""
    try:
        call(f"{base}/sparsecast/lease", {"seconds": seconds})
    except IoError:
        return False
    return True
