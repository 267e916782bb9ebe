# SPDX-License-Identifier: Apache-2.0
"""sparsecast: lossless sparse synchronisation of model weights.

Only the weights that changed are sent, bit for bit, and every receiver verifies what it holds. Arrays of any library
are passed by DLPack or the buffer protocol (:func:`describe`); only :mod:`sparsecast.torch` needs torch.

Endpoints, from the simplest to the most general:

* :class:`Publisher` and :class:`Subscriber`: one rank each; deltas as bytes, or over a :class:`Transport`.
* :class:`ShardedPublisher` and :class:`ShardedSubscriber`: many ranks on both sides, with different shards (:class:`Layout`).
* :class:`LogPublisher` and :class:`LogFollower`: a log of files or S3 objects between them.
"""

from __future__ import annotations

from ._core import (
    ApplyReport,
    Box,
    ColocatedRank,
    ControlChannel,
    Delta,
    Layout,
    LocalTensor,
    MeetingCancellation,
    Memory,
    Publisher,
    RankLayout,
    Shard,
    ShardedPublisher,
    ShardedReport,
    ShardedSubscriber,
    Subscriber,
    SyncReport,
    TensorTable,
    Transport,
    digest,
    has_cuda,
    has_log,
    has_mpi,
    has_nccl,
    meet,
    mpi_channel,
    mpi_transport,
    nccl_transport,
    tcp_transport,
)
from ._core import version as __version__
from .buffers import describe
from .errors import Error
from .layouts import join_layouts

if has_log:
    from ._core import (
        EngineRank,
        FollowReport,
        LogFollower,
        LogPublisher,
        Publication,
        create_log,
        generate_key,
        log_head,
        log_table_hash,
        write_checkpoint,
    )

__all__ = [
    "ApplyReport",
    "Box",
    "ColocatedRank",
    "ControlChannel",
    "Delta",
    "EngineRank",
    "Error",
    "FollowReport",
    "Layout",
    "LocalTensor",
    "LogFollower",
    "LogPublisher",
    "MeetingCancellation",
    "Memory",
    "Publication",
    "Publisher",
    "RankLayout",
    "Shard",
    "ShardedPublisher",
    "ShardedReport",
    "ShardedSubscriber",
    "Subscriber",
    "SyncReport",
    "TensorTable",
    "Transport",
    "__version__",
    "create_log",
    "describe",
    "digest",
    "generate_key",
    "has_cuda",
    "has_log",
    "has_mpi",
    "has_nccl",
    "join_layouts",
    "log_head",
    "log_table_hash",
    "meet",
    "mpi_channel",
    "mpi_transport",
    "nccl_transport",
    "tcp_transport",
    "write_checkpoint",
]
