"""The C++ library behind the package sparsecast."""

from collections.abc import Callable, Iterator, Sequence
import os
from typing import Annotated, Any, overload

import numpy
from numpy.typing import NDArray

import sparsecast.stores


version: str = '0.1.0'

has_mpi: bool = True

has_nccl: bool = True

has_cuda: bool = True

has_rendezvous: bool = True

class Memory:
    """
    Memory of one tensor that another library owns: nothing is copied, and the owner is kept alive. sparsecast.describe() makes it from torch, numpy and anything with DLPack or the buffer protocol.
    """

    def __init__(self, array: object, dtype: str | None = None) -> None:
        """
        Raises TypeError for an object with neither DLPack nor the buffer protocol.
        """

    @property
    def dtype(self) -> str:
        """Safetensors name of the dtype: "BF16", "F32", "F8_E4M3", ..."""

    @property
    def shape(self, /) -> tuple[int, ...]: ...

    @property
    def strides(self, /) -> tuple[int, ...]:
        """In elements."""

    @property
    def data_ptr(self) -> int: ...

    @property
    def device(self) -> str:
        """"cpu" or "cuda:0"."""

    @property
    def nbytes(self) -> int:
        """Bytes of the elements, without gaps between them."""

    @property
    def elements(self) -> int: ...

    @property
    def contiguous(self) -> bool: ...

    @property
    def writable(self) -> bool: ...

    def __repr__(self) -> str: ...

class TensorTable:
    """
    Ordered list of the tensors of a stream: (name, dtype, shape), dtypes by safetensors names. Both ends must agree; they compare `hash`. Immutable.
    """

    def __init__(self, tensors: Sequence[tuple[str, str, Sequence[int]]]) -> None: ...

    def __len__(self) -> int: ...

    def __getitem__(self, index: int, /) -> tuple[str, str, tuple[int, ...]]: ...

    def __iter__(self, /) -> Iterator[tuple[str, str, tuple[int, ...]]]: ...

    def find(self, name: str) -> int | None:
        """Index of the tensor, or None."""

    @property
    def hash(self) -> str: ...

    @property
    def elements(self) -> int: ...

    @property
    def nbytes(self) -> int: ...

    def __eq__(self, other: object, /) -> bool: ...

    def __hash__(self) -> int: ...

    def __repr__(self) -> str: ...

def digest(table: TensorTable, tensors: Sequence[Memory], threads: int = 1) -> str:
    """
    Returns the state digest of tensors in host memory, as `sparsecast digest` prints it for such a checkpoint: 32 hexadecimal digits. Reads every byte. Raises UsageError naming a tensor that does not fit the table.
    """

class Box:
    """
    A rectangular part of a canonical tensor: elements [offset, offset + extent) in each dimension.
    """

    def __init__(self, offset: Sequence[int], extent: Sequence[int]) -> None: ...

    @property
    def offset(self, /) -> tuple[int, ...]: ...

    @property
    def extent(self, /) -> tuple[int, ...]: ...

    @property
    def elements(self) -> int: ...

    def __eq__(self, other: object, /) -> bool: ...

    def __hash__(self) -> int: ...

    def __repr__(self) -> str: ...

class LocalTensor:
    """
    A contiguous tensor in the memory of a rank, named as its framework does.
    """

    def __init__(self, name: str, dtype: str, elements: int) -> None: ...

    @property
    def name(self) -> str: ...

    @property
    def dtype(self) -> str: ...

    @property
    def elements(self) -> int: ...

    def __repr__(self) -> str: ...

class Shard:
    """
    A box of a canonical tensor where it lies in a local tensor: its element (i, j, ...), counted from the box's first, is element first + i * strides[0] + j * strides[1] + ... of the local tensor.
    """

    def __init__(self, tensor: int, box: Box, local: int, first: int, strides: Sequence[int], has_base: bool = True) -> None: ...

    @property
    def tensor(self) -> int: ...

    @property
    def box(self) -> Box: ...

    @property
    def local(self) -> int: ...

    @property
    def first(self) -> int: ...

    @property
    def strides(self, /) -> tuple[int, ...]: ...

    @property
    def has_base(self) -> bool: ...

    def __repr__(self) -> str: ...

