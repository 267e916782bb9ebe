# SPDX-License-Identifier: Apache-2.0
"""What the instructions do that take data from elsewhere: special registers, constants, other lanes, and memory."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from .listing import ZERO, Instruction, Operand
from .machine import LANES, SHARED_WINDOW, MachineError, Warp
from .memory import Bytes

Lanes = np.ndarray


def special(warp: Warp, name: str) -> np.ndarray:
    if name == "SR_TID.X":
        return (warp.number * 32 + LANES).astype(np.uint32)
    if name == "SR_LANEID":
        return LANES.astype(np.uint32)
    values = {"SR_CTAID.X": warp.cta.number, "SR_CgaCtaId": 0, "SR_SWINHI": SHARED_WINDOW, "SRZ": 0}
    if name in ("SR_LTMASK", "SR_LEMASK", "SR_GTMASK", "SR_GEMASK", "SR_EQMASK"):
        bit = 1 << LANES.astype(np.uint64)
        masks = {"LT": bit - 1, "LE": 2 * bit - 1, "GT": ~(2 * bit - 1), "GE": ~(bit - 1), "EQ": bit}
        return (masks[name[3:5]] & np.uint64(0xFFFFFFFF)).astype(np.uint32)
    if name not in values:
        raise MachineError(f"the special register {name} is not known")
    return np.full(32, values[name], np.uint32)


def read_special(warp: Warp, code: Instruction, lanes: Lanes) -> None:
    bits = special(warp, code.operands[1].text)
    if code.opcode == "CS2R" and "32" not in code.modifiers:
        warp.write64(code.operands[0], bits.astype(np.uint64), lanes)
    else:
        warp.write(code.operands[0], bits, lanes)


def size_of(code: Instruction) -> int:
    """Returns how many bytes a lane loads or stores."""
    for names, size in ((("128",), 16), (("64",), 8), (("U16", "S16", "16"), 2), (("U8", "S8"), 1)):
        if any(name in code.modifiers for name in names):
            return size
    return 4


def load_constant(warp: Warp, code: Instruction, lanes: Lanes) -> None:
    target, source = code.operands
    size = size_of(code)
    offsets = np.full(32, source.value)
    if source.base is not None:
        offsets = offsets + np.where(lanes, warp.files[source.base_kind][source.base], 0)
    at = [warp.cta.constant(int(offset), size) if on else 0 for offset, on in zip(offsets, lanes, strict=True)]
    values = np.array(at, np.uint64)
    if size == 8:
        warp.write64(target, values, lanes)
    else:
        warp.write(target, values.astype(np.uint32), lanes)


def shuffle(warp: Warp, code: Instruction, lanes: Lanes) -> None:
    operands = list(code.operands)
    out = operands.pop(0) if operands[0].kind == "P" else None
    target, source, by, clamp = operands
    b, c = warp.read(by).astype(np.int64) & 31, warp.read(clamp).astype(np.int64)
    segment, bound = c >> 8 & 31, c & 31
    lowest = LANES & segment
    highest = lowest | (bound & ~segment)
    mode = code.modifiers[0]
    chosen = {"UP": LANES - b, "DOWN": LANES + b, "BFLY": LANES ^ b, "IDX": lowest | (b & ~segment)}[mode]
    inside = chosen >= highest if mode == "UP" else chosen <= highest
    chosen = np.where(inside, chosen, LANES)
    if not warp.active[chosen[lanes]].all():
        raise MachineError("a shuffle reads a lane that is not there")
    warp.write(target, warp.read(source)[chosen], lanes)
    if out:
        warp.write(out, inside, lanes)


def bits_of(lanes: Lanes) -> int:
    return int((lanes.astype(np.uint64) << LANES.astype(np.uint64)).sum())


def vote(warp: Warp, code: Instruction, lanes: Lanes) -> None:
    """VOTE and VOTEU: the lanes in which a predicate holds, and whether it does in any, in all, or alike in all."""
    source = warp.test(code.operands[-1])
    holds = source & lanes
    any_, all_ = bool(holds.any()), bool(source[lanes].all())
    result = all_ if "ALL" in code.modifiers else any_ == all_ if "EQ" in code.modifiers else any_
    for target in code.operands[:-1]:
        if target.kind in ("P", "UP"):
            warp.write(target, np.full(32, result), lanes)
        else:
            warp.write(target, np.full(32, bits_of(holds), np.uint32), lanes)


def reduce_lanes(warp: Warp, code: Instruction, lanes: Lanes) -> None:
    """REDUX: sum, smallest, largest, or the bits of all lanes together."""
    if not lanes.any():
        return
    values = warp.read(code.operands[1])[lanes]
    if "S32" in code.modifiers:
        values = values.view(np.int32)
    if "SUM" in code.modifiers:
        result = int(values.astype(np.uint64).sum())
    elif "MAX" in code.modifiers or "MIN" in code.modifiers:
        result = int(values.max() if "MAX" in code.modifiers else values.min())
    else:
        name = next((one for one in ("AND", "XOR") if one in code.modifiers), "OR")
        reduce = {"AND": np.bitwise_and, "XOR": np.bitwise_xor, "OR": np.bitwise_or}[name].reduce
        result = int(reduce(values))
    warp.write(code.operands[0], np.full(32, result & 0xFFFFFFFF, np.uint32), lanes)


def addresses(warp: Warp, at: Operand) -> np.ndarray:
    result = np.zeros(32, np.int64)
    if at.base is not None:
        base = warp.read64(Operand("R", at.base)) if at.wide else warp.files["R"][at.base].astype(np.uint64)
        result = base.view(np.int64) * at.scale
    if at.uniform is not None:
        wide = at.wide or at.base is None
        more = warp.read64(Operand("UR", at.uniform)) if wide else warp.files["UR"][at.uniform].astype(np.uint64)
        result = result + more.view(np.int64)
    return result + at.value


def places(warp: Warp, code: Instruction, at: Operand, lanes: Lanes) -> tuple[Bytes, np.ndarray]:
    """Returns the memory and the addresses of the lanes that access it."""
    where = addresses(warp, at)[lanes]
    if code.opcode in ("LDS", "STS", "ATOMS"):
        return warp.cta.shared, where & 0xFFFFFFFF
    shared = where >> 32 == SHARED_WINDOW
    if code.opcode in ("LD", "ST", "ATOM") and shared.any():
        if not shared.all():
            raise MachineError("one access to shared and to global memory is not known")
        return warp.cta.shared, where & 0xFFFFFFFF
    return warp.cta.memory, where


def load(warp: Warp, code: Instruction, lanes: Lanes) -> None:
    if not lanes.any():
        return
    target = code.operands[0]
    size = size_of(code)
    words = places(warp, code, code.operands[-1], lanes)
    loaded = words[0].load(words[1], size)
    if "S8" in code.modifiers or "S16" in code.modifiers:
        sign = np.uint32(1 << (8 * size - 1))
        loaded = (loaded ^ sign) - sign
    if target.value == ZERO["R"]:
        return
    for word in range(loaded.shape[1]):
        warp.files["R"][target.value + word][lanes] = loaded[:, word]


def store(warp: Warp, code: Instruction, lanes: Lanes) -> None:
    if not lanes.any():
        return
    at, source = code.operands
    size = size_of(code)
    count = max(1, size // 4)
    zero = source.value == ZERO["R"]
    words = np.zeros((count, 32), np.uint32) if zero else warp.files["R"][source.value : source.value + count]
    memory, where = places(warp, code, at, lanes)
    memory.store(where, size, words[:, lanes].T)


def start_copy(warp: Warp, code: Instruction, lanes: Lanes) -> None:
    """LDGSTS: copies from global to shared memory, which has the bytes when the warp has waited (DEPBAR)."""
    if not lanes.any():
        return
    to, source = code.operands[0], code.operands[-1]
    size = size_of(code)
    words = warp.cta.memory.load(addresses(warp, source)[lanes], size)
    warp.copies.append((addresses(warp, to)[lanes] & 0xFFFFFFFF, size, words))


def finish_copies(warp: Warp, _code: Instruction, _lanes: Lanes) -> None:
    for where, size, words in warp.copies:
        warp.cta.shared.store(where, size, words)
    warp.copies.clear()


COMBINE: dict[str, Callable[[int, int], int]] = {
    "OR": lambda old, new: old | new,
    "AND": lambda old, new: old & new,
    "XOR": lambda old, new: old ^ new,
    "ADD": lambda old, new: old + new,
    "MIN": min,
    "MAX": max,
    "EXCH": lambda _old, new: new,
}


def atomic(warp: Warp, code: Instruction, lanes: Lanes) -> None:
    """ATOMS, ATOM, ATOMG and REDG: one lane after another. Numbers are unsigned."""
    if "S32" in code.modifiers or "F32" in code.modifiers:
        raise MachineError("only unsigned atomic operations are known")
    size = 8 if "64" in code.modifiers else 4
    number = next(i for i, one in enumerate(code.operands) if one.kind == "M")
    sources = code.operands[number + 1 :]
    target = next((one for one in code.operands[:number] if one.kind == "R"), Operand("R", ZERO["R"]))
    memory, where = places(warp, code, code.operands[number], lanes)
    given = [warp.read64(one) if size == 8 else warp.read(one) for one in sources]
    name = next((one for one in COMBINE if one in code.modifiers), "")
    for lane, address in zip(np.nonzero(lanes)[0], where[:, None], strict=True):
        old = int(memory.load(address, size).copy().view(f"<u{size}")[0, 0])
        if "POPC" in code.modifiers:
            new = old + 1
        elif "CAS" in code.modifiers or "CAST" in code.modifiers:
            new = int(given[1][lane]) if old == int(given[0][lane]) else old
        else:
            new = COMBINE[name](old, int(given[0][lane])) & ((1 << (8 * size)) - 1)
        memory.store(address, size, np.array([[new]], f"<u{size}").view("<u4"))
        if target.value == ZERO["R"]:
            continue
        if "CAST" in code.modifiers:  # CAST.SPIN: whether the word was the one compared with.
            old = int(old == int(given[0][lane]))
        warp.files["R"][target.value][lane] = old & 0xFFFFFFFF
        if size == 8 and "CAST" not in code.modifiers:
            warp.files["R"][target.value + 1][lane] = old >> 32


TRANSFERS: dict[str, Callable[[Warp, Instruction, Lanes], None]] = {
    **dict.fromkeys(("S2R", "S2UR", "CS2R"), read_special),
    **dict.fromkeys(("LDC", "ULDC"), load_constant),
    "SHFL": shuffle,
    **dict.fromkeys(("VOTE", "VOTEU"), vote),
    **dict.fromkeys(("REDUX", "CREDUX"), reduce_lanes),
    **dict.fromkeys(("LD", "LDG", "LDS"), load),
    **dict.fromkeys(("ST", "STG", "STS"), store),
    "LDGSTS": start_copy,
    "DEPBAR": finish_copies,
    **dict.fromkeys(("ATOM", "ATOMG", "ATOMS", "REDG", "RED"), atomic),
}
