"""What the control plane reports: which endpoint, at which step, with which code."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sparsecast.errors import PeerFailedError, UsageError

if TYPE_CHECKING:
    from sparsecast.control.report import SyncReport

# An engine that ends with one of these may hold wrong bytes: it must not serve before it was seeded again.
DIRTY_CODES = frozenset({"dirty"})
# Its bytes were not those that the trainer's delta starts from, or leads to.
DIGEST_CODES = frozenset({"digest_mismatch", "wrong_base", "dirty"})
# In an engine's own words: others failed, or did not come. It is not to blame.
ECHO_CODES = frozenset({"peer_failed", "timeout"})


class EndpointError(PeerFailedError):
    """A step failed on one endpoint.

    `endpoint` is its name, `step` what was asked of it ("health", "join", "receive", "pause", "apply", "flush",
    "resume", ...). `code` is "timeout" (no answer until the deadline), "unauthenticated" (401 or 403), "unsupported"
    (the server has no such route), "corrupt" (an answer that is not what the route promises), "io" (no connection), the
    engine's own code where its answer names one, else "peer_failed".
    `echo`: the engine is not to blame, it only says that others failed or did not come.
    """

    def __init__(
        self, endpoint: str, step: str, message: str, *, code: str = "peer_failed", echo: bool = False
    ) -> None:
        super().__init__(message, code=code, context=f"endpoint {endpoint}: {step}")
        self.endpoint = endpoint
        self.step = step
        self.echo = echo


class ConflictError(UsageError):
    """The endpoint is registered already, with other attributes."""


class UnknownEndpointError(UsageError):
    """No such endpoint is registered."""


class BusyError(UsageError):
    """Another operation has the control plane; `holder` says which, since when and for whom."""

    def __init__(self, holder: str) -> None:
        super().__init__(f"the control plane is busy: {holder}")
        self.holder = holder


class SyncError(PeerFailedError):
    """A sync, or an operation on several endpoints, did not succeed everywhere.

    `failures` are the causes, one an endpoint that failed (empty if the trainer alone did). `report` says for every
    endpoint at which version it is; None for operations other than a sync.
    """

    def __init__(self, message: str, failures: list[EndpointError], report: SyncReport | None = None) -> None:
        super().__init__(message)
        self.failures = failures
        self.report = report