class RankLayout:
    """Local tensors and shards of one rank."""

    def __init__(self, tensors: Sequence[LocalTensor], shards: Sequence[Shard], node: str = '') -> None: ...

    @property
    def tensors(self) -> list[LocalTensor]: ...

    @property
    def shards(self) -> list[Shard]: ...

    @property
    def node(self) -> str: ...

class Layout:
    """
    Canonical tensors of one side, a trainer or an engine, and where its ranks hold them. Immutable. Raises UsageError naming the rank and the tensor of anything inconsistent.
    """

    def __init__(self, table: TensorTable, ranks: Sequence[RankLayout], ties: Sequence[tuple[str, str]] = []) -> None: ...

    @property
    def table(self) -> TensorTable: ...

    @property
    def ranks(self) -> list[RankLayout]: ...

    @property
    def ties(self) -> list[tuple[str, str]]:
        """(alias, original): two names of one tensor."""

    @property
    def hash(self) -> str: ...

    def serialize(self) -> bytes:
        """For ranks to exchange."""

    @staticmethod
    def parse(data: bytes) -> Layout:
        """Inverse of serialize; CorruptError for anything else."""

    def to_json(self) -> str: ...

    @staticmethod
    def from_json(text: str, name: str = 'layout') -> Layout:
        """Reads the JSON form of docs/layout-format.md."""

    def __eq__(self, other: object, /) -> bool: ...

    def __hash__(self) -> int: ...

    def __repr__(self) -> str: ...

class ControlChannel:
    """
    A slow, reliable control channel between the ranks of a group. Every call except abort() is collective and ends within its timeout (seconds). Otherwise it raises DeadlineError, PeerFailedError or GroupMismatchError; the channel is then broken, and every rank learns of it. One thread at a time, except abort().
    """

    @property
    def rank(self) -> int: ...

    @property
    def size(self) -> int: ...

    def all_gather(self, own: bytes, timeout: float = 60.0) -> list[bytes]:
        """Returns the bytes of every rank, in the order of ranks, on every rank."""

    def broadcast(self, own: bytes, timeout: float = 60.0) -> bytes:
        """Returns the bytes of rank 0, on every rank."""

    def agree(self, status: int, coordinator: int = 0, timeout: float = 60.0) -> int:
        """
        Returns the largest status of all ranks, which the coordinator alone determines.
        """

    def split(self, color: int, key: int, timeout: float = 60.0) -> ControlChannel:
        """
        Returns a channel of the ranks of one color, ordered by key, then rank; None for a negative color.
        """

    def abort(self, reason: str) -> None:
        """
        Tells the others that this rank gives up, and why; best effort. Thread-safe: a call in progress in another thread raises PeerFailedError with the reason, here and on every rank that waits.
        """

    def aborted(self) -> str | None:
        """Why the channel is broken, or None; does not wait."""

class MeetingCancellation:
    """
    Ends calls of meet() from another thread, for a caller that learns meanwhile that a rank will not come.
    """

    def __init__(self) -> None: ...

    def cancel(self, reason: str) -> None:
        """
        Makes every meet() with this object raise PeerFailedError with the reason, at once or as it starts; rank 0 tells the ranks that have connected. The first reason stands. Thread-safe.
        """

def meet(host: str, port: int, *, rank: int, size: int, secret: str, generation: int = 0, interface: str = '', congestion: str = '', timeout: float = 60.0, cancellation: MeetingCancellation | None = None, reach_timeout: float | None = None) -> ControlChannel:
    """
    Meets the other ranks over TCP at the host and port of rank 0: authenticated by the shared secret (at least 16 characters, never sent) and encrypted. `generation` distinguishes groups that meet there one after another; `cancellation` lets another thread end the call; `reach_timeout`, seconds, bounds the time in which rank 0 must listen; `congestion` is the TCP congestion control of this rank's sockets, such as 'bbr' ('': SPARSECAST_CONGESTION in the environment, else the system's default). Raises DeadlineError naming missing ranks, UnauthenticatedError, or GroupMismatchError.
    """

def mpi_channel() -> ControlChannel:
    """
    Returns a control channel over MPI_COMM_WORLD; initialises MPI if it is not initialised. Raises UnsupportedError without MPI.
    """

