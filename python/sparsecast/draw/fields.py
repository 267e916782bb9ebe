# SPDX-License-Identifier: Apache-2.0
"""Reads a JSON document field by field; nothing in it is believed."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from ..errors import UsageError

#: Numbers above this are refused, because sums of them might not be finite.
_MOST = 1e30


class Fields:
    """The fields of one JSON object. ``file`` is the name of the document, and ``place`` the path of the object in it,
    for errors. Every method raises UsageError, which names the file and the field, if the field ``key`` is missing or
    is not of the kind that the method returns.
    """

    def __init__(self, value: object, file: str, place: str = "") -> None:
        if not isinstance(value, dict):
            raise UsageError(f"{place or 'the document'} is no JSON object", file)
        self._value: dict[str, Any] = value
        self._file = file
        self._place = place

    def __contains__(self, key: str) -> bool:
        return key in self._value

    def refuse(self, key: str, why: str) -> UsageError:
        """Returns an error about the field ``key``, for the caller to raise. Its message is the name of the field,
        followed by ``why``.
        """
        return UsageError(f"{self._name(key)} {why}", self._file)

    def number(self, key: str) -> float:
        """Returns the number in the field ``key``; it must be from 0 to 1e30."""
        value = self._get(key, lambda value: type(value) in (int, float) and 0 <= value <= _MOST, "number from 0 up")
        return float(value)

    def count(self, key: str, below: int = 2**53) -> int:
        """Returns the whole number in the field ``key``; it must be at least 0 and less than ``below``. (Floats, with
        which matplotlib draws, are exact up to 2^53.)
        """
        return int(self._get(key, lambda value: type(value) is int and 0 <= value < below, "whole number in its range"))

    def text(self, key: str) -> str:
        """Returns the string in the field ``key``. Characters that cannot be printed, which no picture may hold, become
        U+FFFD.
        """
        value = self._get(key, lambda value: isinstance(value, str), "text")
        return "".join(c if c.isprintable() else "\ufffd" for c in value)

    def fields(self, key: str) -> Fields:
        """Returns the fields of the object in the field ``key``."""
        return Fields(self._get(key), self._file, self._name(key))

    def rows(self, key: str) -> list[Fields]:
        """Returns the objects in the list in the field ``key``."""
        rows = self._get(key, lambda value: isinstance(value, list), "list")
        return [Fields(row, self._file, f"{self._name(key)}[{i}]") for i, row in enumerate(rows)]

    def pairs(self, key: str) -> list[tuple[int, int]]:
        """Returns the list of pairs of whole numbers in the field ``key``."""

        def are_pairs(value: Any) -> bool:
            rows = value if isinstance(value, list) else [None]
            return all(isinstance(row, list) and [type(number) for number in row] == [int, int] for row in rows)

        return [(first, second) for first, second in self._get(key, are_pairs, "list of pairs of whole numbers")]

    def _name(self, key: str) -> str:
        return f"{self._place}.{key}" if self._place else key

    def _get(self, key: str, fits: Callable[[Any], bool] = lambda value: True, kind: str = "") -> Any:
        if key not in self._value:
            raise self.refuse(key, "is missing")
        if not fits(self._value[key]):
            raise self.refuse(key, f"is no {kind}")
        return self._value[key]


def read_document(data: bytes, file: str) -> Fields:
    """Returns the fields of the JSON object in `data`. `file` is the name that errors give for it.

    Raises UsageError if `data` is not valid JSON, or if its value is not an object.
    """
    try:
        value = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise UsageError(f"the document is no JSON: {error}", file) from error
    return Fields(value, file)
