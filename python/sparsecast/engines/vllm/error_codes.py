# SPDX-License-Identifier: Apache-2.0
"""Adds error codes to messages, for readers of the HTTP answers of an engine: a server passes on only the text."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import ParamSpec, TypeVar

from sparsecast.errors import Error

_Parameters = ParamSpec("_Parameters")
_Result = TypeVar("_Result")


def with_code(function: Callable[_Parameters, _Result]) -> Callable[_Parameters, _Result]:
    """Decorator that appends the error code to the message of every sparsecast Error that ``function`` raises, such as
    "... [wrong_base]".
    """

    @functools.wraps(function)
    def wrapped(*args: _Parameters.args, **kwargs: _Parameters.kwargs) -> _Result:
        try:
            return function(*args, **kwargs)
        except Error as error:
            suffix = f" [{error.code}]"
            if error.message.endswith(suffix):
                raise
            raise type(error)(error.message + suffix, error.context, error.code) from error

    return wrapped