class Transport:
    """One channel: a source and the receivers that get the same tensors."""

    @property
    def rank(self) -> int: ...

    @property
    def size(self) -> int: ...

def tcp_transport(control: ControlChannel) -> Transport:
    """
    Records travel over the control channel itself, which belongs to the transport then.
    """

def mpi_transport() -> Transport:
    """
    Returns a transport over MPI_COMM_WORLD; initialises MPI if it is not initialised. Raises UnsupportedError without MPI.
    """

def nccl_transport(control: ControlChannel, device: int = -1, timeout: float = 60.0) -> Transport:
    """
    Returns a transport over NCCL; collective over the control channel. Uses the NCCL library that torch has loaded, if it has.
    """

class SyncReport:
    """Report of one sync on this rank."""

    @property
    def version(self) -> int: ...

    @property
    def changed(self) -> int: ...

    @property
    def wire_bytes(self) -> int: ...

    @property
    def encode_seconds(self) -> float: ...

    @property
    def wire_seconds(self) -> float: ...

    @property
    def stage_seconds(self) -> float: ...

    @property
    def apply_seconds(self) -> float: ...

    @property
    def total_seconds(self) -> float: ...

class Delta:
    """
    Everything that takes one version to another: a copy that Python keeps.
    """

    @property
    def version(self) -> int: ...

    @property
    def base_version(self) -> int: ...

    @property
    def elements(self) -> int:
        """Number of elements of the whole table."""

    @property
    def changed(self) -> int:
        """Elements."""

    @property
    def wire_bytes(self) -> int: ...

    @property
    def digest(self) -> str:
        """State digest that receivers must reach."""

    @property
    def stream_id(self) -> str: ...

    def records(self) -> list[bytes]:
        """
        Header, frames and commit record, each as bytes, for a transport of the caller.
        """

    def tensors(self) -> list[dict[str, Any]]:
        """
        Returns a dict for each tensor that occurs: name, elements, changed, bytes, blocks, dense_blocks.
        """

class Publisher:
    """
    Publisher on one rank. Its base is what the receivers have committed: publish(), then commit() when every receiver has verified the delta, otherwise abort(). Not thread-safe.
    """

    def __init__(self, table: TensorTable, tensors: Sequence[Memory], *, detector: str = 'snapshot', masters: Sequence[Memory | None] | None = None, version: int = 0, stream_id: str | None = None, positions: str = 'auto', values: str = 'ulp', objective: str | None = None, block_changes: int = 512, zstd_level: int = 0, frame_capacity: int = 16777216, threads: int = 1, stream: int = 0, device_timeout: float = 60.0) -> None:
        """
        `tensors` are parallel to the table, in host memory or on one CUDA device, and hold what receivers hold. Detectors: 'snapshot' (a copy beside the tensors), 'pinned' (CUDA tensors, the copy in pinned host memory), 'fused_cast' (no copy: `masters[i]`, fp32 of the same shape or None, are cast to tensors[i], bf16, by publish() itself), 'mask' (the caller marks what changed; values='raw'). `objective`: what positions='auto' saves: 'speed' (the default), 'size', or the rate of the slowest link, '100Mb/s'. `stream`: a CUDA stream's number.
        """

    def publish(self, weights_ready: int = 0) -> Delta:
        """
        Detects and encodes what changed since the committed version. On a device it begins when the CUDA event `weights_ready` (its number; 0: at once) has been reached.
        """

    def commit(self, version: int) -> None:
        """Commits the pending delta, after every receiver has verified it."""

    def abort(self, version: int) -> None:
        """
        Aborts the pending delta, which has failed or whose outcome is unknown; the base stays.
        """

    def sync(self, transport: Transport, timeout: float = 60.0) -> SyncReport:
        """
        Publishes, broadcasts, waits until every receiver has verified the delta, and commits; or aborts and raises.
        """

    def mark(self, tensor: int, words: Annotated[NDArray[numpy.uint64], dict(shape=(None,), order='C', writable=False)]) -> None:
        """
        Sets bits of the mask of a tensor from a bit mask (uint64 words, least significant bit first); only with the 'mask' detector.
        """

    @property
    def version(self) -> int:
        """Last committed."""

    @property
    def digest(self) -> str: ...

    @property
    def pending(self) -> bool: ...

