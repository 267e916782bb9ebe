# SPDX-License-Identifier: Apache-2.0
"""Logs in stores that Python brings: the whole cycle, failures of a store, threads, and the end of a program."""

from __future__ import annotations

import array
import dataclasses
import datetime
import hashlib
import subprocess
import sys
import textwrap
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import sparsecast
from sparsecast import errors, stores
from sparsecast.transports import Log

if not sparsecast.has_log:
    pytest.skip("built without delta logs", allow_module_level=True)


class DictStore(stores.Store):
    """A store in memory. ``hook(method, key)`` is called before each call."""

    location = "dict"

    def __init__(self) -> None:
        self.objects: dict[str, bytes] = {}
        self.hook: Callable[[str, str], Any] = lambda method, key: None
        self.lock = threading.Lock()

    def put(self, key: str, data: bytes) -> None:
        self.hook("put", key)
        self.objects[key] = bytes(data)

    def put_if_absent(self, key: str, data: bytes) -> bool:
        self.hook("put_if_absent", key)
        with self.lock:
            return self.objects.setdefault(key, data) is data

    def get(self, key: str, max_bytes: int) -> bytes | None:
        self.hook("get", key)
        return self.objects.get(key)

    def size(self, key: str) -> int | None:
        self.hook("size", key)
        return len(self.objects[key]) if key in self.objects else None

    def get_range(self, key: str, offset: int, length: int) -> bytes:
        self.hook("get_range", key)
        if key not in self.objects:
            raise FileNotFoundError(key)
        return self.objects[key][offset : offset + length]

    def list(self, prefix: str) -> list[stores.StoredObject]:
        self.hook("list", prefix)
        now = datetime.datetime.now(datetime.timezone.utc)
        return [stores.StoredObject(k, len(v), now) for k, v in self.objects.items() if k.startswith(prefix)]

    def remove(self, key: str) -> None:
        self.hook("remove", key)
        del self.objects[key]


SIZE = 4096
TABLE = sparsecast.TensorTable([("weight", "I32", [SIZE])])


class Trainer:
    """Weights, and the log that they are published to."""

    def __init__(self, store: Any, directory: Path) -> None:
        self.weights = array.array("i", range(SIZE))
        mirror = directory / "mirror.safetensors"
        memory = [sparsecast.describe(self.weights)]
        sparsecast.create_log(store, TABLE, memory, anchor_path=mirror)
        self.publisher = sparsecast.LogPublisher(store, TABLE, memory, mirror=mirror)

    def step(self, count: int = 50) -> int:
        for i in range(count):
            self.weights[i * 7] += 1
        return int(self.publisher.publish())


def follow(store: Any, directory: Path) -> tuple[Any, Any]:
    weights = array.array("i", bytes(4 * SIZE))
    directory.mkdir(exist_ok=True)
    follower = sparsecast.LogFollower(
        store,
        TABLE,
        [sparsecast.describe(weights)],
        state_path=directory / "state",
        scratch=directory,
        lease="reader",
    )
    return follower, weights


def cycle(store: Any, tmp_path: Path) -> None:
    """Creates, publishes, follows, anchors and merges; and a second follower joins late."""
    assert sparsecast.log_head(store) is None and sparsecast.log_table_hash(store) is None
    trainer = Trainer(store, tmp_path)
    follower, weights = follow(store, tmp_path / "first")
    for _ in range(10):
        newest = trainer.step()
        trainer.publisher.wait()
        follower.step()
        assert weights == trainer.weights
    trainer.publisher.wait_maintenance()
    assert trainer.publisher.maintenance_error is None
    late, weights = follow(store, tmp_path / "late")
    assert late.step().version == sparsecast.log_head(store) == newest
    assert sparsecast.log_table_hash(store) == TABLE.hash
    assert weights == trainer.weights


def test_a_log_in_a_store_of_python(tmp_path: Path) -> None:
    store = DictStore()
    cycle(store, tmp_path)
    kinds = {key.split("/")[0] for key in store.objects}
    assert {"commits", "deltas", "anchors"} <= kinds, kinds
    assert any(key.startswith("leases/") for key in store.objects)
    assert Log(store).place == "dict"


