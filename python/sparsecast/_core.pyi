"""The C++ library behind the package sparsecast."""

from collections.abc import Iterator, Sequence
from typing import Annotated, Any, overload

import numpy
from numpy.typing import NDArray


version: str = '0.1.0'

has_mpi: bool = True

has_nccl: bool = False

has_cuda: bool = True

has_rendezvous: bool = True

class Memory:
    """
    The memory of one tensor that another library owns: nothing is copied, and the owner is kept alive. sparsecast.describe() makes it from torch, numpy and anything with DLPack or the buffer protocol.
    """

    def __init__(self, array: object, dtype: str | None = None) -> None:
        """TypeError for what has neither DLPack nor the buffer protocol."""

    @property
    def dtype(self) -> str:
        """As safetensors names it: "BF16", "F32", "F8_E4M3", ..."""

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
        """Of its elements, without what lies between them."""

    @property
    def elements(self) -> int: ...

    @property
    def contiguous(self) -> bool: ...

    @property
    def writable(self) -> bool: ...

    def __repr__(self) -> str: ...

class TensorTable:
    """
    The ordered list of tensors that a stream carries: (name, dtype, shape), dtypes as safetensors names them. Both ends must agree; they compare `hash`. Immutable.
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
    State digest of tensors in host memory, as `sparsecast digest` says of such a checkpoint: 32 hexadecimal digits. Reads every byte. UsageError that names a tensor that does not fit the table.
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
    """What one rank holds."""

    def __init__(self, tensors: Sequence[LocalTensor], shards: Sequence[Shard], node: str = '') -> None: ...

    @property
    def tensors(self) -> list[LocalTensor]: ...

    @property
    def shards(self) -> list[Shard]: ...

    @property
    def node(self) -> str: ...

class Layout:
    """
    The canonical tensors of one side, a trainer or an engine, and where its ranks hold them. Immutable. UsageError that names rank and tensor for whatever does not fit.
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
    A slow, reliable side channel between the ranks of a group. Every call but abort() is collective, ends by its timeout (seconds), and raises DeadlineError, PeerFailedError or GroupMismatchError otherwise; the channel is broken then, and every rank learns so. One thread at a time, but for abort().
    """

    @property
    def rank(self) -> int: ...

    @property
    def size(self) -> int: ...

    def all_gather(self, own: bytes, timeout: float = 60.0) -> list[bytes]:
        """Every rank's bytes, in the order of ranks, on every rank."""

    def broadcast(self, own: bytes, timeout: float = 60.0) -> bytes:
        """The bytes of rank 0, on every rank."""

    def agree(self, status: int, coordinator: int = 0, timeout: float = 60.0) -> int:
        """The largest status of all ranks; the coordinator alone decides."""

    def split(self, color: int, key: int, timeout: float = 60.0) -> ControlChannel:
        """
        Channels of the ranks of one color each, ordered by key, then rank; None for a negative color.
        """

    def abort(self, reason: str) -> None:
        """
        Tells the others that this rank gives up, and why; best effort. May be called by any thread at any time: a call that another one is in raises PeerFailedError with the reason, here and on every rank that waits.
        """

    def aborted(self) -> str | None:
        """Why the channel is broken, or None; does not wait."""

def meet(host: str, port: int, *, rank: int, size: int, secret: str, generation: int = 0, interface: str = '', timeout: float = 60.0) -> ControlChannel:
    """
    Meets the other ranks over TCP at rank 0's host and port: authenticated by the shared secret (at least 16 characters, never sent) and encrypted. `generation` tells groups apart that meet there one after another. Raises DeadlineError that names missing ranks, UnauthenticatedError, GroupMismatchError.
    """

def mpi_channel() -> ControlChannel:
    """
    A control channel over MPI_COMM_WORLD; initialises MPI if nobody has. UnsupportedError without MPI.
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
    Over MPI_COMM_WORLD; initialises MPI if nobody has. UnsupportedError without MPI.
    """

def nccl_transport(control: ControlChannel, device: int = -1, timeout: float = 60.0) -> Transport:
    """
    Collective over the control channel. The NCCL library is the one that torch has loaded, if it has.
    """

class SyncReport:
    """What one sync did on this rank."""

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
        """Of the whole table."""

    @property
    def changed(self) -> int:
        """Elements."""

    @property
    def wire_bytes(self) -> int: ...

    @property
    def digest(self) -> str:
        """That receivers must reach."""

    @property
    def stream_id(self) -> str: ...

    def records(self) -> list[bytes]:
        """
        Header, frames and commit record, each as bytes for a transport of the caller's own.
        """

    def tensors(self) -> list[dict[str, Any]]:
        """
        What it holds, a dict a tensor that occurs: name, elements, changed, bytes, blocks, dense_blocks.
        """

