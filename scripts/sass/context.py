# SPDX-License-Identifier: Apache-2.0
"""Runs the compiled decode_context on blocks of the second encoder, and write_entries on what it leaves."""

from __future__ import annotations

import numpy as np

from .kernels import KEY, TILE, WEIGHTS, Delta, Weights, blocks, layouts, pack, require
from .listing import Instruction

# On the path that kernels.py has set.
import independent_encoder as encoder  # isort: skip


def optimizer_changes(weights: Weights, percent: float, tiles: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Returns old and new bits of normal weights after a step of one size, which is likelier to change a weight the
    smaller that is: twice as likely with each exponent down."""
    random = np.random.default_rng(seed)
    n = tiles * TILE
    mantissa, top = weights.mantissa, weights.exponent + (7 if weights.size > 1 else 10)
    binade = np.floor(np.log2(np.abs(random.normal(0, 0.5, n)) + 1e-9)).astype(np.int64)
    exponents = np.clip(top + binade, 0, top + 2)
    chances = np.ldexp(1.0, top - exponents)
    share = percent / 100 / chances.mean()
    for _ in range(20):  # So that those that are certain to change are made up for by the others.
        share *= percent / 100 / np.minimum(share * chances, 0.95).mean()
    changed = random.random(n) < np.minimum(share * chances, 0.95)
    far = changed & (share * chances > 0.5)
    steps = np.where(far, random.integers(1, 5, n), 1) * random.choice((-1, 1), n)
    old = (
        exponents << mantissa | random.integers(0, 1 << mantissa, n) | random.integers(0, 2, n) << 8 * weights.size - 1
    )
    return old.astype(weights.bits), (old + np.where(changed, steps, 0)).astype(weights.bits)


def stage(delta: Delta) -> dict[str, float]:
    """Decodes one `context` block of all tiles to entries, and writes these; returns what decoding took."""
    memory, at, n, size = delta.memory, delta.at, delta.tiles * TILE, delta.weights.size
    old, new, where = delta.old.tolist(), delta.new.tolist(), np.flatnonzero(delta.old != delta.new)
    words = [encoder.coded_word(a, b, blocks.ULP, delta.weights.dtype, 8 * size) for a, b in zip(old, new, strict=True)]
    head, values, ke = encoder.encode_context(old, where.tolist(), words, delta.weights.dtype, 8 * size)
    live, sums = memory.put(delta.old), memory.put(bytes(16))
    tensor = pack(
        at["LiveTensor"], data=live, elements=n, key_lo=KEY[0], key_hi=KEY[1], element_shift=delta.shift,
        order=1, dtype=delta.weights.dtype, view=0xFFFFFFFF, digest_view=0xFFFFFFFF,
    )  # fmt: skip
    block = pack(
        at["ReceivedBlock"], payload=memory.put(head + values), payload_words=len(head + values) // 4, span=n,
        changed=len(where), coding=blocks.CONTEXT | blocks.ULP << 3 | ke << 16, element_shift=delta.shift, for_cta=1,
    )  # fmt: skip
    listed = at["ReceiveControl"]["cta_blocks"]
    fresh = (b"\xff" * 24 + bytes(listed - 24) + (1).to_bytes(4, "little")).ljust(at["ReceiveControl"][""], b"\0")
    control, positions = memory.put(fresh), memory.allocate(4 * len(where))
    received = pack(
        at["Received"], tensors=memory.put(tensor), blocks=memory.put(block), cta_blocks=memory.put(bytes(8)),
        changes=memory.allocate(4 * len(where)), frame_undo=memory.put(bytes(8)), digest_changes=sums,
        control=control, frame_count=1, entry_positions=positions, block_count=1, entry_word_bytes=size,
        entry_words=memory.allocate(size * len(where)),
    )  # fmt: skip
    delta.launch("stage context", received, delta.tiles)
    require((memory.get(control, np.uint64, 3) == 2**64 - 1).all(), "the `context` block was refused")
    require((np.sort(memory.get(positions, np.uint32, len(where))) == where).all(), "places of `context` are wrong")
    delta.launch("write entries", received + bytes([1]), 1)
    require((memory.get(live, delta.weights.bits, n) == delta.new).all(), "the entries of `context` are wrong")
    delta.check_digest(sums, "the applier of `context`")
    return delta.costs["stage context"]


def run(code: dict[str, list[Instruction]], compiler: str) -> dict[str, dict[str, float]]:
    """Returns {"stage context, weights, percent": what a tile took}; takes and throws what run() in kernels.py does."""
    at = layouts(compiler)
    costs: dict[str, dict[str, float]] = {}
    for what, percent, tiles in (("bf16", 0.2, 24), ("bf16", 1, 24), ("bf16", 5, 6), ("fp8", 1, 4), ("f32", 1, 4)):
        delta = Delta(code, at, WEIGHTS[what], percent, tiles, changes=optimizer_changes)
        costs[f"stage context, {what}, {percent} %"] = stage(delta)
    return costs