class ApplyReport:
    @property
    def version(self) -> int: ...

    @property
    def changed(self) -> int: ...

    @property
    def digest(self) -> str: ...

class Subscriber:
    """
    Subscriber on one rank: stage(), then apply(), which is the whole pause: it writes in place and verifies the result. A failure leaves the old version, or the state dirty, which the error says. Not thread-safe.
    """

    def __init__(self, table: TensorTable, tensors: Sequence[Memory], *, version: int = 0, stream_id: str | None = None, threads: int = 1, audit_versions: int = 64, audit_time: float = 0.0, allow_rollback: bool = False, stream: int = 0, device_timeout: float = 60.0, entry_bytes: int | None = None) -> None:
        """
        `tensors` are live, parallel to the table, writable, in host memory or on one CUDA device; they must keep their addresses. Reads all of them once. `entry_bytes`: most bytes of device memory for the decoded changes of a staged delta, so that the pause only writes them; a larger delta is decoded again in the pause. None: a sixteenth of the bytes of the tensors. Of no meaning on the host.
        """

    @overload
    def stage(self, record: bytes) -> None:
        """
        Takes one record, in any order after the header; verifies it, and writes nothing.
        """

    @overload
    def stage(self, delta: Delta) -> None: ...

    @property
    def ready(self) -> bool: ...

    def discard(self) -> None:
        """Forgets what is staged."""

    def apply(self, after: int = 0, written: int = 0) -> ApplyReport:
        """
        Applies and verifies the staged delta. On a device nothing is written before the CUDA event `after`, and `written` is recorded after the last write (handles; 0: none). Raises IncompleteError, DigestMismatchError (the old version stands), or DirtyError.
        """

    def apply_nan_masked(self, load: Callable[[int, int, int], None]) -> ApplyReport:
        """
        Applies the staged delta by calls load(index, address, stream), one for each tensor that it names: at the address lies the whole tensor, contiguous, NaN where nothing changes, until the call returns. Verifies the result by reading. Raises UnsupportedError for dtypes without NaNs and elements that become one (nothing was written), DigestMismatchError (nothing was written), DirtyError, or what `load` raises (dirty). sparsecast.engines.refresh.masked_loader.MaskedLoader is a `load` for the loader of an engine.
        """

    def undo_last(self) -> None: ...

    def sync(self, transport: Transport, source: int = 0, timeout: float = 60.0) -> SyncReport: ...

    def audit_next(self) -> int:
        """
        Reads a slice of the tensors again and returns the bytes read. Raises DirtyError naming the tensor.
        """

    def audit(self) -> None:
        """Re-reads every byte."""

    def reset(self, version: int, digest: str) -> None:
        """After the caller has written an anchor into the tensors."""

    @property
    def version(self) -> int: ...

    @property
    def digest(self) -> str: ...

    @property
    def dirty(self) -> bool: ...

class SentTensor:
    """Numbers of a canonical tensor that a rank has sent."""

    @property
    def name(self) -> str: ...

    @property
    def elements(self) -> int:
        """Number of elements of the boxes that this rank sends."""

    @property
    def changed(self) -> int: ...

    @property
    def bytes(self) -> int: ...

    @property
    def dense_blocks(self) -> int: ...

    @property
    def blocks(self) -> int: ...

    def __repr__(self) -> str: ...

class ShardedReport:
    """Report of one sync on this rank."""

    @property
    def version(self) -> int: ...

    @property
    def changed(self) -> int:
        """Elements in the deltas that it sent."""

    @property
    def applied(self) -> int:
        """Elements in those that it applied."""

    @property
    def sent_bytes(self) -> int: ...

    @property
    def received_bytes(self) -> int: ...

    @property
    def foreign_bytes(self) -> int: ...

    @property
    def encode_seconds(self) -> float: ...

    @property
    def wire_seconds(self) -> float: ...

    @property
    def stage_seconds(self) -> float: ...

    @property
    def apply_seconds(self) -> float:
        """Seconds of the pause."""

    @property
    def total_seconds(self) -> float: ...

    @property
    def blocks_by_codec(self, /) -> dict[str, int]:
        """Number of sent blocks by position codec; needs report_tensors."""

    @property
    def tensors(self) -> list[SentTensor]:
        """With report_tensors."""

    def __repr__(self) -> str: ...

