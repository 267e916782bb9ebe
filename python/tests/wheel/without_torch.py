# SPDX-License-Identifier: Apache-2.0
"""The module in an environment that has nothing else: what is in it, and a step from a publisher to a subscriber."""

from __future__ import annotations

import array
import sys

import sparsecast as sc

assert sc.__file__.startswith(sys.prefix), sc.__file__
print(
    f"sparsecast {sc.__version__} on Python {sys.version.split()[0]}:"
    f" mpi {sc.has_mpi}, nccl {sc.has_nccl}, cuda {sc.has_cuda}, log {sc.has_log}"
)
assert sc.has_log and not sc.has_mpi

live = array.array("H", range(10_000))
held = array.array("H", live)
table = sc.TensorTable([("w", "BF16", (10_000,))])
publisher = sc.Publisher(table, [sc.describe(live, dtype="BF16")])
subscriber = sc.Subscriber(table, [sc.describe(held, dtype="BF16")])
for i in range(0, 10_000, 97):
    live[i] ^= 1
delta = publisher.publish()
for record in delta.records():
    subscriber.stage(record)
subscriber.apply()
publisher.commit(delta.version)
assert held == live and delta.changed == 104, delta.changed
try:
    sc.mpi_transport()
except sc.Error as error:
    print(f"mpi_transport(): {error}")
