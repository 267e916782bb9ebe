# SPDX-License-Identifier: Apache-2.0
"""A multiprocessor that runs one CTA: warps of 32 lanes with registers and predicates, branches that diverge and meet
again, barriers. Each lane has a program counter; a step takes the lanes at the lowest one. Counts the instructions that
warps issue, the lanes that were active in them, and the barriers of the CTA.

A register file is an array [register, lane]. A uniform register has its value in all lanes, so that one function does
an instruction and its uniform form."""

from __future__ import annotations

import collections
import random

import numpy as np

from .listing import ZERO, Instruction, Operand
from .memory import Memory, SharedMemory

LANES = np.arange(32)
FULL = np.ones(32, bool)
ZEROS = np.zeros(32, np.uint32)
PARAMETERS = 0x210  # Where the parameters of a kernel begin in constant bank 0.
SHARED_WINDOW = 0x7F00  # The high word of a generic address of shared memory.


class MachineError(Exception):
    """What compiled code must not do, or an instruction that this machine lacks."""


class Warp:
    """One warp of a CTA."""

    def __init__(self, cta: Cta, number: int) -> None:
        self.cta, self.number = cta, number
        self.files = {
            "R": np.zeros((256, 32), np.uint32),
            "UR": np.zeros((64, 32), np.uint32),
            "P": np.zeros((8, 32), bool),
            "UP": np.zeros((8, 32), bool),
        }
        self.files["P"][7] = self.files["UP"][7] = True
        self.pc = np.zeros(32, np.int64)
        self.alive = FULL.copy()
        self.at_barrier = np.zeros(32, bool)
        self.waits_for = np.full(32, -1)  # The convergence barrier at which a lane waits, 16 at a WARPSYNC, or -1.
        self.convergence = np.zeros((17, 32), bool)
        self.active = FULL
        self.vote: tuple[str, np.ndarray] | None = None
        self.barrier_result = 0
        self.copies: list[tuple[np.ndarray, int, np.ndarray]] = []  # To shared memory: addresses, size, words.

    def read(self, source: Operand) -> np.ndarray:
        """Returns the 32 bits of an operand in each lane."""
        if source.kind in ("R", "UR"):
            bits = self.files[source.kind][source.value]
        elif source.kind == "I":
            return np.full(32, source.value & 0xFFFFFFFF, np.uint32)
        elif source.kind == "F":
            return np.full(32, np.float32(source.real).view(np.uint32), np.uint32)
        elif source.kind == "C" and source.base is None:
            bits = np.full(32, self.cta.constant(source.value, 4), np.uint32)
        else:
            raise MachineError(f"operand {source.text} is not of 32 bits")
        if source.inverted:
            bits = ~bits
        return (~bits) + np.uint32(1) if source.negated else bits

    def addend(self, source: Operand) -> np.ndarray:
        """Returns an operand as 64 bits whose bits from 32 up are the carry: -x is ~x + 1, and -0 is 2^32."""
        if source.negated:
            plain = Operand(source.kind, source.value, source.text, inverted=source.inverted)
            return (~self.read(plain)).astype(np.uint64) + np.uint64(1)
        return self.read(source).astype(np.uint64)

    def read64(self, source: Operand) -> np.ndarray:
        """Returns the 64 bits of a pair of registers, an integer, or the constant bank."""
        if source.kind == "I":
            return np.full(32, source.value, np.uint64)
        if source.kind == "C":
            return np.full(32, self.cta.constant(source.value, 8), np.uint64)
        if source.value == ZERO[source.kind]:
            return np.zeros(32, np.uint64)
        low, high = self.files[source.kind][source.value : source.value + 2].astype(np.uint64)
        return low | high << np.uint64(32)

    def test(self, source: Operand) -> np.ndarray:
        bits = self.files[source.kind][source.value]
        return ~bits if source.inverted else bits

    def write(self, target: Operand, bits: np.ndarray, lanes: np.ndarray) -> None:
        """Writes a register or a predicate in `lanes`; in all lanes if it is uniform and there is any."""
        if target.value == ZERO[target.kind]:
            return
        row = self.files[target.kind][target.value]
        if target.kind.startswith("U"):
            if lanes.any():
                row[:] = bits[int(np.argmax(lanes))]
        else:
            np.copyto(row, bits.astype(row.dtype), where=lanes)

    def write64(self, target: Operand, bits: np.ndarray, lanes: np.ndarray) -> None:
        if target.value == ZERO[target.kind]:
            return
        self.write(target, (bits & np.uint64(0xFFFFFFFF)).astype(np.uint32), lanes)
        self.write(Operand(target.kind, target.value + 1), (bits >> np.uint64(32)).astype(np.uint32), lanes)

    def meet(self, barrier: int) -> None:
        """Lets the lanes of a convergence barrier go on when all that live have arrived."""
        part = self.convergence[barrier] & self.alive
        if part.any() and (self.waits_for[part] == barrier).all():
            self.waits_for[part] = -1

    def step(self) -> bool:
        """Runs one instruction; returns False where no lane can go on."""
        ready = self.alive & ~self.at_barrier & (self.waits_for < 0)
        if not ready.any():
            return False
        pc = int(self.pc[ready].min())
        step = self.cta.program.get(pc)
        if step is None:
            raise MachineError(f"there is no instruction at {pc:#x}")
        code, execute = step
        self.active = ready & (self.pc == pc)
        lanes = self.active if code.guard is None else self.active & self.test(code.guard)
        self.cta.instructions[code.opcode] += 1
        self.cta.lanes += int(np.count_nonzero(lanes))
        self.pc[self.active] = pc + 16
        try:
            execute(self, code, lanes)
        except (MachineError, IndexError, ValueError, KeyError, StopIteration) as error:
            raise MachineError(f"{pc:#x} {code.text}: {error}") from error
        return True