class ShardedPublisher:
    """
    Publisher on one rank of many: publishes its own shards. Call regroup(), then sync() any number of times, and regroup() again whenever an engine joins, leaves, fails or changes its layout. Not thread-safe.
    """

    def __init__(self, layout: Layout, rank: int, tensors: Sequence[Memory], *, version: int = 0, stream_id: str | None = None, positions: str = 'auto', values: str = 'ulp', objective: str | None = None, block_changes: int = 512, zstd_level: int = 0, threads: int = 1, unsent: Sequence[str] = [], report_tensors: bool = False, masters: bool = False, detector: str = 'snapshot', stream: int = 0, device_timeout: float = 60.0) -> None:
        """
        `tensors` are the memory of layout.ranks[rank].tensors, contiguous, in host memory or on one CUDA device. They must keep their addresses, and hold `version` when regroup() is first called, which takes the snapshot. With `masters`, a tensor that is BF16 in the layout may be given as F32: its fp32 master, whose cast engines get (round to nearest, ties to even); the snapshot is then its only copy in BF16. Without, F32 for BF16 is an error. Detectors: 'snapshot' (a copy beside the tensors), 'pinned' (CUDA tensors, the copy in pinned host memory). `objective`: what positions='auto' saves: 'speed' (the default), 'size' (receivers decode on the host), or the rate of the slowest link, '100Mb/s'. `unsent`: patterns of tensors that need no engine. `stream`: handle of a CUDA stream, on which the tensors are complete when regroup() or sync() is called.
        """

    def regroup(self, world: ControlChannel, channels: str = 'control', timeout: float = 60.0) -> None:
        """
        Meets as a group; collective over `world`, all ranks of the trainer and of all engines, in any order. Replaces the previous group. Exchanges the layouts, settles a sync whose outcome was in doubt, plans, opens the channels ('control': over the world itself, 'mpi', 'nccl'), seeds engines that have no anchor or another version, and verifies that every destination holds the committed version. GroupMismatchError, WrongBaseError and DigestMismatchError name the rank or engine. Elements that the trainer's layout describes in several places are copies, which must be equal now: before anything is written to an engine, DigestMismatchError on every rank names the tensor, the box and two trainer ranks whose copies differ. Each trainer rank reads its copies once for that; what is in one place alone costs nothing.
        """

    def sync(self, timeout: float = 60.0) -> ShardedReport:
        """
        Sends the current weights to every engine; collective over the world. If it raises, no rank claims the new version, and regroup() with the remaining ranks must follow.
        """

    @property
    def version(self) -> int:
        """Last committed."""

    @property
    def digest(self) -> str:
        """State digest of the canonical tensors at that version."""

    @property
    def snapshot_bytes(self) -> int:
        """
        Bytes of the snapshot, the only copy of the tensors that is kept, in the same kind of memory unless it is pinned.
        """

