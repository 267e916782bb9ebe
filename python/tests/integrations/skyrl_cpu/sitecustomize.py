# SPDX-License-Identifier: Apache-2.0
"""On the path of every process of SkyRL: on Python 3.11 pydantic refuses models with `typing.TypedDict`."""

import typing

import typing_extensions

typing.TypedDict = typing_extensions.TypedDict  # type: ignore[assignment]
