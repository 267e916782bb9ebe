# SPDX-License-Identifier: Apache-2.0
"""Errors of the control plane: which endpoint failed, at which step, with which code."""

from __future__ import annotations

from sparsecast.errors import PeerFailedError, UsageError

# An engine with one of these codes may hold wrong bytes: it must not serve before it is seeded again.
DIRTY_CODES = frozenset({"dirty"})
# The bytes of the engine were not those that the delta of the trainer starts from, or leads to.
DIGEST_CODES = frozenset({"digest_mismatch", "wrong_base", "dirty"})
# The engine only reports that others failed or did not come; it is not the cause.
ECHO_CODES = frozenset({"peer_failed", "timeout"})


class EndpointError(PeerFailedError):
    """A step failed on one endpoint.

    `endpoint` is the endpoint's name, `step` the call that failed ("health", "join", "receive", "pause", "apply",
    "flush", "resume", ...). `code` is "timeout" (no answer until the deadline), "unauthenticated" (401 or 403),
    "unsupported" (the server has no such route), "corrupt" (an answer that is not what the route promises), "io" (no
    connection), the engine's own code where its answer names one, else "peer_failed".

    `echo` is True if the engine is not the cause: it only reports that others failed or did not come.
    """

    def __init__(
        self, endpoint: str, step: str, message: str, *, code: str = "peer_failed", echo: bool = False
    ) -> None:
        super().__init__(message, code=code, context=f"endpoint {endpoint}: {step}")
        self.endpoint = endpoint
        self.step = step
        self.echo = echo


class ConflictError(UsageError):
    """Raised for an endpoint whose host and port, or whose name, are registered already with other attributes."""


class UnknownEndpointError(UsageError):
    """Raised for an endpoint that is not registered."""


class BusyError(UsageError):
    """Raised while another operation is in progress. `holder` is a phrase that says which operation, for whom, and
    since when.
    """

    def __init__(self, holder: str) -> None:
        super().__init__(f"the control plane is busy: {holder}")
        self.holder = holder
