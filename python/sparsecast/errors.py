"""The exceptions of sparsecast: one class a kind of error, all of them :class:`Error`.

``code`` is the kind's stable name ("corrupt", "wrong_base", ...), ``message`` one sentence, ``context`` where it
happened (file, tensor, frame, offset), and ``str()`` is "context: message".
"""

from __future__ import annotations

import builtins


class Error(RuntimeError):
    """What went wrong (``message``), of which kind (``code``), and where (``context``; may be empty)."""

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
    """The caller broke a precondition: wrong size, dtype, shape, name, or order of calls."""

    code = "usage"


class CorruptError(Error):
    """Bytes are torn, altered or nonsensical."""

    code = "corrupt"


class UnsupportedError(Error):
    """Well-formed, but of a version, dtype, layout or feature that is not carried here."""

    code = "unsupported"


class TableMismatchError(Error):
    """The two ends do not carry the same tensor table."""

    code = "table_mismatch"


class ForeignStreamError(Error):
    """A record of another stream, or of another delta than the one being staged."""

    code = "foreign_stream"


class StaleVersionError(Error):
    """The version is already applied, or older."""

    code = "stale_version"


class VersionGapError(Error):
    """The delta starts from a version that this end does not hold."""

    code = "version_gap"


class WrongBaseError(Error):
    """Same version number, other bytes."""

    code = "wrong_base"


class DigestMismatchError(Error):
    """After the apply the state digest is not the promised one; the old version stands."""

    code = "digest_mismatch"


class DirtyError(Error):
    """The live state is known to be wrong; only an anchor helps."""

    code = "dirty"


class IncompleteError(Error):
    """Something has not arrived yet."""

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
    """A peer reported that it failed, or is gone."""

    code = "peer_failed"


class UnauthenticatedError(Error):
    """The other end does not know the secret, or a request has no valid token."""

    code = "unauthenticated"


class GroupMismatchError(Error):
    """The ranks of a group disagree on its size, its members, its libraries or what they do next."""

    code = "group_mismatch"


class DeviceError(Error):
    """The device, its driver, CUDA or NCCL reported an error."""

    code = "device"


class FencedError(Error):
    """Another publisher has taken the log over, or committed this version first. Final."""

    code = "fenced"


class GoneError(Error):
    """Retention has removed what was asked for."""

    code = "gone"


class UnsignedError(Error):
    """Keys are pinned, and the object has no signature by a known algorithm."""

    code = "unsigned"


class ForeignKeyError(Error):
    """It is signed, but by no key that is trusted at this version."""

    code = "foreign_key"


class ReplayedError(Error):
    """A genuine object in another one's place."""

    code = "replayed"


class RolledBackError(Error):
    """The log shows an older head, another history or a lower epoch than was seen before."""

    code = "rolled_back"


class MixedError(Error):
    """Genuine parts that do not belong together."""

    code = "mixed"


class ExpiredError(Error):
    """The newest commit is older than the caller allows."""

    code = "expired"


def _leaves(base: type[Error]) -> dict[str, type[Error]]:
    return {kind.code: kind for kind in base.__subclasses__()}


BY_CODE: dict[str, type[Error]] = _leaves(Error)


def make(code: str, message: str, context: str) -> Error:
    """The exception for an error of the C++ library; called by ``sparsecast._core``."""
    kind = BY_CODE.get(code)
    return kind(message, context) if kind else Error(message, context, code)
