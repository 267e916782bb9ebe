# SPDX-License-Identifier: Apache-2.0
"""Exceptions of sparsecast: one class for each kind of error, all derived from :class:`Error`.

``code`` is the stable name of the kind ("corrupt", "wrong_base", ...), ``message`` one sentence, and ``context`` where
it happened (file, tensor, frame, offset). ``str()`` is "context: message".
"""

from __future__ import annotations

import builtins


class Error(RuntimeError):
    """Base class of all errors: what went wrong (``message``), its kind (``code``), and where it happened (``context``;
    may be empty).
    """

    code: str = "error"

    def __init__(self, message: str, context: str = "", code: str | None = None) -> None:
        super().__init__(f"{context}: {message}" if context else message)
        self.message = message
        self.context = context
        if code is not None:
            self.code = code

    def __reduce__(self) -> tuple[type[Error], tuple[str, str, str]]:
        return type(self), (self.message, self.context, self.code)


class UsageError(Error, ValueError):
    """The caller broke a precondition: a wrong size, dtype, shape or name, or a wrong order of calls."""

    code = "usage"


class CorruptError(Error):
    """Bytes are torn, altered or nonsensical."""

    code = "corrupt"


class UnsupportedError(Error):
    """Well-formed input of a version, dtype, layout or feature that is not supported here."""

    code = "unsupported"


class TableMismatchError(Error):
    """Publisher and subscriber have different tensor tables."""

    code = "table_mismatch"


class ForeignStreamError(Error):
    """A record belongs to another stream, or to another delta than the one that is being staged."""

    code = "foreign_stream"


class StaleVersionError(Error):
    """The version is already applied, or older than the version that is applied."""

    code = "stale_version"


class VersionGapError(Error):
    """The delta starts from a version that the receiver does not hold."""

    code = "version_gap"


class WrongBaseError(Error):
    """The receiver holds the version from which the delta starts, but its bytes differ."""

    code = "wrong_base"


class DigestMismatchError(Error):
    """After an apply the state digest was not the expected one; the receiver is back at the old version."""

    code = "digest_mismatch"


class DirtyError(Error):
    """The live weights are known to be wrong; only an anchor repairs them."""

    code = "dirty"


class IncompleteError(Error):
    """Part of a version has not arrived yet."""

    code = "incomplete"


class IoError(Error, OSError):
    """The operating system or a store refused an operation."""

    code = "io"

    def __init__(self, message: str, context: str = "", code: str | None = None) -> None:
        Error.__init__(self, message, context, code)

    def __str__(self) -> str:
        return f"{self.context}: {self.message}" if self.context else self.message


class DeadlineError(Error, builtins.TimeoutError):
    """A deadline passed while a peer, a store or a device was silent."""

    code = "timeout"

    def __init__(self, message: str, context: str = "", code: str | None = None) -> None:
        Error.__init__(self, message, context, code)

    def __str__(self) -> str:
        return f"{self.context}: {self.message}" if self.context else self.message


class PeerFailedError(Error):
    """A peer reported a failure, or its connection ended."""

    code = "peer_failed"


class UnauthenticatedError(Error):
    """A peer does not know the secret, or a request has no valid token."""

    code = "unauthenticated"


class GroupMismatchError(Error):
    """The ranks of a group disagree on its size, its members, its libraries or what they do next."""

    code = "group_mismatch"


class DeviceError(Error):
    """The device, its driver, CUDA or NCCL reported an error."""

    code = "device"


class FencedError(Error):
    """Another publisher has taken over the log or committed this version first, or another trainer has taken over the
    engine. Final: trying again does not help.
    """

    code = "fenced"


class GoneError(Error):
    """The requested object was removed from the log by retention."""

    code = "gone"


class UnsignedError(Error):
    """The reader trusts only certain keys, and the object has no signature by a supported algorithm."""

    code = "unsigned"


class ForeignKeyError(Error):
    """The object is signed, but not by a key that is trusted at this version."""

    code = "foreign_key"


class ReplayedError(Error):
    """An object with a valid signature is in the place of another object."""

    code = "replayed"


class RolledBackError(Error):
    """The log shows an older newest version, another history or a lower epoch than this reader saw before."""

    code = "rolled_back"


class MixedError(Error):
    """Objects with valid signatures do not belong together: a hash, digest or predecessor is not the expected one."""

    code = "mixed"


class ExpiredError(Error):
    """The newest commit of the log is older than the caller allows."""

    code = "expired"


def _leaves(base: type[Error]) -> dict[str, type[Error]]:
    return {kind.code: kind for kind in base.__subclasses__()}


BY_CODE: dict[str, type[Error]] = _leaves(Error)


def make(code: str, message: str, context: str) -> Error:
    """Returns an exception of the class for ``code`` (of :class:`Error` itself for an unknown code).
    ``sparsecast._core`` calls this function for errors of the C++ library.
    """
    kind = BY_CODE.get(code)
    return kind(message, context) if kind else Error(message, context, code)