class Publisher:
    """
    The trainer's end on one rank. Its base is what the receivers have committed: publish(), then commit() when every receiver has verified the delta, else abort(). Not thread-safe.
    """

    def __init__(self, table: TensorTable, tensors: Sequence[Memory], *, detector: str = 'snapshot', masters: Sequence[Memory | None] | None = None, version: int = 0, stream_id: str | None = None, positions: str = 'auto', values: str = 'ulp', zstd_level: int = 0, frame_capacity: int = 16777216, threads: int = 1, stream: int = 0, device_timeout: float = 60.0) -> None:
        """
        `tensors` are parallel to the table, in host memory or on one CUDA device, and hold what receivers hold. Detectors: 'snapshot' (a copy beside the tensors), 'pinned' (CUDA tensors, the copy in pinned host memory), 'fused_cast' (no copy: `masters[i]`, fp32 of the same shape or None, are cast to tensors[i], bf16, by publish() itself), 'mask' (the caller marks what changed; values='raw'). `stream`: a CUDA stream's number.
        """

    def publish(self, weights_ready: int = 0) -> Delta:
        """
        Detects and encodes what changed since the committed version. On a device it begins when the CUDA event `weights_ready` (its number; 0: at once) has been reached.
        """

    def commit(self, version: int) -> None:
        """The pending delta has been verified by every receiver."""

    def abort(self, version: int) -> None:
        """The pending delta has failed, or its fate is unknown; the base stays."""

    def sync(self, transport: Transport, timeout: float = 60.0) -> SyncReport:
        """
        publish, broadcast, wait until every receiver has verified it, commit; or abort, and the error is raised.
        """

    def mark(self, tensor: int, words: Annotated[NDArray[numpy.uint64], dict(shape=(None,), order='C', writable=False)]) -> None:
        """
        With the 'mask' detector: ors a bit mask (uint64 words, least significant bit first) into a tensor's.
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
    The engine's end on one rank: stage(), then apply(), which is the whole pause: it writes in place and verifies the result. A failure leaves the old version, or dirty, which it says. Not thread-safe.
    """

    def __init__(self, table: TensorTable, tensors: Sequence[Memory], *, version: int = 0, stream_id: str | None = None, threads: int = 1, audit_versions: int = 64, allow_rollback: bool = False, stream: int = 0, device_timeout: float = 60.0) -> None:
        """
        `tensors` are live, parallel to the table, writable, in host memory or on one CUDA device; they stay where they are. Reads all of them once.
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
        Applies what is staged and verifies it. On a device nothing is written before the CUDA event `after`, and `written` is recorded behind the last write (numbers; 0: none). IncompleteError, DigestMismatchError (the old version stands), DirtyError.
        """

    def undo_last(self) -> None: ...

    def sync(self, transport: Transport, source: int = 0, timeout: float = 60.0) -> SyncReport: ...

    def audit_next(self) -> int:
        """
        Re-reads a slice of the tensors; bytes read. DirtyError that names the tensor.
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
    """What a rank has sent of a canonical tensor."""

    @property
    def name(self) -> str: ...

    @property
    def elements(self) -> int:
        """Of the boxes that this rank sends."""

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
    """What one sync did on this rank."""

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
        """The pause."""

    @property
    def total_seconds(self) -> float: ...

    @property
    def blocks_by_codec(self, /) -> dict[str, int]:
        """Of what was sent, with report_tensors: blocks by position codec."""

    @property
    def tensors(self) -> list[SentTensor]:
        """With report_tensors."""

    def __repr__(self) -> str: ...

class ShardedPublisher:
    """
    The trainer's end on one rank of many: publishes its own shards. regroup(), then sync() as often as wanted; regroup() again whenever an engine joins, leaves, dies or is cut anew. Not thread-safe.
    """

    def __init__(self, layout: Layout, rank: int, tensors: Sequence[Memory], *, version: int = 0, stream_id: str | None = None, positions: str = 'auto', values: str = 'ulp', zstd_level: int = 0, threads: int = 1, unsent: Sequence[str] = [], report_tensors: bool = False, masters: bool = False, stream: int = 0, device_timeout: float = 60.0) -> None:
        """
        `tensors` are the memory of layout.ranks[rank].tensors, contiguous, in host memory or on one CUDA device; they stay where they are, and hold `version` when regroup() is first called (the snapshot is taken then). With `masters`, a tensor that the layout says is BF16 may be given as F32: its fp32 master, whose cast engines get (round to nearest, ties to even), and of which the snapshot is the only copy in BF16; without, F32 for BF16 is an error. `unsent`: patterns of tensors that need no engine. `stream`: a CUDA stream's number, on which the tensors are complete when regroup() or sync() is called.
        """

    def regroup(self, world: ControlChannel, channels: str = 'control', timeout: float = 60.0) -> None:
        """
        Collective over `world`, all ranks of the trainer and of all engines, in any order; replaces the group before. Exchanges the layouts, settles a sync whose fate was in doubt, plans, opens the channels ('control': over the world itself, 'mpi', 'nccl'), seeds engines that have no anchor or another version, and verifies that every slot holds the committed version. GroupMismatchError, WrongBaseError, DigestMismatchError name the rank or engine.
        """

    def sync(self, timeout: float = 60.0) -> ShardedReport:
        """
        Collective over the world: brings the weights as they are now to every engine. When it raises, no rank claims the new version, and regroup() with whoever is left comes next.
        """

    @property
    def version(self) -> int:
        """Last committed."""

    @property
    def digest(self) -> str:
        """Of the canonical tensors at that version."""

    @property
    def snapshot_bytes(self) -> int:
        """
        Of the snapshot, the only copy of the tensors that is kept, in the memory that they are in.
        """

class ShardedSubscriber:
    """
    An engine's end on one rank. Not thread-safe; receive() may run in another thread than the rest, one call at a time.
    """

    def __init__(self, engine: str, layout: Layout, rank: int, tensors: Sequence[Memory], *, version: int = 0, needs_anchor: bool = False, stream_id: str | None = None, threads: int = 1, audit_versions: int = 64, stream: int = 0, device_timeout: float = 60.0) -> None:
        """
        `tensors` as ShardedPublisher's, writable; `engine` names the engine, whose ranks share the layout. With `needs_anchor` the memory holds no version yet, and the trainer seeds it in the next regroup().
        """

    def regroup(self, world: ControlChannel, channels: str = 'control', timeout: float = 60.0) -> None:
        """
        Collective over `world`, all ranks of the trainer and of all engines, in any order; replaces the group before. Exchanges the layouts, settles a sync whose fate was in doubt, plans, opens the channels ('control': over the world itself, 'mpi', 'nccl'), seeds engines that have no anchor or another version, and verifies that every slot holds the committed version. GroupMismatchError, WrongBaseError, DigestMismatchError name the rank or engine.
        """

    def receive(self, timeout: float = 60.0) -> None:
        """
        The first half of sync(), while the engine goes on generating: returns when every rank of the world has sent or staged everything. Live memory is only read. With NCCL channels, in the thread that called regroup().
        """

    def apply(self, timeout: float = 60.0) -> ShardedReport:
        """
        The second half, the pause: writes, verifies, waits for every engine and the decision. UsageError without a receive() before it.
        """

    def sync(self, timeout: float = 60.0) -> ShardedReport: ...

    def replace(self, layout: Layout, tensors: Sequence[Memory]) -> None:
        """
        Before the regroup() of an engine that has moved its tensors, contents included.
        """

    def audit_next(self) -> int: ...

    def audit(self) -> None:
        """Re-reads every byte."""

    @property
    def version(self) -> int:
        """Last verified."""

class ColocatedRank:
    """
    A rank of the world that is a trainer's and an engine's at once; what it sends to itself never leaves it.
    """

    def __init__(self, publisher: ShardedPublisher, subscriber: ShardedSubscriber) -> None: ...

    def regroup(self, world: ControlChannel, channels: str = 'control', timeout: float = 60.0) -> None: ...

    def sync(self, timeout: float = 60.0) -> ShardedReport: ...

has_log: bool = True

class Publication:
    """What became of one publication to a log."""

    @property
    def version(self) -> int: ...

    @property
    def changed(self) -> int: ...

    @property
    def elements(self) -> int: ...

    @property
    def wire_bytes(self) -> int:
        """Of the delta's object."""

    @property
    def digest(self) -> str: ...

    @property
    def encode_seconds(self) -> float: ...

    @property
    def upload_seconds(self) -> float: ...