@pytest.mark.parametrize(
    ("raised", "kind", "words"),
    [
        (ValueError("no such tariff"), errors.IoError, "ValueError: no such tariff"),
        (TimeoutError("slow"), errors.DeadlineError, "slow"),
        (PermissionError("keys"), errors.UnauthenticatedError, "keys"),
        (errors.CorruptError("torn"), errors.CorruptError, "torn"),
        (errors.RolledBackError("older", "there"), errors.RolledBackError, "there: older"),
        (NotImplementedError("not here"), errors.UnsupportedError, "not here"),
        (KeyboardInterrupt(), KeyboardInterrupt, ""),
    ],
)
def test_exceptions_of_a_store_keep_their_kind(raised: BaseException, kind: type[BaseException], words: str) -> None:
    store = DictStore()

    def hook(method: str, key: str) -> None:
        raise raised

    store.hook = hook
    with pytest.raises(kind) as caught:
        sparsecast.log_head(store)
    assert words in str(caught.value)
    if words and "there" not in words:
        assert str(caught.value).startswith("dict/")


def test_a_failure_in_a_thread_of_the_library_is_told(tmp_path: Path) -> None:
    store = DictStore()
    trainer = Trainer(store, tmp_path)
    failing = True

    def hook(method: str, key: str) -> None:
        if failing and key.startswith("deltas/"):
            assert threading.current_thread() is not threading.main_thread()
            raise OSError("the disk is full")

    store.hook = hook
    trainer.step()
    with pytest.raises(errors.IoError, match=r"dict/deltas/.*OSError: the disk is full"):
        trainer.publisher.wait()
    failing = False
    trainer.step()
    trainer.publisher.wait()
    follower, weights = follow(store, tmp_path / "follower")
    follower.step()
    assert weights == trainer.weights


def test_answers_that_are_none_are_refused(tmp_path: Path) -> None:
    store = DictStore()
    trainer = Trainer(store, tmp_path)
    trainer.step()
    trainer.publisher.wait()

    def answer(method: str, result: Any) -> Any:
        broken = DictStore()
        broken.objects = store.objects
        setattr(broken, method, lambda *arguments: result)
        return broken

    for method, result, kind, words in [
        ("get", "text", errors.UsageError, "returned a str in the place of bytes"),
        ("get", b"x" * (1 << 25), errors.CorruptError, "more than"),
        ("size", "many", errors.UsageError, "another type"),
        ("size", -1, errors.UsageError, "another type"),
    ]:
        with pytest.raises(kind, match=words):
            sparsecast.log_head(answer(method, result))
    for method, result, kind, words in [
        ("get_range", b"short", errors.CorruptError, "5 bytes from byte"),
        ("get_range", None, errors.UsageError, "NoneType"),
    ]:
        follower, weights = follow(answer(method, result), tmp_path / "follower")
        with pytest.raises(kind, match=words):
            follower.step()
        assert weights == array.array("i", bytes(4 * SIZE))
    with pytest.raises(errors.UsageError, match="put_if_absent returned a NoneType, not a bool"):
        store.objects = {}
        Trainer(answer("put_if_absent", None), tmp_path)
    with pytest.raises(TypeError):
        sparsecast.log_head(object())  # type: ignore[arg-type]


def test_a_store_that_waits_lets_others_run(tmp_path: Path) -> None:
    store = DictStore()
    trainer = Trainer(store, tmp_path)
    blocked, go = threading.Event(), threading.Event()

    def hook(method: str, key: str) -> None:
        if key.startswith("deltas/"):
            blocked.set()
            assert go.wait(20)

    store.hook = hook
    newest = trainer.step()
    assert blocked.wait(20)
    assert trainer.publisher.in_flight
    assert sparsecast.log_head(store) == newest - 1
    go.set()
    trainer.publisher.wait()
    assert sparsecast.log_head(store) == newest


