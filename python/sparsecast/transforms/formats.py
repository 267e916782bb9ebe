# SPDX-License-Identifier: Apache-2.0
"""Quantised formats of checkpoints: what their tensors hold, and what they are called."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

from .. import _core
from ..buffers import WORD_BYTES

#: By element type: elements in one number of the packed tensor, the packed tensor's dtype, and its extents after the
#: columns (INT4 has words of 4 bytes).
_PACKED: dict[str, tuple[int, str, tuple[int, ...]]] = {
    "E4M3": (1, "F8_E4M3", ()),
    "E2M1": (2, "F4X2", ()),
    "INT4": (8, "I4X2", (WORD_BYTES,)),
}
_SCALES = {"F32": "F32", "BF16": "BF16", "E4M3": "F8_E4M3", "E8M0": "U8"}


@dataclass(frozen=True)
class QuantFormat:
    """A format of ``sparsecast/quantize.hpp``, and the suffixes with which a checkpoint names the parts of a quantised
    weight.

    ``element`` is the type of the elements: E4M3, E2M1 or INT4. ``scale`` is the type of the scales: F32, BF16, E4M3
    (with a global scale) or E8M0. ``rounding`` of scales is nearest, power_floor, power_round or power_up. ``block``
    has the numbers of rows and of columns that share a scale; None stands for all rows, or all columns, of the matrix.
    ``elements_suffix`` and ``scales_suffix`` are appended to the weight's name for its elements and scales, and
    ``global_suffix`` for the global scale of E4M3 scales; with ``inverse_global``, the inverse of the global scale is
    stored. ``number_shape`` is the shape of a tensor with one number for the whole matrix (its only scale, or its
    global scale): (1,) or ().
    """

    element: str
    scale: str
    rounding: str = "nearest"
    block: tuple[int | None, int | None] = (128, 128)
    elements_suffix: str = ""
    scales_suffix: str = "_scale"
    global_suffix: str = "_global_scale"
    inverse_global: bool = False
    number_shape: tuple[int, ...] = (1,)

    @cached_property
    def core(self) -> _core.QuantFormat:
        """The format as ``_core.quantize`` takes it. If each matrix has one scale, its blocks are single rows, for
        which the caller gives the amax of the matrix.
        """
        # Rows that are given one amax have one scale, and are quantised in parallel.
        return _core.QuantFormat(self.element, self.scale, self.rounding, (1, None) if self.one_scale else self.block)

    @property
    def one_scale(self) -> bool:
        """Whether each matrix has one scale: the block is the whole matrix."""
        return self.block == (None, None)

    @property
    def in_one(self) -> int:
        """Number of elements, neighbours along the columns, that one number of the tensor of elements holds."""
        return _PACKED[self.element][0]

    @property
    def element_dtype(self) -> str:
        """Dtype of the tensor of elements, as the trainer sends it."""
        return _PACKED[self.element][1]

    @property
    def word(self) -> tuple[int, ...]:
        """Extents of the tensor of elements after rows and columns: (4,), the bytes of a word, for INT4; else ()."""
        return _PACKED[self.element][2]

    @property
    def scale_dtype(self) -> str:
        return _SCALES[self.scale]

    @property
    def has_global_scale(self) -> bool:
        return self.scale == "E4M3"

    @property
    def has_shape(self) -> bool:
        """Whether the format stores the shape of the weight in a tensor of its own, because the I32 words of INT4 do
        not show it.
        """
        return self.element == "INT4"

    def block_of(self, rows: int, columns: int) -> tuple[int, int]:
        """Returns the size (rows, columns) of a block in a matrix of ``rows`` rows and ``columns`` columns."""
        return self.block[0] or max(rows, 1), self.block[1] or max(columns, 1)


def fp8_blocks(block: tuple[int, int] = (128, 128), *, scale: str = "F32", rounding: str = "nearest") -> QuantFormat:
    """Returns the format of DeepSeek's checkpoints: ``weight`` and ``weight_scale_inv``, a scale for each block.
    ``rounding="power_up"`` makes UE8M0 scales, which are stored as numbers if ``scale`` is F32, and as bytes if it is
    E8M0.
    """
    return QuantFormat("E4M3", scale, rounding, block, scales_suffix="_scale_inv")


def int4_groups(columns: int = 128) -> QuantFormat:
    """Returns the format ``pack-quantized``, symmetric, of compressed-tensors: ``weight_packed``, ``weight_scale`` (a
    scale for each ``columns`` columns of a row), ``weight_shape``.
    """
    return QuantFormat("INT4", "BF16", "nearest", (1, columns), elements_suffix="_packed")


#: fp8 with a scale for each row: ``weight``, ``weight_scale`` [rows, 1].
FP8_CHANNELS = QuantFormat("E4M3", "F32", "nearest", (1, None))
#: OCP MX, scales rounded as its standard says: ``weight``, ``weight_scale`` [rows, columns / 32] in U8.
MXFP8 = QuantFormat("E4M3", "E8M0", "power_floor", (1, 32))
#: OCP MX in 4 bits: ``weight_packed`` [rows, columns / 2], ``weight_scale``.
MXFP4 = QuantFormat("E2M1", "E8M0", "power_floor", (1, 32), elements_suffix="_packed")
#: NVFP4: ``weight_packed``, ``weight_scale`` [rows, columns / 16] in F8_E4M3, ``weight_global_scale`` [1].
NVFP4 = QuantFormat("E2M1", "E4M3", "nearest", (1, 16), elements_suffix="_packed")
#: fp8 with one scale for the matrix: ``weight``, ``weight_scale`` [1].
FP8_TENSOR = QuantFormat("E4M3", "F32", "nearest", (None, None))
#: FP8_TENSOR with ModelOpt's names and shapes: ``weight``, ``weight_scale`` [].
MODELOPT_FP8 = replace(FP8_TENSOR, number_shape=())
#: ModelOpt's NVFP4: ``weight`` [rows, columns / 2], ``weight_scale`` [rows, columns / 16] in F8_E4M3, ``weight_scale_2``
#: [], the inverse of the global scale. ``input_scale`` is of the activations, and belongs to the engine.
MODELOPT_NVFP4 = replace(NVFP4, elements_suffix="", global_suffix="_scale_2", inverse_global=True, number_shape=())
