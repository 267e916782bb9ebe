# SPDX-License-Identifier: Apache-2.0
"""What the instructions of arithmetic and logic do. Each function takes the warp, the instruction and the lanes in which its
guard holds. OPERATIONS has them all, with those of control.py and transfers.py."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from .control import CONTROL
from .listing import Instruction, Operand
from .machine import FULL, MachineError, Warp
from .transfers import TRANSFERS

Lanes = np.ndarray
LOW = np.uint64(0xFFFFFFFF)
HALF = np.uint64(32)


def sort_out(code: Instruction) -> tuple[list[Operand], list[Operand], list[Operand]]:
    """Returns the carries out, the sources, and the carries in of an addition or product."""
    outs, rest = [], list(code.operands[1:])
    while rest and rest[0].kind in ("P", "UP"):
        outs.append(rest.pop(0))
    sources = [one for one in rest if one.kind not in ("P", "UP")]
    return outs, sources, [one for one in rest if one.kind in ("P", "UP")]


def finish(warp: Warp, code: Instruction, lanes: Lanes, total: np.ndarray, outs: list[Operand]) -> None:
    """Writes the low 32 bits of a sum and its carries."""
    warp.write(code.operands[0], (total & LOW).astype(np.uint32), lanes)
    for number, out in enumerate(outs):
        warp.write(out, (total >> HALF) > number, lanes)


def add(warp: Warp, code: Instruction, lanes: Lanes) -> None:
    outs, sources, ins = sort_out(code)
    total = np.zeros(32, np.uint64)
    for source in sources:
        total = total + warp.addend(source)
    for carry in ins:
        total = total + warp.test(carry)
    finish(warp, code, lanes, total, outs)


def multiply(warp: Warp, code: Instruction, lanes: Lanes) -> None:
    outs, (left, right, third), ins = sort_out(code)
    a, b = warp.read(left), warp.read(right)
    carry = sum((warp.test(one).astype(np.uint64) for one in ins), np.zeros(32, np.uint64))
    if "WIDE" in code.modifiers or "HI" in code.modifiers:
        if "U32" in code.modifiers:
            product = a.astype(np.uint64) * b
        else:
            product = (a.view(np.int32).astype(np.int64) * b.view(np.int32)).view(np.uint64)
        once = product + warp.read64(third)
        total = once + carry
        overflow = (once < product) | (total < once)
        if "HI" in code.modifiers:
            warp.write(code.operands[0], (total >> HALF).astype(np.uint32), lanes)
        else:
            warp.write64(code.operands[0], total, lanes)
        for out in outs:
            warp.write(out, overflow, lanes)
        return
    total = (a.astype(np.uint64) * b & LOW) + warp.addend(third) + carry
    finish(warp, code, lanes, total, outs)


def compare_with(code: Instruction, x: np.ndarray, y: np.ndarray) -> tuple[str, np.ndarray]:
    for name, function in COMPARISONS.items():
        if name in code.modifiers:
            return name, function(x, y)
    raise MachineError("the comparison is not known")


COMPARISONS: dict[str, Callable[..., np.ndarray]] = {
    "EQ": np.equal,
    "NE": np.not_equal,
    "LT": np.less,
    "LE": np.less_equal,
    "GT": np.greater,
    "GE": np.greater_equal,
}


def compare(warp: Warp, code: Instruction, lanes: Lanes) -> None:
    target, other, left, right, joined = code.operands[:5]
    x, y = warp.read(left), warp.read(right)
    if "U32" not in code.modifiers:
        x, y = x.view(np.int32), y.view(np.int32)
    name, result = compare_with(code, x, y)
    if "EX" in code.modifiers:  # The high words of 64 bits: where they are equal, the low words decide.
        low = warp.test(code.operands[5])
        strict = {"LE": np.less, "GE": np.greater}.get(name, COMPARISONS[name])(x, y)
        result = (x != y) | low if name == "NE" else (x == y) & low if name == "EQ" else strict | ((x == y) & low)
    with_ = warp.test(joined)
    for out, value in ((target, result), (other, ~result)):
        if "AND" in code.modifiers:
            warp.write(out, value & with_, lanes)
        else:
            warp.write(out, value | with_ if "OR" in code.modifiers else value ^ with_, lanes)


def table_of(table: int, a: np.ndarray, b: np.ndarray, c: np.ndarray) -> np.ndarray:
    result = np.zeros_like(a)
    for row in range(8):
        if table >> row & 1:
            result |= (a if row & 4 else ~a) & (b if row & 2 else ~b) & (c if row & 1 else ~c)
    return result


def logic(warp: Warp, code: Instruction, lanes: Lanes) -> None:
    operands = list(code.operands)
    out = operands.pop(0) if operands[0].kind in ("P", "UP") else None
    a, b, c = map(warp.read, operands[1:4])
    result = table_of(operands[4].value, a, b, c)
    warp.write(operands[0], result, lanes)
    if out:
        warp.write(out, (result != 0) | (warp.test(operands[5]) if len(operands) > 5 else False), lanes)


def predicate_logic(warp: Warp, code: Instruction, lanes: Lanes) -> None:
    first, second, *sources, table, other = code.operands
    a, b, c = map(warp.test, sources)
    results = [table_of(one.value, a, b, c) for one in (table, other)]
    warp.write(first, results[0], lanes)
    warp.write(second, results[1], lanes)


def select(warp: Warp, code: Instruction, lanes: Lanes) -> None:
    target, left, right, by = code.operands
    warp.write(target, np.where(warp.test(by), warp.read(left), warp.read(right)), lanes)


def shift(warp: Warp, code: Instruction, lanes: Lanes) -> None:
    """SHF: shifts the 64 bits high:low and takes their high half (HI) or the low one."""
    target, low, by, high = code.operands
    modifiers = code.modifiers
    wide = "U64" in modifiers or "S64" in modifiers
    count = warp.read(by).astype(np.uint64)
    count = count & np.uint64(63 if wide else 31) if "W" in modifiers else np.minimum(count, 64 if wide else 32)
    value = warp.read(low) | warp.read(high).astype(np.uint64) << HALF
    near, rest = (
        np.minimum(count, np.uint64(32)),
        count - np.minimum(count, np.uint64(32)),
    )  # No shift by 64 is defined.
    if "L" in modifiers:
        value = value << near << rest
    elif "S32" in modifiers or "S64" in modifiers:
        value = (value.view(np.int64) >> near.view(np.int64) >> rest.view(np.int64)).view(np.uint64)
    else:
        value = value >> near >> rest
    warp.write(target, (value >> HALF if "HI" in modifiers else value & LOW).astype(np.uint32), lanes)


def scaled_add(warp: Warp, code: Instruction, lanes: Lanes) -> None:
    """LEA: (a << n) + b; with HI the high word of (c:a << n), plus b."""
    outs, sources, ins = sort_out(code)
    if "HI" in code.modifiers:
        a, b, c, by = sources
        value = warp.read(Operand(a.kind, a.value, a.text)) | warp.read(c).astype(np.uint64) << HALF
        value = ~value + np.uint64(1) if a.negated else value
        if "SX32" in code.modifiers:
            raise MachineError("LEA.HI.SX32 is not known")
        shifted = value << np.uint64(by.value) >> HALF
    else:
        a, b, by = sources
        shifted = warp.read(a).astype(np.uint64) << np.uint64(by.value) & LOW
    total = shifted + warp.addend(b)
    for carry in ins:
        total = total + warp.test(carry)
    finish(warp, code, lanes, total, outs)


def bounded(warp: Warp, code: Instruction, lanes: Lanes) -> None:
    """VIMNMX and VIADDMNMX: the smaller of two where the predicate holds, otherwise the larger one; S16x2 of each half."""
    target, *sources, least = code.operands
    values = [warp.read(one) for one in sources if one.kind not in ("P", "UP")]
    if "S16x2" in code.modifiers:
        halves = [value.view(np.int16).reshape(32, 2) for value in values]
        x, y = halves if len(halves) == 2 else (halves[0] + halves[1], halves[2])
        result = np.where(warp.test(least)[:, None], np.minimum(x, y), np.maximum(x, y))
        if "RELU" in code.modifiers:
            result = np.maximum(result, np.int16(0))
        warp.write(target, np.ascontiguousarray(result, np.int16).view(np.uint32).ravel(), lanes)
        return
    x, y = values if len(values) == 2 else (values[0] + values[1], values[2])
    if "U32" not in code.modifiers:
        x, y = x.view(np.int32), y.view(np.int32)
    result = np.where(warp.test(least), np.minimum(x, y), np.maximum(x, y))
    if "RELU" in code.modifiers:
        result = np.maximum(result, 0)
    warp.write(target, result.view(np.uint32), lanes)


def permute(warp: Warp, code: Instruction, lanes: Lanes) -> None:
    target, a, by, b = code.operands
    if code.modifiers:
        raise MachineError("only the plain PRMT is known")
    value = warp.read(a) | warp.read(b).astype(np.uint64) << HALF
    selector, result = warp.read(by).astype(np.uint64), np.zeros(32, np.uint64)
    for byte in range(4):
        chosen = selector >> np.uint64(4 * byte) & np.uint64(15)
        bits = value >> (chosen & np.uint64(7)) * np.uint64(8) & np.uint64(255)
        sign = np.where(bits & np.uint64(128), np.uint64(255), np.uint64(0))
        result |= np.where(chosen & np.uint64(8), sign, bits) << np.uint64(8 * byte)
    warp.write(target, result.astype(np.uint32), lanes)


def of_each(function: Callable[[int], int]) -> Callable[[Warp, Instruction, Lanes], None]:
    """Makes an instruction of one source from a function of its value."""

    def run(warp: Warp, code: Instruction, lanes: Lanes) -> None:
        source = warp.read(code.operands[-1])
        warp.write(code.operands[0], np.array([function(int(bits)) for bits in source], np.uint32), lanes)

    return run


def find_leading_one(warp: Warp, code: Instruction, lanes: Lanes) -> None:
    """FLO: the number of the highest set bit, or with SH how far it is from bit 31; all ones for 0."""
    if "U32" not in code.modifiers:
        raise MachineError("only FLO.U32 is known")
    numbers = np.array([int(bits).bit_length() - 1 for bits in warp.read(code.operands[-1])])
    if "SH" in code.modifiers:
        numbers = np.where(numbers < 0, -1, 31 - numbers)
    warp.write(code.operands[0], numbers.astype(np.int32).view(np.uint32), lanes)


def extend(warp: Warp, code: Instruction, lanes: Lanes) -> None:
    """SGXT: keeps the low n bits, with the sign of the highest of them unless U32."""
    target, source, by = code.operands
    n = np.minimum(warp.read(by), 32).astype(np.uint64)
    value = warp.read(source).astype(np.uint64) & ((np.uint64(1) << n) - np.uint64(1))
    if "U32" not in code.modifiers:
        sign = np.uint64(1) << np.maximum(n, np.uint64(1)) - np.uint64(1)
        value = (value ^ sign) - sign
    warp.write(target, (value & LOW).astype(np.uint32), lanes)


def mask_of_bits(warp: Warp, code: Instruction, lanes: Lanes) -> None:
    """BMSK: n set bits from bit `begin` up; W takes both modulo 32."""
    target, begin, count = code.operands
    first, n = warp.read(begin).astype(np.uint64), warp.read(count).astype(np.uint64)
    modulo = "W" in code.modifiers
    first, n = (one & np.uint64(31) if modulo else np.minimum(one, HALF) for one in (first, n))
    warp.write(target, ((((np.uint64(1) << n) - np.uint64(1)) << first) & LOW).astype(np.uint32), lanes)


def move(warp: Warp, code: Instruction, lanes: Lanes) -> None:
    source = warp.read(code.operands[1])
    if code.operands[0].kind == "UR" and code.opcode == "R2UR":
        lanes = lanes if lanes.any() else FULL
    warp.write(code.operands[0], source, lanes)


def half_constant(warp: Warp, code: Instruction, lanes: Lanes) -> None:
    """HFMA2.MMA R, -RZ, RZ, high, low: how the compiler makes a constant of two halves."""
    target, zero, other, high, low = code.operands
    if (zero.value, other.value) != (255, 255) or (high.kind, low.kind) != ("F", "F"):
        raise MachineError("only the HFMA2 that makes a constant is known")
    bits = [int(np.float16(one.real).view(np.uint16)) for one in (high, low)]
    warp.write(target, np.full(32, bits[0] << 16 | bits[1], np.uint32), lanes)


def predicates_to_register(warp: Warp, code: Instruction, lanes: Lanes) -> None:
    if code.modifiers:
        raise MachineError("only the plain P2R is known")
    mask, kept = code.operands[-1].value, warp.read(code.operands[-2])
    bits = sum((warp.files["P"][p].astype(np.uint32) << np.uint32(p) for p in range(7)), np.zeros(32, np.uint32))
    warp.write(code.operands[0], (kept & np.uint32(~mask & 0xFFFFFFFF)) | (bits & np.uint32(mask)), lanes)


def register_to_predicates(warp: Warp, code: Instruction, lanes: Lanes) -> None:
    if code.modifiers:
        raise MachineError("only the plain R2P is known")
    _, source, mask = code.operands if len(code.operands) == 3 else (None, *code.operands)
    for p in range(7):
        if mask.value >> p & 1:
            warp.write(Operand("P", p), (warp.read(source) >> np.uint32(p) & np.uint32(1)) != 0, lanes)


def to_float(warp: Warp, code: Instruction, lanes: Lanes) -> None:
    if "U32" not in code.modifiers and "U64" not in code.modifiers:
        raise MachineError("only unsigned I2F is known")
    source = code.operands[1]
    exact = [int(value) for value in (warp.read64(source) if "U64" in code.modifiers else warp.read(source))]
    floats = np.array(exact, np.float64).astype(np.float32)
    if "RP" in code.modifiers:
        below = np.array([int(value) < true for value, true in zip(floats, exact, strict=True)])
        floats = np.where(below, np.nextafter(floats, np.float32(np.inf)), floats)
    warp.write(code.operands[0], floats.astype(np.float32).view(np.uint32), lanes)


def to_integer(warp: Warp, code: Instruction, lanes: Lanes) -> None:
    values = np.trunc(np.nan_to_num(warp.read(code.operands[1]).view(np.float32).astype(np.float64), posinf=2.0**64))
    if "U64" in code.modifiers:
        words = [min(max(int(value), 0), 2**64 - 1) for value in values]
        warp.write64(code.operands[0], np.array(words, np.uint64), lanes)
    else:
        warp.write(code.operands[0], np.clip(values, 0, 2.0**32 - 1).astype(np.uint32), lanes)


def reciprocal(warp: Warp, code: Instruction, lanes: Lanes) -> None:
    if "RCP" not in code.modifiers:
        raise MachineError("only MUFU.RCP is known")
    with np.errstate(divide="ignore"):
        result = np.float32(1) / warp.read(code.operands[1]).view(np.float32)
    warp.write(code.operands[0], result.view(np.uint32), lanes)


def both(name: str, function: Callable[[Warp, Instruction, Lanes], None]) -> dict[str, Callable[..., None]]:
    """Returns an instruction and its uniform form."""
    return {name: function, "U" + name: function}


OPERATIONS: dict[str, Callable[[Warp, Instruction, Lanes], None]] = {
    **TRANSFERS,
    **CONTROL,
    **both("IADD3", add),
    "VIADD": add,
    **both("IMAD", multiply),
    **both("ISETP", compare),
    **both("LOP3", logic),
    **both("PLOP3", predicate_logic),
    **both("SEL", select),
    **both("SHF", shift),
    **both("LEA", scaled_add),
    "VIMNMX": bounded,
    "VIADDMNMX": bounded,
    **both("PRMT", permute),
    **both("POPC", of_each(int.bit_count)),
    **both("BREV", of_each(lambda bits: int(f"{bits:032b}"[::-1], 2))),
    "IABS": of_each(lambda bits: min(bits, (1 << 32) - bits)),
    **both("FLO", find_leading_one),
    **both("SGXT", extend),
    **both("BMSK", mask_of_bits),
    **both("MOV", move),
    "R2UR": move,
    "HFMA2": half_constant,
    "P2R": predicates_to_register,
    "R2P": register_to_predicates,
    "I2F": to_float,
    "F2I": to_integer,
    "MUFU": reciprocal,
}
