# SPDX-License-Identifier: Apache-2.0
"""sparsecast for torch: publishers for a trainer, subscribers for plain torch models.

publisher = sparsecast.torch.Publisher(model, optimizer, transport=World(...))
...
report = publisher.publish()
"""

from __future__ import annotations

from ..transports import Log, Met, Mpi, World
from .layouts import gather_layout
from .loader_source import LoaderSource
from .publisher import Publisher
from .report import PublishReport, TensorReport
from .shards import LocalShards, shards_of
from .subscriber import Subscriber, UpdateReport

__all__ = [
    "LoaderSource",
    "LocalShards",
    "Log",
    "Met",
    "Mpi",
    "PublishReport",
    "Publisher",
    "Subscriber",
    "TensorReport",
    "UpdateReport",
    "World",
    "gather_layout",
    "shards_of",
]