class ShardedSubscriber:
    """
    Subscriber on one rank of an engine. Not thread-safe; receive() may run in another thread than the rest, one call at a time.
    """

    def __init__(self, engine: str, layout: Layout, rank: int, tensors: Sequence[Memory], *, version: int = 0, needs_anchor: bool = False, stream_id: str | None = None, threads: int = 1, audit_versions: int = 64, audit_time: float = 0.0, stream: int = 0, device_timeout: float = 60.0, entry_bytes: int | None = None) -> None:
        """
        `tensors` as for ShardedPublisher, writable. `engine` names the engine, whose ranks share the layout. With `needs_anchor` the memory holds no version yet, and the trainer seeds it in the next regroup(). `entry_bytes` is as for Subscriber.
        """

    def regroup(self, world: ControlChannel, channels: str = 'control', timeout: float = 60.0) -> None:
        """
        Meets as a group; collective over `world`, all ranks of the trainer and of all engines, in any order. Replaces the previous group. Exchanges the layouts, settles a sync whose outcome was in doubt, plans, opens the channels ('control': over the world itself, 'mpi', 'nccl'), seeds engines that have no anchor or another version, and verifies that every destination holds the committed version. GroupMismatchError, WrongBaseError and DigestMismatchError name the rank or engine. Elements that the trainer's layout describes in several places are copies, which must be equal now: before anything is written to an engine, DigestMismatchError on every rank names the tensor, the box and two trainer ranks whose copies differ. Each trainer rank reads its copies once for that; what is in one place alone costs nothing.
        """

    def receive(self, timeout: float = 60.0) -> None:
        """
        Runs the first half of sync(), while the engine continues generating: returns when every rank of the world has sent or staged everything. Only reads live memory. With NCCL channels, call it in the thread that called regroup().
        """

    def apply(self, timeout: float = 60.0) -> ShardedReport:
        """
        Runs the second half, the pause: writes, verifies, waits for every engine and the decision. Raises UsageError without a preceding receive().
        """

    def sync(self, timeout: float = 60.0) -> ShardedReport: ...

    def replace(self, layout: Layout, tensors: Sequence[Memory]) -> None:
        """
        Replaces the tensors; call it before the regroup() of an engine that has moved its tensors with their contents.
        """

    def audit_next(self) -> int: ...

    def audit(self) -> None:
        """Re-reads every byte."""

    def settle(self, committed: bool) -> None:
        """
        Settles a version in doubt without a regroup(), for an engine that goes on to serve though its trainer is gone: it stands, or the memory is rolled back. All ranks of an engine settle alike. Raises DirtyError if it could not be rolled back.
        """

    @property
    def in_doubt(self) -> int:
        """
        Version that was applied and verified without hearing whether it was committed; 0: none. The memory holds its bytes, and `version` is the one before. The next regroup() settles it.
        """

    @property
    def anchor_begun(self) -> bool:
        """
        Whether an anchor has overwritten the memory, or a part of it, since the last version that was verified: only a regroup() that succeeds makes it whole. Otherwise the memory is what it was.
        """

    @property
    def version(self) -> int:
        """Version last verified."""

class ColocatedRank:
    """
    A rank of the world that belongs to a trainer and an engine at once; what it sends to itself stays in its memory.
    """

    def __init__(self, publisher: ShardedPublisher, subscriber: ShardedSubscriber) -> None: ...

    def regroup(self, world: ControlChannel, channels: str = 'control', timeout: float = 60.0) -> None: ...

    def sync(self, timeout: float = 60.0) -> ShardedReport: ...

has_log: bool = True

class Publication:
    """Result of one publication to a log."""

    @property
    def version(self) -> int: ...

    @property
    def changed(self) -> int: ...

    @property
    def elements(self) -> int: ...

    @property
    def wire_bytes(self) -> int:
        """Bytes of the object of the delta."""

    @property
    def digest(self) -> str: ...

    @property
    def encode_seconds(self) -> float: ...

    @property
    def upload_seconds(self) -> float: ...

class LogPublisher:
    """
    Publisher to a delta log: detects and encodes in the thread of the caller; uploads, commits and maintains in threads of its own. One publication is in progress at a time. Not thread-safe.
    """

    def __init__(self, location: str | os.PathLike[str] | sparsecast.stores.Store, table: TensorTable, tensors: Sequence[Memory], *, detector: str = 'snapshot', masters: Sequence[Memory | None] | None = None, key: str | os.PathLike[str] | None = None, trusted_keys: Sequence[str] = [], mirror: str | os.PathLike[str] = '', merge: bool = True, anchors: bool = True, deadline: float = 120.0, positions: str = 'auto', values: str = 'ulp', objective: str | None = None, block_changes: int = 512, zstd_level: int = 0, threads: int = 1, stream: int = 0, device_timeout: float = 60.0) -> None:
        """
        Continues the existing log at `location` (a directory, s3://bucket/prefix or a sparsecast.stores.Store; see create_log). Raises WrongBaseError unless the tensors hold its newest version. `key`: path of a signing key; `trusted_keys`: public keys as 'ed25519:...'. `mirror`: path of a checkpoint from which anchors and merged deltas are made. `objective`: what positions='auto' saves: 'size' (the default), 'speed', or the rate of the slowest link, '100Mb/s'. `block_changes`: 4096 for smaller deltas of integer tensors and other positions than 'context', on the host only. CUDA tensors, and `stream` and `device_timeout`: as in Publisher; only frames come to the host.
        """

    def publish(self, label: str = '') -> int:
        """
        Encodes the changes, passes them to the uploading thread, and returns the version that they become. FencedError is final; after any other error the call may be repeated.
        """

    def wait(self, timeout: float = 120.0) -> Publication:
        """Until the newest publication is durable."""

    def wait_maintenance(self, timeout: float = 120.0) -> bool: ...

    @property
    def maintenance_error(self) -> str | None: ...

    @property
    def version(self) -> int:
        """Version of the newest commit that is known to be durable."""

    @property
    def digest(self) -> str:
        """State digest of that commit."""

    @property
    def stream_id(self) -> str: ...

    @property
    def in_flight(self) -> bool: ...

