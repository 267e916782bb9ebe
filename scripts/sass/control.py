# SPDX-License-Identifier: Apache-2.0
"""What the instructions of control do: branches, where lanes meet again, calls, and the barriers of the CTA."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from .listing import Instruction
from .machine import FULL, LANES, MachineError, Warp

Lanes = np.ndarray


def target_of(code: Instruction) -> int:
    return next(one.value for one in reversed(code.operands) if one.kind == "I")


def branch(warp: Warp, code: Instruction, lanes: Lanes) -> None:
    if "DIV" in code.modifiers:  # Goes on where all lanes of the warp are here, which shuffles ask for.
        if (warp.active != warp.alive).any():
            raise MachineError("lanes of a warp are apart at a shuffle or vote of all")
        return
    for by in code.operands:
        if by.kind in ("P", "UP"):
            lanes = lanes & warp.test(by)
    warp.pc[lanes] = target_of(code)


def set_convergence(warp: Warp, code: Instruction, lanes: Lanes) -> None:
    warp.convergence[int(code.operands[0].text[1:])] = lanes


def converge(warp: Warp, code: Instruction, lanes: Lanes) -> None:
    barrier = int(code.operands[0].text[1:])
    if (lanes & ~warp.convergence[barrier]).any():
        raise MachineError("a lane waits at a convergence barrier that it is no part of")
    warp.waits_for[lanes] = barrier
    warp.meet(barrier)


def leave_convergence(warp: Warp, code: Instruction, lanes: Lanes) -> None:
    barrier = int(code.operands[-1].text[1:])
    warp.convergence[barrier] &= ~lanes
    warp.meet(barrier)


def synchronise_warp(warp: Warp, code: Instruction, lanes: Lanes) -> None:
    """WARPSYNC: waits for all lanes of a mask that live."""
    if "COLLECTIVE" in code.modifiers:
        raise MachineError("the slow path of a shuffle is not known")
    if not lanes.any():
        return
    mask = FULL
    if code.operands:
        bits = warp.read(code.operands[0])[lanes]
        if (bits != bits[0]).any():
            raise MachineError("lanes wait at a WARPSYNC of different masks")
        mask = (int(bits[0]) >> LANES & 1).astype(bool)
    waiting = warp.waits_for == 16
    if waiting.any() and (warp.convergence[16] != mask).any():
        raise MachineError("lanes wait at a WARPSYNC of different masks")
    warp.convergence[16] = mask
    warp.waits_for[lanes] = 16
    warp.meet(16)


def leave(warp: Warp, _code: Instruction, lanes: Lanes) -> None:
    warp.alive &= ~lanes
    for barrier in range(17):
        warp.meet(barrier)


def call(warp: Warp, code: Instruction, lanes: Lanes) -> None:
    warp.pc[lanes] = target_of(code)


def go_back(warp: Warp, code: Instruction, lanes: Lanes) -> None:
    source = code.operands[0]
    number = source.value if source.kind == "R" else int(source.text.split()[0].removeprefix("R"))
    warp.pc[lanes] = warp.files["R"][number][lanes]


def cta_barrier(warp: Warp, code: Instruction, lanes: Lanes) -> None:
    """BAR.SYNC and BAR.RED of barrier 0, at which all threads of the CTA wait."""
    if not lanes.any():
        return
    if "ARV" in code.modifiers or code.operands[0].value != 0 or code.operands[0].kind == "R":
        raise MachineError("only BAR.SYNC and BAR.RED of barrier 0 are known")
    warp.at_barrier |= lanes
    if "RED" in code.modifiers:
        kind = next(name for name in ("OR", "AND", "POPC") if name in code.modifiers)
        votes = warp.vote[1] if warp.vote else np.zeros(32, bool)
        warp.vote = (kind, np.where(lanes, warp.test(code.operands[-1]), votes))


def barrier_result(warp: Warp, code: Instruction, lanes: Lanes) -> None:
    warp.write(code.operands[0], np.full(32, warp.barrier_result, np.uint32), lanes)
    for out in code.operands[1:]:
        warp.write(out, np.full(32, warp.barrier_result != 0), lanes)


def nothing(_warp: Warp, _code: Instruction, _lanes: Lanes) -> None:
    """Does what has no effect on values."""


CONTROL: dict[str, Callable[[Warp, Instruction, Lanes], None]] = {
    "BRA": branch,
    "BSSY": set_convergence,
    "BSYNC": converge,
    "BREAK": leave_convergence,
    "WARPSYNC": synchronise_warp,
    "EXIT": leave,
    "CALL": call,
    "RET": go_back,
    "BAR": cta_barrier,
    "B2R": barrier_result,
    **dict.fromkeys(("NOP", "YIELD", "MEMBAR", "ERRBAR", "CCTL", "NANOSLEEP", "LDGDEPBAR"), nothing),
}
