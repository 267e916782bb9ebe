# SPDX-License-Identifier: Apache-2.0
"""Places for a delta log that Python brings: a store of your own, every store of the library obstore (S3, Google, Azure),
and buckets of Hugging Face.

An object of these classes stands wherever a log's location does: ``Log(location=...)``, ``LogPublisher``,
``LogFollower``, ``create_log``, ``log_head`` (docs/object-stores.md).
"""

from __future__ import annotations

import abc
import contextlib
import dataclasses
import datetime
import mmap
import secrets
import tempfile
import threading
from collections.abc import Callable, Iterable, Iterator
from typing import IO, Any, Protocol, cast

from .errors import CorruptError, UnauthenticatedError, UnsupportedError

_EPOCH = datetime.datetime.fromtimestamp(0, datetime.timezone.utc)


@dataclasses.dataclass(frozen=True)
class StoredObject:
    """An object in the result of :meth:`Store.list`: its key, its size in bytes, and when it was written (with a time
    zone).
    """

    key: str
    bytes: int
    modified: datetime.datetime


class Upload(Protocol):
    """An object that is being written in parts. Readers do not see it before :meth:`commit`."""

    def write(self, data: bytes) -> None:
        """Appends ``data`` to the object."""

    def commit(self) -> None:
        """Makes the whole object visible and durable; it replaces an older object with the same key. Called at most
        once.
        """

    def close(self) -> None:
        """Ends the upload, and drops data that was not committed. It is always called, as the last call."""


class Store(abc.ABC):
    """Storage of a delta log's objects. Objects are whole: a reader sees all bytes that one call wrote, or none.

    Keys are relative, of ``A-Z a-z 0-9 . _ -`` and ``/``. Methods are called from several threads at once, including
    threads of the library, and each call must end by a time-out of its own. They report a failure by an exception: an
    exception of :mod:`sparsecast.errors` keeps its kind and message, ``TimeoutError`` becomes a :class:`DeadlineError`,
    ``PermissionError`` an :class:`UnauthenticatedError`, any other an :class:`IoError`. A store itself tries operations
    again that failed for a passing reason, before it raises. ``location`` is the name of the store in errors.
    """

    location: str = "store"

    @abc.abstractmethod
    def put(self, key: str, data: bytes) -> None:
        """Writes an object, or replaces it; it is durable on return. ``data`` is bytes, or a view of a file of any size
        that is valid only during the call.
        """

    @abc.abstractmethod
    def put_if_absent(self, key: str, data: bytes) -> bool:
        """Creates an object and returns True. Returns False, and writes nothing, if there is an object with this key
        already. Of any number of racing callers, on any machine, at most one may get True; otherwise a log could have
        two histories.
        """

    @abc.abstractmethod
    def get(self, key: str, max_bytes: int) -> bytes | None:
        """Returns the content of an object (bytes, or any object with the buffer protocol), or None if there is no such
        object. Raises CorruptError for an object of more than ``max_bytes`` bytes, before reading it into memory.
        """

    @abc.abstractmethod
    def size(self, key: str) -> int | None:
        """Returns the size of an object in bytes, or None if there is no such object."""

    @abc.abstractmethod
    def get_range(self, key: str, offset: int, length: int) -> bytes:
        """Returns ``length`` bytes of an object from byte ``offset`` on (bytes, or any object with the buffer
        protocol). Raises FileNotFoundError if there is no such object, CorruptError if it is too short.
        """

    @abc.abstractmethod
    def list(self, prefix: str) -> Iterable[StoredObject]:
        """Returns the objects whose key begins with ``prefix``, in any order. The list may be stale."""

    @abc.abstractmethod
    def remove(self, key: str) -> None:
        """Removes an object. Does nothing if there is no such object."""

    def upload(self, key: str, size: int) -> Upload:
        """Returns an upload of an object of about ``size`` bytes. Stores may override this method. This implementation
        collects the bytes (in memory up to 8 MiB, else in a file in ``tempfile``'s directory), and passes them to
        :meth:`put`.
        """
        del size
        return _Spooled(self, key)


class _Spooled:
    """Upload for a store that can only write whole objects, by put()."""

    def __init__(self, store: Store, key: str) -> None:
        self._store, self._key = store, key
        self._file = tempfile.SpooledTemporaryFile(max_size=8 << 20)  # noqa: SIM115 (closed by close)

    def write(self, data: bytes) -> None:
        self._file.write(data)

    def commit(self) -> None:
        if not self._file.tell():
            self._store.put(self._key, b"")
        elif self._file._rolled:  # type: ignore[attr-defined]
            self._file.flush()
            with mmap.mmap(self._file.fileno(), 0, access=mmap.ACCESS_READ) as mapped:
                self._store.put(self._key, mapped)  # type: ignore[arg-type]
        else:
            self._file.seek(0)
            self._store.put(self._key, self._file.read())

    def close(self) -> None:
        self._file.close()