class EngineRank:
    """
    One rank of an engine whose ranks each hold a part of a log's tensors: all of them reach a version together, or none does. Rank 0 is followed with by LogFollower; the other ranks call serve(). Not thread-safe.
    """

    def __init__(self, ranks: ControlChannel, table: TensorTable, layout: Layout, tensors: Sequence[Memory], *, threads: int = 1, audit_versions: int = 64, audit_time: float = 0.0, pause: object | None = None, timeout: float = 120.0, stream: int = 0, device_timeout: float = 60.0) -> None:
        """
        Collective over `ranks`, the ranks of `layout`. `table`: the log's, all of whose tensors the layout must hold. `tensors`: writable, in the order of this rank's layout. `pause` is called as that of LogFollower, in the thread of step() or serve(); an exception refuses. `timeout`: seconds in which all ranks must have done a step. Raises UsageError naming a tensor of the log that the layout does not hold, and GroupMismatchError where ranks differ.
        """

    def serve(self) -> None:
        """
        Takes part in what rank 0 does, and returns when rank 0's follower is gone. Raises PeerFailedError when the channel breaks.
        """

    @property
    def dirty(self) -> bool:
        """
        Whether this rank's tensors are known to be of no version. For the thread of serve() and `pause`.
        """

class FollowReport:
    """Report of one step of a follower."""

    @property
    def version(self) -> int: ...

    @property
    def head(self) -> int: ...

    @property
    def applied(self) -> int:
        """Deltas; merged ones count once."""

    @property
    def reseeded(self) -> bool:
        """From an anchor."""

    @property
    def objects_read(self) -> int: ...

    @property
    def bytes_read(self) -> int: ...

    @property
    def fetch_seconds(self) -> float: ...

    @property
    def apply_seconds(self) -> float: ...

class LogFollower:
    """
    Live tensors that follow a delta log. Not thread-safe, except stop() and look().
    """

    @overload
    def __init__(self, location: str | os.PathLike[str] | sparsecast.stores.Store, table: TensorTable, tensors: Sequence[Memory], *, state_path: str | os.PathLike[str], scratch: str | os.PathLike[str], trusted_keys: Sequence[str] = [], lease: str = '', max_age: float = 0.0, allow_rollback: bool = False, threads: int = 1, audit_versions: int = 64, audit_time: float = 0.0, pause: object | None = None, timeout: float = 120.0, stream: int = 0, device_timeout: float = 60.0) -> None:
        """
        `tensors`: writable, parallel to the table. `state_path`: a file that remembers the versions that were seen; `scratch`: an existing directory for fetched objects. `pause(True)` is called before each write of the tensors and `pause(False)` after it, in the thread of step(); if the first returns False or raises, nothing is written, and step() raises DeadlineError or what `pause` raised. `timeout`: seconds for one request to a store, with its retries. CUDA tensors, and `stream` and `device_timeout`: as in Subscriber. Raises IncompleteError if there is no log yet.
        """

    @overload
    def __init__(self, location: str | os.PathLike[str] | sparsecast.stores.Store, rank: EngineRank, *, state_path: str | os.PathLike[str], scratch: str | os.PathLike[str], trusted_keys: Sequence[str] = [], lease: str = '', max_age: float = 0.0, allow_rollback: bool = False, timeout: float = 120.0) -> None:
        """
        Follows with all ranks of an engine, of which `rank` is rank 0. `scratch` is a directory that all ranks can read under this path. step() waits for all ranks.
        """

    def step(self, version: int | None = None) -> FollowReport:
        """
        Advances to the current head, or to `version`; does nothing if there is nothing newer.
        """

    def stop(self) -> None: ...

    @property
    def version(self) -> int | None:
        """Version of the tensors; None until the first step has found it."""

    @property
    def staged(self) -> int | None:
        """
        Version that step() is about to write, or is writing; None at any other time. For `pause`, in its thread.
        """

    def look(self) -> int:
        """
        Returns the newest version of the log, and changes nothing. For any thread, also while step() waits in `pause`. Raises IncompleteError if there is no log yet, and as step() for one that must not be followed.
        """

    @property
    def dirty(self) -> bool:
        """
        Whether the tensors are known to be of no version, so that only an anchor helps. For the thread of step() and for `pause`.
        """