def test_a_program_ends_with_a_publication_under_way(tmp_path: Path) -> None:
    program = f"""
        import sys, time, threading
        sys.path.insert(0, {str(Path(__file__).parent)!r})
        from pathlib import Path
        from test_stores import DictStore, Trainer
        store = DictStore()
        trainer = Trainer(store, Path({str(tmp_path)!r}))
        begun = threading.Event()
        def hook(method, key):
            begun.set()
            time.sleep(0.01)
        store.hook = hook
        trainer.step()
        begun.wait()
        print("ends")
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program)], timeout=60, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout) == (0, "ends\n"), done.stderr


def test_the_upload_of_a_store_passes_a_file_to_put() -> None:
    class Kept(DictStore):
        kinds: list[type] = []

        def put(self, key: str, data: bytes) -> None:
            self.kinds.append(type(data))
            super().put(key, data)

    store = Kept()
    for count in (0, 1, 3):
        upload = store.upload("a", count << 22)
        for _ in range(count):
            upload.write(b"x" * (1 << 22))
        upload.commit()
        upload.close()
        assert store.objects["a"] == b"x" * (count << 22)
    assert [kind.__name__ for kind in store.kinds] == ["bytes", "bytes", "mmap"]
    dropped = store.upload("b", 1)
    dropped.write(b"x")
    dropped.close()
    assert "b" not in store.objects


def obstores(tmp_path: Path) -> list[Any]:
    store = pytest.importorskip("obstore.store")
    return [store.MemoryStore(), store.LocalStore(str(tmp_path / "bucket"), mkdir=True)]


@pytest.mark.parametrize("which", [0, 1], ids=["memory", "files"])
def test_a_log_in_a_store_of_obstore(which: int, tmp_path: Path) -> None:
    cycle(stores.Obstore(obstores(tmp_path)[which]), tmp_path)


def test_obstore_keeps_the_contract_of_stores(tmp_path: Path) -> None:
    for inner in obstores(tmp_path):
        store = stores.Obstore(inner, "here")
        assert store.put_if_absent("a/b", b"12345")
        assert not store.put_if_absent("a/b", b"other")
        assert bytes(store.get("a/b", 5) or b"") == b"12345"
        assert store.get("a/none", 5) is None
        with pytest.raises(errors.CorruptError, match="5 bytes, more than the 4"):
            store.get("a/b", 4)
        assert (store.size("a/b"), store.size("a")) == (5, None)
        assert bytes(store.get_range("a/b", 1, 3)) == b"234"
        assert bytes(store.get_range("a/b", 5, 0)) == b""
        for offset, length in ((6, 0), (7, 2)):
            with pytest.raises(errors.CorruptError, match="it ends at byte 5"):
                store.get_range("a/b", offset, length)
        with pytest.raises(FileNotFoundError):
            store.get_range("none", 0, 1)
        store.put("ab", b"")
        assert [o.key for o in store.list("a")] in (["a/b", "ab"], ["ab", "a/b"])
        assert [(o.key, o.bytes) for o in store.list("a/")] == [("a/b", 5)]
        store.remove("a/b")
        store.remove("a/b")
        assert store.size("a/b") is None


def test_obstore_refuses_a_store_that_creates_twice(tmp_path: Path) -> None:
    class Careless(stores.Obstore):
        def _create(self, key: str, data: bytes) -> bool:
            self.put(key, data)
            return True

    inner = obstores(tmp_path)[0]
    with pytest.raises(errors.UnsupportedError, match="creates an object twice"):
        Careless(inner).put_if_absent("a", b"")
    assert list(stores.Obstore(inner).list("")) == []


@dataclasses.dataclass
class BucketEntry:
    """What huggingface_hub says of a file."""

    path: str
    size: int
    xet_hash: str
    type: str = "file"
    uploaded_at: datetime.datetime | None = None
    mtime: datetime.datetime | None = None


class Refusal(Exception):
    """An error of the Hub, with the status of its answer."""

    def __init__(self, status: int) -> None:
        super().__init__(f"HTTP {status}")
        self.response = type("Response", (), {"status_code": status})()


class BucketApi:
    """The four calls of huggingface_hub's HfApi that the store makes, over a dictionary."""

    def __init__(self) -> None:
        self.files: dict[str, bytes] = {}
        self.downloads = 0
        self.refusal: int | None = None

    def batch_bucket_files(self, bucket: str, add: Any = (), delete: Any = ()) -> None:
        assert bucket == "me/bucket"
        for source, path in add:
            self.files[path] = source if isinstance(source, bytes) else Path(source).read_bytes()
        for path in delete:
            del self.files[path]

    def get_bucket_paths_info(self, bucket: str, paths: list[str]) -> list[BucketEntry]:
        if self.refusal is not None:
            raise Refusal(self.refusal)
        return [self.entry(path) for path in paths if path in self.files]

    def entry(self, path: str) -> BucketEntry:
        return BucketEntry(path, len(self.files[path]), hashlib.sha256(self.files[path]).hexdigest())

    def download_bucket_files(self, bucket: str, files: Any, raise_on_missing_files: bool) -> None:
        for entry, local in files:
            self.downloads += 1
            Path(local).unlink()  # It may replace the file.
            Path(local).write_bytes(self.files[entry.path])

    def list_bucket_tree(self, bucket: str, prefix: str | None, recursive: bool) -> list[BucketEntry]:
        found = [self.entry(path) for path in self.files if path.startswith(f"{prefix}/" if prefix else "")]
        if not found:
            raise Refusal(404)
        return [*found, BucketEntry(f"{prefix}/folder", 0, "", "directory")]