class Obstore(Store):
    """A store of the library obstore, with the credentials that it was made with: ``obstore.store.S3Store``,
    ``GCSStore``, ``AzureStore``, or a result of ``obstore.store.from_url``. If the log has a prefix, it is given to
    that store.

    The first :meth:`put_if_absent` writes a test object to find out whether the store refuses to create an object
    twice. ``LocalStore`` and ``MemoryStore`` are for tests only, because their objects may be lost when the machine
    crashes; for a directory, use its path as the location of the log instead.
    """

    def __init__(self, store: Any, location: str = "") -> None:
        try:
            import obstore
        except ImportError as error:
            raise UnsupportedError(
                "sparsecast.stores.Obstore needs the library obstore: pip install obstore"
            ) from error
        self._obstore = obstore
        self._store = store
        self.location = location or repr(store)
        self._tested = False
        self._lock = threading.Lock()

    @contextlib.contextmanager
    def _errors(self) -> Iterator[None]:
        kinds = self._obstore.exceptions
        try:
            yield
        except (kinds.UnauthenticatedError, kinds.PermissionDeniedError) as error:
            raise UnauthenticatedError(str(error)) from error
        except kinds.NotSupportedError as error:
            raise UnsupportedError(str(error)) from error

    def put(self, key: str, data: bytes) -> None:
        with self._errors():
            self._obstore.put(self._store, key, data)

    def put_if_absent(self, key: str, data: bytes) -> bool:
        with self._lock:
            if not self._tested:
                self._test()
        return self._create(key, data)

    def _create(self, key: str, data: bytes) -> bool:
        with self._errors():
            try:
                self._obstore.put(self._store, key, data, mode="create")
            except (self._obstore.exceptions.AlreadyExistsError, self._obstore.exceptions.PreconditionError):
                return False
        return True

    def _test(self) -> None:
        key = f"probe-{secrets.token_hex(16)}"
        try:
            if not self._create(key, b"1") or self._create(key, b"2"):
                raise UnsupportedError("the store creates an object twice, so two publishers could commit one version")
        finally:
            with contextlib.suppress(Exception):
                self.remove(key)  # Writers need no permission to remove; then a small object remains.
        self._tested = True

    def get(self, key: str, max_bytes: int) -> bytes | None:
        with self._errors():
            try:
                found = self._obstore.get(self._store, key)
            except FileNotFoundError:
                return None
            if found.meta["size"] > max_bytes:
                raise CorruptError(f"it has {found.meta['size']} bytes, more than the {max_bytes} that it can have")
            return cast(bytes, found.bytes())  # A buffer, which is not copied.

    def size(self, key: str) -> int | None:
        with self._errors():
            try:
                return int(self._obstore.head(self._store, key)["size"])
            except FileNotFoundError:
                return None

    def get_range(self, key: str, offset: int, length: int) -> bytes:
        with self._errors():
            if length:
                try:
                    return cast(bytes, self._obstore.get_range(self._store, key, start=offset, length=length))
                except self._obstore.exceptions.GenericError:
                    self._require(key, offset + length)  # A range that begins after the end is a failure of its own.
                    raise
            self._require(key, offset)
            return b""

    def _require(self, key: str, size: int) -> None:
        found = self.size(key)
        if found is None:
            raise FileNotFoundError(key)
        if found < size:
            raise CorruptError(f"it ends at byte {found}, before byte {size}")

    def list(self, prefix: str) -> Iterable[StoredObject]:
        folder = prefix.rpartition("/")[0]  # obstore takes whole parts of keys alone.
        with self._errors():
            for batch in self._obstore.list(self._store, prefix=folder or None):
                for entry in batch:
                    if entry["path"].startswith(prefix):
                        yield StoredObject(entry["path"], entry["size"], entry["last_modified"])

    def remove(self, key: str) -> None:
        with self._errors(), contextlib.suppress(FileNotFoundError):
            self._obstore.delete(self._store, key)


