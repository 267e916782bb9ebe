# SPDX-License-Identifier: Apache-2.0
"""Memory of arrays: what is read from them, and what is refused."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import sparsecast as sc
from sparsecast import errors

TORCH = [
    (torch.bfloat16, "BF16"),
    (torch.float16, "F16"),
    (torch.float32, "F32"),
    (torch.float64, "F64"),
    (torch.float8_e4m3fn, "F8_E4M3"),
    (torch.float8_e5m2, "F8_E5M2"),
    (torch.float8_e8m0fnu, "F8_E8M0"),
    (torch.int8, "I8"),
    (torch.uint8, "U8"),
    (torch.int16, "I16"),
    (torch.int32, "I32"),
    (torch.int64, "I64"),
    (torch.bool, "BOOL"),
    (torch.uint16, "U16"),
    (torch.uint32, "U32"),
    (torch.uint64, "U64"),
    (torch.complex64, "C64"),
    (torch.float8_e4m3fnuz, "F8_E4M3FNUZ"),
    (torch.float8_e5m2fnuz, "F8_E5M2FNUZ"),
]


@pytest.mark.parametrize(("dtype", "name"), TORCH)
def test_a_torch_tensor_of_every_dtype_is_described_without_a_copy(dtype: torch.dtype, name: str) -> None:
    tensor = torch.zeros(3, 5).to(dtype)
    memory = sc.describe(tensor)
    assert (memory.dtype, memory.shape, memory.strides) == (name, (3, 5), (5, 1))
    assert memory.data_ptr == tensor.data_ptr()
    assert memory.device == "cpu" and memory.contiguous and memory.writable
    assert memory.nbytes == tensor.numel() * tensor.element_size()


def test_pairs_of_4_bit_numbers_are_described_as_bytes() -> None:
    fp4 = torch.zeros(3, 4, dtype=torch.uint8).view(torch.float4_e2m1fn_x2)
    memory = sc.describe(fp4)
    assert (memory.dtype, memory.shape, memory.nbytes) == ("F4X2", (3, 4), 12)
    assert memory.data_ptr == fp4.data_ptr()
    assert sc.describe(torch.zeros(3, dtype=torch.uint8), dtype="I4X2").dtype == "I4X2"
    assert sc.describe(torch.zeros(2, 3, dtype=torch.int32).view(torch.uint8), dtype="I4X2").shape == (2, 12)
    with pytest.raises(errors.UsageError, match="elements of 32 bits cannot be I4X2"):
        sc.describe(torch.zeros(3, dtype=torch.int32), dtype="I4X2")


def test_fp6_is_described_as_bytes() -> None:
    assert sc.describe(torch.zeros(3, 6, dtype=torch.uint8), dtype="F6_E2M3").shape == (3, 6)
    with pytest.raises(errors.UsageError, match="elements of 16 bits cannot be F6_E3M2"):
        sc.describe(torch.zeros(3, dtype=torch.int16), dtype="F6_E3M2")


def test_memory_of_conjugates_is_refused() -> None:
    tensor = torch.tensor([1 + 2j], dtype=torch.complex64)
    with pytest.raises(errors.UsageError, match="resolve_conj"):
        sc.describe(tensor.conj())
    assert sc.describe(tensor.conj().resolve_conj()).dtype == "C64"


def test_views_parameters_scalars_and_empty_tensors_are_described_as_they_lie() -> None:
    base = torch.zeros(4, 6, dtype=torch.bfloat16)
    view = sc.describe(base.t()[1:3])
    assert view.shape == (2, 4) and view.strides == (1, 6) and not view.contiguous
    assert view.data_ptr == base.data_ptr() + 2
    parameter = torch.nn.Parameter(torch.ones(3))
    assert sc.describe(parameter).data_ptr == parameter.data_ptr()
    assert sc.describe(torch.tensor(1.0)).shape == ()
    assert sc.describe(torch.zeros(0, 3)).elements == 0


def test_the_memory_outlives_the_array_that_gave_it() -> None:
    memory = sc.describe(np.arange(6, dtype=np.int32))
    table = sc.TensorTable([("a", "I32", (6,))])
    again = sc.describe(np.arange(6, dtype=np.int32))
    assert sc.digest(table, [memory]) == sc.digest(table, [again])


def test_numpy_arrays_are_described_and_read_only_ones_are_never_written() -> None:
    array = np.zeros((2, 3), dtype=np.float32)
    assert sc.describe(array).data_ptr == array.ctypes.data
    array.flags.writeable = False
    memory = sc.describe(array)
    assert not memory.writable
    table = sc.TensorTable([("w", "F32", (2, 3))])
    sc.Publisher(table, [memory])
    with pytest.raises(errors.UsageError, match="tensor 'w': its memory is read-only"):
        sc.Subscriber(table, [memory])


def test_a_dtype_by_name_must_have_the_size_of_the_elements() -> None:
    assert sc.describe(np.zeros(4, dtype=np.uint16), dtype="BF16").dtype == "BF16"
    with pytest.raises(errors.UsageError, match="elements of 32 bits cannot be BF16"):
        sc.describe(np.zeros(4, dtype=np.float32), dtype="BF16")
    with pytest.raises(errors.UnsupportedError, match="there is no dtype 'FP8'"):
        sc.describe(np.zeros(4, dtype=np.uint8), dtype="FP8")


@pytest.mark.parametrize(
    ("thing", "words"),
    [
        (object(), "neither DLPack nor the buffer protocol"),
        (torch.zeros(3, dtype=torch.complex128), "complex128 are not carried"),
        (torch.zeros(3, device="meta"), "no memory that can be read"),
        (torch.eye(3).to_sparse(), "no plain memory"),
        (np.zeros(3, dtype=">f4"), "byte order"),
    ],
)
def test_what_has_no_such_memory_is_refused_in_words(thing: object, words: str) -> None:
    with pytest.raises(errors.UsageError, match=words):
        sc.describe(thing)