def log_head(location: str | os.PathLike[str] | sparsecast.stores.Store, trusted_keys: Sequence[str] = [], timeout: float = 120.0) -> int | None:
    """
    Returns the newest version of the log at `location`; None if there is no log.
    """

def log_table_hash(location: str | os.PathLike[str] | sparsecast.stores.Store, trusted_keys: Sequence[str] = [], timeout: float = 120.0) -> str | None:
    """
    Returns TensorTable.hash of the tensors in the log at `location`, ordered by the bytes of their names; None if there is no log.
    """

def create_log(location: str | os.PathLike[str] | sparsecast.stores.Store, table: TensorTable, tensors: Sequence[Memory], *, anchor_path: str | os.PathLike[str], version: int = 0, key: str | os.PathLike[str] | None = None, label: str = '', threads: int = 1, timeout: float = 120.0) -> int:
    """
    Creates a delta log with the tensors as its first version and anchor. Also writes them to `anchor_path` (a .safetensors file, which can be the mirror of the publisher). Raises UsageError if there is a log already.
    """

def write_checkpoint(table: TensorTable, tensors: Sequence[Memory], path: str | os.PathLike[str]) -> None:
    """
    Writes contiguous tensors of host memory as one .safetensors file, atomically.
    """

def generate_key(path: str | os.PathLike[str]) -> str:
    """
    Makes a signing key, saves it for its owner alone, and returns the public one.
    """

class QuantFormat:
    """
    What a matrix is quantised to (sparsecast/quantize.hpp). Elements: E4M3, E2M1, INT4; scales: F32, BF16, E4M3 (with a global scale), E8M0; rounding of scales: nearest, power_floor, power_round, power_up; `block` is rows and columns, None for the whole matrix.
    """

    def __init__(self, element: str = 'E4M3', scale: str = 'F32', rounding: str = 'nearest', block: Sequence[int | None] = [128, 128]) -> None: ...

def block_grid(source: Memory, format: QuantFormat, *, name: str = '', shape: Sequence[int] | None = None, offset: Sequence[int] = (0, 0)) -> tuple[tuple[int, int], tuple[int, int], bool]:
    """
    Returns the blocks that a shard of a matrix touches: (first block, blocks, whether all are whole), as pairs of rows and columns. `source` is the shard, bf16, fp16 or fp32; `shape` is that of the whole matrix (None: that of the shard), and `offset` where the shard begins in it.
    """

def block_amax(source: Memory, amax: Memory, format: QuantFormat, *, name: str = '', shape: Sequence[int] | None = None, offset: Sequence[int] = [0, 0], threads: int = 1, stream: int = 0) -> None:
    """
    Writes the greatest finite magnitude that this shard has of each block to `amax`, F32 of the extent that block_grid gives; infinity where a block of 4-bit elements has one that is not finite. On a device: on its CUDA stream `stream`, current device, without waiting.
    """

def quantize(source: Memory, elements: Memory, scales: Memory, format: QuantFormat, global_scale: Memory | None = None, amax: Memory | None = None, tensor_amax: Memory | None = None, *, name: str = '', shape: Sequence[int] | None = None, offset: Sequence[int] = [0, 0], threads: int = 1, stream: int = 0) -> None:
    """
    Writes the shard's elements (F8_E4M3; 4-bit ones packed into U8 or I32) and its blocks' scales (F32, BF16, F8_E4M3; U8 for E8M0). Without `amax` every block must be whole (UsageError names the shard and the edge); with it, the maximum over the ranks that share blocks. E4M3 scales need `global_scale`, F32 [1], which is read, or computed anew of `tensor_amax`, F32 [1]. All contiguous, on the source's device. See sparsecast/quantize.hpp.
    """