class HuggingFaceBucket(Store):
    """A bucket of Hugging Face, ``"user/bucket"``, through huggingface_hub and its token. The log is below ``prefix``,
    if one is given.

    **Hugging Face cannot create an object only if it is absent**, so two publishers could commit different versions
    with the same number. With ``single_writer=True`` the caller promises that at most one publisher of this log runs at
    any time, on all machines, including publishers that hang. Then :meth:`put_if_absent` first checks whether the
    object exists, and writes it if it does not; without the promise it raises UnsupportedError. Readers need no
    promise. If the promise is broken, a reader that has seen the overwritten commit refuses the log (RolledBackError or
    MixedError), because its state remembers the hash of the commit; a reader that comes later sees only the other
    history.

    Ranges are cut from whole objects; the object that was read last is kept in a file in ``tempfile``'s directory.
    ``api`` is the ``huggingface_hub.HfApi`` to use (None: a new one).
    """

    def __init__(self, bucket: str, prefix: str = "", *, single_writer: bool = False, api: Any = None) -> None:
        if api is None:
            try:
                from huggingface_hub import HfApi
            except ImportError as error:
                raise UnsupportedError(
                    "sparsecast.stores.HuggingFaceBucket needs huggingface_hub: pip install huggingface_hub"
                ) from error
            api = HfApi()
        if not hasattr(api, "batch_bucket_files"):
            raise UnsupportedError("this huggingface_hub is too old for buckets: pip install -U huggingface_hub")
        self._api = api
        self._bucket = bucket
        self._prefix = prefix.strip("/") + "/" if prefix.strip("/") else ""
        self._single_writer = single_writer
        self._lock = threading.Lock()
        self._kept: tuple[str, IO[bytes]] | None = None  # The hash of the newest object of get_range, and its bytes.
        self.location = f"hf://buckets/{bucket}/{self._prefix}".rstrip("/")

    @contextlib.contextmanager
    def _errors(self) -> Iterator[None]:
        try:
            yield
        except Exception as error:
            if getattr(getattr(error, "response", None), "status_code", None) in (401, 403):
                raise UnauthenticatedError(str(error)) from error
            raise

    def _info(self, key: str) -> Any:
        """Returns what the bucket reports about an object, with its size and hash; None if there is no such object."""
        with self._errors():
            return next(iter(self._api.get_bucket_paths_info(self._bucket, [self._prefix + key])), None)

    def _download(self, info: Any, file: IO[bytes]) -> None:
        with self._errors():
            self._api.download_bucket_files(self._bucket, [(info, file.name)], raise_on_missing_files=True)

    def _add(self, source: bytes | str, key: str) -> None:
        with self._errors():
            self._api.batch_bucket_files(self._bucket, add=[(source, self._prefix + key)])

    def put(self, key: str, data: bytes) -> None:
        self._add(bytes(data), key)

    def put_if_absent(self, key: str, data: bytes) -> bool:
        if not self._single_writer:
            raise UnsupportedError(
                "a bucket of Hugging Face cannot create an object only where there is none: give single_writer=True if "
                "no other publisher of this log can run"
            )
        if self._info(key) is not None:
            return False
        self.put(key, data)
        return True

    def get(self, key: str, max_bytes: int) -> bytes | None:
        info = self._info(key)
        if info is None:
            return None
        if info.size > max_bytes:
            raise CorruptError(f"it has {info.size} bytes, more than the {max_bytes} that it can have")
        with tempfile.NamedTemporaryFile() as file:
            self._download(info, file)
            with open(file.name, "rb") as whole:  # The download may have put another file in its place.
                return whole.read()

    def size(self, key: str) -> int | None:
        info = self._info(key)
        return None if info is None else int(info.size)

    def get_range(self, key: str, offset: int, length: int) -> bytes:
        info = self._info(key)
        if info is None:
            raise FileNotFoundError(key)
        if info.size < offset + length:
            raise CorruptError(f"it ends at byte {info.size}, before byte {offset + length}")
        with self._lock:
            if self._kept is None or self._kept[0] != info.xet_hash:
                self._kept = None
                with tempfile.NamedTemporaryFile() as file:
                    self._download(info, file)
                    self._kept = (info.xet_hash, open(file.name, "rb"))  # noqa: SIM115 (kept; it has no name soon)
            self._kept[1].seek(offset)
            return self._kept[1].read(length)

    def list(self, prefix: str) -> Iterable[StoredObject]:
        folder = (self._prefix + prefix).rpartition("/")[0]
        with self._errors():
            try:
                for entry in self._api.list_bucket_tree(self._bucket, prefix=folder or None, recursive=True):
                    key = entry.path.removeprefix(self._prefix)
                    if entry.type == "file" and entry.path == self._prefix + key and key.startswith(prefix):
                        yield StoredObject(key, entry.size, entry.uploaded_at or entry.mtime or _EPOCH)
            except Exception as error:
                if getattr(getattr(error, "response", None), "status_code", None) != 404:
                    raise  # There is no such folder yet otherwise.

    def remove(self, key: str) -> None:
        if self._info(key) is not None:
            with self._errors():
                self._api.batch_bucket_files(self._bucket, delete=[self._prefix + key])

    def upload(self, key: str, size: int) -> Upload:
        """Returns an upload that collects the bytes in a file in ``tempfile``'s directory."""
        del size
        return _UploadOfFile(self._add, key)


class _UploadOfFile:
    """Upload for a store that can write an object from a file, by the name of the file."""

    def __init__(self, add: Callable[[str, str], None], key: str) -> None:
        self._add, self._key = add, key
        self._file = tempfile.NamedTemporaryFile()  # noqa: SIM115 (closed by close)

    def write(self, data: bytes) -> None:
        self._file.write(data)

    def commit(self) -> None:
        self._file.flush()
        self._add(self._file.name, self._key)

    def close(self) -> None:
        self._file.close()
