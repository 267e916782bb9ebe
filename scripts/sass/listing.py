# SPDX-License-Identifier: Apache-2.0
"""Reads the listing that cuobjdump -sass prints into instructions with operands."""

from __future__ import annotations

import dataclasses
import re

FUNCTION = re.compile(r"^\s*Function\s*:\s*(\S+)")
LINE = re.compile(r"^\s*/\*([0-9a-f]{4,})\*/\s+(.*?)\s*;")
GUARD = re.compile(r"@(!?)(U?P)(T|\d+)\s+(.*)")
REGISTER = re.compile(r"([-~|]*)(U?R)(Z|\d+)((?:\.\w+)*)\|?")
PREDICATE = re.compile(r"(!?)(U?P)(T|\d+)")
CONSTANT = re.compile(r"([-~]?)c\[0x0\]\[(?:(U?R)(\d+)\+?)?(-?0x[0-9a-f]+)?\](?:\.\w+)?")
MEMORY = re.compile(r"(?:desc\[UR\d+\])?\[(.*)\]")
TERM = re.compile(r"(U?R)(Z|\d+)(?:\.(64|U32|X4|X8|X16))?")

ZERO = {"R": 255, "UR": 63, "P": 7, "UP": 7}  # Registers that always read as zero, or as true.


@dataclasses.dataclass(frozen=True)
class Operand:
    """One operand. `kind` is R, UR, P, UP (registers, by `value`), I (integer), F (float), C (constant bank 0 at byte
    `value`, with register `base` if that is not None), M (memory: base + uniform + value), or X (anything else)."""

    kind: str
    value: int = 0
    text: str = ""
    negated: bool = False
    inverted: bool = False
    base: int | None = None
    base_kind: str = "R"
    wide: bool = False
    scale: int = 1
    uniform: int | None = None
    real: float = 0.0


@dataclasses.dataclass(frozen=True)
class Instruction:
    """One instruction: its opcode without modifiers, the modifiers, the operands, and the guard or None."""

    address: int
    text: str
    opcode: str
    modifiers: tuple[str, ...]
    operands: tuple[Operand, ...]
    guard: Operand | None


def number_of(kind: str, text: str) -> int:
    return ZERO[kind] if text in ("Z", "T") else int(text)


def memory_operand(text: str) -> Operand:
    base = uniform = None
    wide, scale, offset = False, 1, 0
    for term in re.sub(r"\+-", "-", text).replace("-", "+-").split("+"):
        if not term:
            continue
        match = TERM.fullmatch(term)
        if not match:
            offset += int(term, 16)
        elif match[1] == "UR":
            uniform = number_of("UR", match[2])
        else:
            base = number_of("R", match[2])
            wide = match[3] == "64"
            scale = int(match[3][1:]) if match[3] and match[3].startswith("X") else 1
    return Operand("M", offset, text, base=base, wide=wide, scale=scale, uniform=uniform)


def operand(text: str) -> Operand:
    """Returns the operand that `text` is."""
    text = text.strip().replace(".reuse", "")
    if match := REGISTER.fullmatch(text):
        signs = match[1]
        return Operand(match[2], number_of(match[2], match[3]), text, "-" in signs, "~" in signs)
    if match := PREDICATE.fullmatch(text):
        return Operand(match[2], number_of(match[2], match[3]), text, inverted=match[1] == "!")
    if re.fullmatch(r"-?0x[0-9a-f]+", text):
        return Operand("I", int(text, 16) & 0xFFFFFFFFFFFFFFFF, text)
    if re.fullmatch(r"[-+]?(\d+(\.\d+)?(e[-+]?\d+)?|INF|QNAN)", text):
        return Operand("F", text=text, real=float(text.replace("QNAN", "nan")))
    if match := CONSTANT.fullmatch(text):
        base = int(match[3]) if match[3] else None
        kind = match[2] or "R"
        return Operand("C", int(match[4] or "0", 16), text, match[1] == "-", match[1] == "~", base, kind)
    if match := MEMORY.fullmatch(text):
        return memory_operand(match[1])
    return Operand("X", text=text)


def instruction(address: int, text: str) -> Instruction:
    """Returns the instruction at `address` in bytes."""
    guard, rest = None, text
    if match := GUARD.match(text):
        guard = Operand(match[2], number_of(match[2], match[3]), inverted=match[1] == "!")
        rest = match[4]
    name, _, tail = rest.partition(" ")
    opcode, *modifiers = name.split(".")
    parts = re.split(r",(?![^\[]*\])", tail) if tail.strip() else []
    return Instruction(address, text, opcode, tuple(modifiers), tuple(map(operand, parts)), guard)


def parse(text: str) -> dict[str, list[Instruction]]:
    """Returns {mangled name: instructions} of the functions of a listing, in the order of their addresses."""
    functions: dict[str, list[Instruction]] = {}
    current: list[Instruction] | None = None
    for line in text.splitlines():
        if match := FUNCTION.match(line):
            current = functions.setdefault(match[1], [])
        elif current is not None and (match := LINE.match(line)):
            current.append(instruction(int(match[1], 16), match[2]))
    return functions