class Cta:
    """Runs one CTA. `program` is {address: (instruction, function)}; `parameters` are the bytes of the arguments."""

    def __init__(
        self, code: list[Instruction], memory: Memory, parameters: bytes, threads: int, cta: int = 0, ctas: int = 1
    ) -> None:
        from .operations import OPERATIONS

        def missing(_warp: Warp, code: Instruction, _lanes: np.ndarray) -> None:
            raise MachineError(f"this machine has no {code.opcode}")

        self.program = {one.address: (one, OPERATIONS.get(one.opcode, missing)) for one in code}
        self.memory, self.number = memory, cta
        self.shared = SharedMemory()
        shape = np.array([threads, 1, 1, ctas, 1, 1], "<u4").tobytes()
        self.bank = shape.ljust(PARAMETERS, b"\0") + parameters + bytes(64)
        self.warps = [Warp(self, number) for number in range(threads // 32)]
        self.instructions: collections.Counter[str] = collections.Counter()
        self.lanes = self.barriers = 0

    def constant(self, offset: int, size: int) -> int:
        if offset < 0 or offset + size > len(self.bank):
            raise MachineError(f"constant {offset:#x} is not there")
        return int.from_bytes(self.bank[offset : offset + size], "little")

    def run(self, seed: int | None = None) -> None:
        """Runs to the end; with a seed warps take turns at random, otherwise each goes as far as it can."""
        order = random.Random(seed)
        while True:
            moved = False
            if seed is not None:
                order.shuffle(self.warps)
            for warp in self.warps:
                left = order.randrange(1, 40) if seed is not None else -1
                while left != 0 and warp.step():
                    moved, left = True, left - 1
            living = [warp for warp in self.warps if warp.alive.any()]
            if not living:
                return
            if all(warp.at_barrier[warp.alive].all() for warp in living):
                self.release(living)
            elif not moved:
                raise MachineError("deadlock: no warp can go on")

    def release(self, living: list[Warp]) -> None:
        """Lets all warps go on from a barrier of the CTA, with the result of its reduction if it has one."""
        self.barriers += 1
        kinds = {warp.vote[0] if warp.vote else "" for warp in living}
        if len(kinds) != 1:
            raise MachineError("warps wait at barriers of different kinds")
        votes = [warp.vote[1][warp.alive] for warp in living if warp.vote]
        result = 0
        if votes:
            count, of = int(np.concatenate(votes).sum()), sum(map(len, votes))
            result = {"OR": int(count > 0), "AND": int(count == of), "POPC": count}[kinds.pop()]
        for warp in living:
            warp.at_barrier[:] = False
            warp.vote, warp.barrier_result = None, result