class LogPublisher:
    """
    The trainer's end of a delta log: detects and encodes in the caller's thread, uploads, commits and maintains in threads of its own. One publication is in flight at a time. Not thread-safe.
    """

    def __init__(self, location: str, table: TensorTable, tensors: Sequence[Memory], *, detector: str = 'snapshot', masters: Sequence[Memory | None] | None = None, key: str | None = None, trusted_keys: Sequence[str] = [], mirror: str = '', merge: bool = True, anchors: bool = True, deadline: float = 120.0, positions: str = 'auto', values: str = 'ulp', zstd_level: int = 0, threads: int = 1) -> None:
        """
        Takes over the log at `location` (a directory or s3://bucket/prefix), which is there (create_log). The tensors hold its newest version, else WrongBaseError. `key`: path of a signing key; `trusted_keys`: public ones as 'ed25519:...'. `mirror`: path of a checkpoint from which anchors and merged deltas are made.
        """

    def publish(self, label: str = '') -> int:
        """
        Encodes what changed and hands it to the uploading thread; the version that it will be. FencedError is final; after any other error the call may be repeated.
        """

    def wait(self, timeout: float = 120.0) -> Publication:
        """Until the newest publication is durable."""

    def wait_maintenance(self, timeout: float = 120.0) -> bool: ...

    @property
    def maintenance_error(self) -> str | None: ...

    @property
    def version(self) -> int:
        """Of the newest commit that is known to be durable."""

    @property
    def digest(self) -> str: ...

    @property
    def stream_id(self) -> str: ...

    @property
    def in_flight(self) -> bool: ...

