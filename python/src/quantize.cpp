// SPDX-License-Identifier: Apache-2.0

// Quantisation (sparsecast/quantize.hpp) of Python tensors.

#include "sparsecast/quantize.hpp"

#include <fmt/format.h>
#include <nanobind/stl/array.h>

#include <utility>

#include "memory.hpp"

namespace sparsecast::python {
namespace {

using RowsColumns = std::array<std::uint64_t, 2>;
using BlockExtent = std::array<std::optional<std::uint64_t>, 2>;

template <class Enum>
using Names = std::initializer_list<std::pair<const char*, Enum>>;

template <class Enum>
Enum by_name(const char* what, const std::string& name, const Names<Enum>& names) {
  std::string known;
  for (const auto& [candidate, value] : names) {
    if (name == candidate) return value;
    known += fmt::format("{}{}", known.empty() ? "" : ", ", candidate);
  }
  throw Error(ErrorCode::kUsage, fmt::format("there is no {} '{}': {}", what, name, known), "quantisation");
}

void make_format(QuantFormat* format, const std::string& element, const std::string& scale, const std::string& rounding,
                 const BlockExtent& block) {
  new (format) QuantFormat;
  format->block = {block[0].value_or(kWhole), block[1].value_or(kWhole)};
  format->element = by_name<QuantElement>(
      "element format", element,
      {{"E4M3", QuantElement::kE4M3}, {"E2M1", QuantElement::kE2M1}, {"INT4", QuantElement::kInt4}});
  format->scale = by_name<QuantScale>("scale format", scale,
                                      {{"F32", QuantScale::kF32},
                                       {"BF16", QuantScale::kBF16},
                                       {"E4M3", QuantScale::kE4M3},
                                       {"E8M0", QuantScale::kE8M0}});
  format->rounding = by_name<ScaleRounding>("rounding of scales", rounding,
                                            {{"nearest", ScaleRounding::kNearest},
                                             {"power_floor", ScaleRounding::kPowerFloor},
                                             {"power_round", ScaleRounding::kPowerRound},
                                             {"power_up", ScaleRounding::kPowerUp}});
}

[[noreturn]] void refuse(const std::string& name, const std::string& sentence) {
  throw Error(ErrorCode::kUsage, sentence, fmt::format("shard of '{}'", name));
}

MatrixShard shard_of(const Memory& source, const QuantFormat& format, const std::string& name,
                     const std::optional<RowsColumns>& shape, const RowsColumns& offset) {
  if (source.shape().size() != 2) refuse(name, fmt::format("{} dimensions of a matrix", source.shape().size()));
  const RowsColumns extent{source.shape()[0], source.shape()[1]};
  return {name, source.dtype(), shape.value_or(extent), offset, extent, source.strides(), format};
}

/// Returns the address of a tensor that a call reads, or writes with `written`, in addition to the source. Throws
/// Error{kUsage} unless it is contiguous, of this dtype and shape, and on the device of the source.
std::byte* checked(const Memory& memory, const Memory& source, const MatrixShard& shard, const char* what, DType dtype,
                   const std::vector<std::uint64_t>& shape, bool written) {
  if (memory.dtype() != dtype) {
    refuse(shard.name, fmt::format("{} is {}, not {}", what, to_string(memory.dtype()), to_string(dtype)));
  }
  if (memory.shape() != shape || !memory.contiguous()) {
    refuse(shard.name, fmt::format("{} is not a contiguous [{}]", what, fmt::join(shape, ", ")));
  }
  if (memory.device() != source.device()) {
    refuse(shard.name, fmt::format("{} is on {}, the source on {}", what, memory.device_name(), source.device_name()));
  }
  if (written && !memory.writable()) refuse(shard.name, fmt::format("{} cannot be written", what));
  return memory.data();
}

/// Returns what checked() returns for a tensor of fp32; null if `memory` is null.
float* floats(const Memory* memory, const Memory& source, const MatrixShard& shard, const char* what,
              const std::vector<std::uint64_t>& shape, bool written) {
  if (memory == nullptr) return nullptr;
  return static_cast<float*>(static_cast<void*>(checked(*memory, source, shard, what, DType::kF32, shape, written)));
}

std::vector<std::uint64_t> grid_shape(const MatrixShard& shard) {
  const RowsColumns grid = block_grid(shard).extent;
  return {grid[0], grid[1]};
}

DType dtype_of(QuantScale scale) {
  switch (scale) {
    case QuantScale::kF32:
      return DType::kF32;
    case QuantScale::kBF16:
      return DType::kBF16;
    case QuantScale::kE4M3:
      return DType::kF8E4M3;
    default:
      return DType::kU8;
  }
}

/// Returns the address of the tensor of elements, checked as by checked(): F8_E4M3, or 4-bit elements in U8 or I32.
std::byte* checked_elements(const Memory& elements, const Memory& source, const MatrixShard& shard) {
  const bool fp8 = shard.format.element == QuantElement::kE4M3;
  const bool words = !fp8 && elements.dtype() == DType::kI32;
  const DType dtype = fp8 ? DType::kF8E4M3 : words ? DType::kI32 : DType::kU8;
  const std::uint64_t in_one = fp8 ? 1 : words ? 8 : 2;
  return checked(elements, source, shard, "elements", dtype, {shard.extent[0], shard.extent[1] / in_one}, true);
}

CUstream_st* stream_of(std::uintptr_t stream) { return reinterpret_cast<CUstream_st*>(stream); }

nb::tuple grid_of(const Memory& source, const QuantFormat& format, const std::string& name,
                  const std::optional<RowsColumns>& shape, const RowsColumns& offset) {
  const BlockGrid grid = block_grid(shard_of(source, format, name, shape, offset));
  return nb::make_tuple(nb::make_tuple(grid.offset[0], grid.offset[1]), nb::make_tuple(grid.extent[0], grid.extent[1]),
                        grid.whole);
}

void amax_of(const Memory& source, const Memory& amax, const QuantFormat& format, const std::string& name,
             const std::optional<RowsColumns>& shape, const RowsColumns& offset, int threads, std::uintptr_t stream) {
  const MatrixShard shard = shard_of(source, format, name, shape, offset);
  float* out = floats(&amax, source, shard, "amax", grid_shape(shard), true);
  if (source.on_device()) {
    device_block_amax(shard, source.data(), out, stream_of(stream));
  } else {
    block_amax(shard, source.data(), out, threads);
  }
}

void quantize_shard(const Memory& source, const Memory& elements, const Memory& scales, const QuantFormat& format,
                    const Memory* global_scale, const Memory* amax, const Memory* tensor_amax, const std::string& name,
                    const std::optional<RowsColumns>& shape, const RowsColumns& offset, int threads,
                    std::uintptr_t stream) {
  const MatrixShard shard = shard_of(source, format, name, shape, offset);
  const std::vector<std::uint64_t> grid = grid_shape(shard);
  const QuantizedShard out{checked_elements(elements, source, shard),
                           checked(scales, source, shard, "scales", dtype_of(format.scale), grid, true),
                           floats(global_scale, source, shard, "global_scale", {1}, tensor_amax != nullptr)};
  const GivenAmax given{floats(amax, source, shard, "amax", grid, false),
                        floats(tensor_amax, source, shard, "tensor_amax", {1}, false)};
  if (source.on_device()) {
    device_quantize(shard, source.data(), out, given, stream_of(stream));
  } else {
    quantize(shard, source.data(), out, given, threads);
  }
}

}  // namespace

void bind_quantize(nb::module_& m) {
  using namespace nb::literals;  // NOLINT: the library's own way to name arguments.
  nb::class_<QuantFormat>(
      m, "QuantFormat",
      "What a matrix is quantised to (sparsecast/quantize.hpp). Elements: E4M3, E2M1, INT4; scales: "
      "F32, BF16, E4M3 (with a global scale), E8M0; rounding of scales: nearest, power_floor, "
      "power_round, power_up; `block` is rows and columns, None for the whole matrix.")
      .def("__init__", make_format, "element"_a = "E4M3", "scale"_a = "F32", "rounding"_a = "nearest",
           "block"_a = BlockExtent{128, 128});
  m.def("block_grid", grid_of, "source"_a, "format"_a, nb::kw_only(), "name"_a = "", "shape"_a = nb::none(),
        "offset"_a = RowsColumns{0, 0},
        nb::sig("def block_grid(source: Memory, format: QuantFormat, *, name: str = '', "
                "shape: Sequence[int] | None = None, offset: Sequence[int] = (0, 0)) "
                "-> tuple[tuple[int, int], tuple[int, int], bool]"),
        "Returns the blocks that a shard of a matrix touches: (first block, blocks, whether all are whole), as "
        "pairs of rows and columns. `source` is the shard, bf16, fp16 or fp32; `shape` is that of the whole matrix "
        "(None: that of the shard), and `offset` where the shard begins in it.");
  m.def("block_amax", amax_of, "source"_a, "amax"_a, "format"_a, nb::kw_only(), "name"_a = "", "shape"_a = nb::none(),
        "offset"_a = RowsColumns{0, 0}, "threads"_a = 1, "stream"_a = 0, ReleaseGil(),
        "Writes the greatest finite magnitude that this shard has of each block to `amax`, F32 of the extent that "
        "block_grid gives; infinity where a block of 4-bit elements has one that is not finite. On a device: on its "
        "CUDA stream `stream`, current device, without waiting.");
  m.def("quantize", quantize_shard, "source"_a, "elements"_a, "scales"_a, "format"_a, "global_scale"_a = nb::none(),
        "amax"_a = nb::none(), "tensor_amax"_a = nb::none(), nb::kw_only(), "name"_a = "", "shape"_a = nb::none(),
        "offset"_a = RowsColumns{0, 0}, "threads"_a = 1, "stream"_a = 0, ReleaseGil(),
        "Writes the shard's elements (F8_E4M3; 4-bit ones packed into U8 or I32) and its blocks' scales (F32, BF16, "
        "F8_E4M3; U8 for E8M0). Without `amax` every block must be whole (UsageError names the shard and the edge); "
        "with it, the maximum over the ranks that share blocks. E4M3 scales need `global_scale`, F32 [1], which is "
        "read, or computed anew of `tensor_amax`, F32 [1]. All contiguous, on the source's device. See "
        "sparsecast/quantize.hpp.");
}

}  // namespace sparsecast::python