def test_a_log_in_a_bucket_of_hugging_face(tmp_path: Path) -> None:
    api = BucketApi()
    store = stores.HuggingFaceBucket("me/bucket", "run", single_writer=True, api=api)
    cycle(store, tmp_path)
    assert all(path.startswith("run/") for path in api.files)
    assert store.location == "hf://buckets/me/bucket/run"
    assert sparsecast.log_head(stores.HuggingFaceBucket("me/bucket", "run", api=api)) is not None
    assert list(stores.HuggingFaceBucket("me/bucket", "other", api=api).list("")) == []


def test_a_bucket_of_hugging_face_keeps_the_contract_of_stores() -> None:
    api = BucketApi()
    store = stores.HuggingFaceBucket("me/bucket", single_writer=True, api=api)
    assert store.put_if_absent("a/b", b"12345")
    assert not store.put_if_absent("a/b", b"other")
    assert (store.get("a/b", 5), store.get("none", 5)) == (b"12345", None)
    with pytest.raises(errors.CorruptError, match="5 bytes, more than the 4"):
        store.get("a/b", 4)
    api.downloads = 0
    assert [store.get_range("a/b", 1, 3), store.get_range("a/b", 5, 0), store.get_range("a/b", 0, 1)] == [
        b"234",
        b"",
        b"1",
    ]
    assert api.downloads == 1
    store.put("a/b", b"67890")
    assert store.get_range("a/b", 0, 2) == b"67", "the object was replaced"
    with pytest.raises(errors.CorruptError, match="it ends at byte 5"):
        store.get_range("a/b", 4, 2)
    with pytest.raises(FileNotFoundError):
        store.get_range("none", 0, 1)
    assert [(o.key, o.bytes) for o in store.list("a/")] == [("a/b", 5)]
    store.remove("a/b")
    store.remove("a/b")
    assert store.size("a/b") is None
    api.refusal = 403
    with pytest.raises(errors.UnauthenticatedError, match="HTTP 403"):
        store.size("a/b")


def test_a_bucket_of_hugging_face_needs_a_promise_to_be_published_to(tmp_path: Path) -> None:
    api = BucketApi()
    with pytest.raises(errors.UnsupportedError, match="single_writer=True"):
        Trainer(stores.HuggingFaceBucket("me/bucket", api=api), tmp_path)


def test_a_reader_refuses_the_fork_that_a_second_writer_makes(tmp_path: Path) -> None:
    api = BucketApi()
    store = stores.HuggingFaceBucket("me/bucket", single_writer=True, api=api)
    trainer = Trainer(store, tmp_path)
    before = dict(api.files)
    newest = trainer.step()
    trainer.publisher.wait()
    follower, weights = follow(store, tmp_path / "follower")
    follower.step()
    seen = array.array("i", weights)
    api.files = before  # As a second writer has it that looked before the first one wrote.
    second = array.array("i", range(SIZE))
    publisher = sparsecast.LogPublisher(store, TABLE, [sparsecast.describe(second)])
    for _ in range(2):  # The fork is as long as what was seen, then longer.
        second[5] += 9
        forked = publisher.publish()
        publisher.wait()
        assert forked >= newest
        with pytest.raises((errors.RolledBackError, errors.MixedError), match="seen|before|other"):
            follower.step()
        assert weights == seen