class FollowReport:
    """What one step of a follower did."""

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
    Live tensors in host memory that follow a delta log. Not thread-safe, except stop().
    """

    def __init__(self, location: str, table: TensorTable, tensors: Sequence[Memory], *, state_path: str, scratch: str, trusted_keys: Sequence[str] = [], lease: str = '', max_age: float = 0.0, allow_rollback: bool = False, threads: int = 1, audit_versions: int = 64, pause: object | None = None) -> None:
        """
        `tensors`: writable, contiguous, parallel to the table. `state_path`: a file that remembers what was seen; `scratch`: an existing directory for fetched objects. `pause(True)` is called before each apply and `pause(False)` after it, in the thread of step(). IncompleteError when there is no log yet.
        """

    def step(self, version: int | None = None) -> FollowReport:
        """As far as the head is now, or to `version`; nothing to do is no error."""

    def stop(self) -> None: ...

    @property
    def version(self) -> int | None:
        """Of the tensors; None until the first step has found it."""

    @property
    def digest(self) -> str: ...

def log_head(location: str, trusted_keys: Sequence[str] = []) -> int | None:
    """
    The newest version of the log at `location`; None where there is no log.
    """

def create_log(location: str, table: TensorTable, tensors: Sequence[Memory], *, anchor_path: str, version: int = 0, key: str | None = None, label: str = '', threads: int = 1) -> int:
    """
    Begins a delta log with the tensors as its first version, and its anchor; they are written to `anchor_path` (a .safetensors file; a good mirror for the publisher) on the way. UsageError when there is a log already.
    """

def write_checkpoint(table: TensorTable, tensors: Sequence[Memory], path: str) -> None:
    """
    Writes contiguous tensors of host memory as one .safetensors file, atomically.
    """

def generate_key(path: str) -> str:
    """
    Makes a signing key, saves it for its owner alone, and returns the public one.
    """

def block_grid(source: Memory, *, name: str = '', shape: Sequence[int] | None = None, offset: Sequence[int] = (0, 0), block: Sequence[int] = (128, 128)) -> tuple[tuple[int, int], tuple[int, int], bool]:
    """
    The blocks that a shard of a matrix touches: (first block, blocks, whether all are whole), pairs of rows and columns. `source` is the shard, bf16, fp16 or fp32; `shape` is the whole matrix's (None: the shard's), `offset` where the shard begins in it.
    """

def block_amax(source: Memory, amax: Memory, *, name: str = '', shape: Sequence[int] | None = None, offset: Sequence[int] = [0, 0], block: Sequence[int] = [128, 128], threads: int = 1, stream: int = 0) -> None:
    """
    Writes the greatest finite magnitude that this shard has of each block to `amax`, F32 of the extent that block_grid gives. On a device: on its CUDA stream `stream`, current device, without waiting.
    """

def quantize_blocks(source: Memory, fp8: Memory, scale_inv: Memory, amax: Memory | None = None, *, name: str = '', shape: Sequence[int] | None = None, offset: Sequence[int] = [0, 0], block: Sequence[int] = [128, 128], threads: int = 1, stream: int = 0) -> None:
    """
    Writes the shard's F8_E4M3 elements and its blocks' F32 weight_scale_inv (amax / 448). Without `amax` every block must be whole (UsageError names the shard and the edge); with it, the maximum over the ranks that share blocks. All contiguous, on the source's device. See sparsecast/quantize.hpp.
    """
