// SPDX-License-Identifier: Apache-2.0

// fp8 block quantisation (sparsecast/quantize.hpp) of Python tensors.

#include "sparsecast/quantize.hpp"

#include <fmt/format.h>
#include <nanobind/stl/array.h>

#include "memory.hpp"

namespace sparsecast::python {
namespace {

using RowsColumns = std::array<std::uint64_t, 2>;

[[noreturn]] void refuse(const std::string& name, const std::string& sentence) {
  throw Error(ErrorCode::kUsage, sentence, fmt::format("shard of '{}'", name));
}

MatrixShard shard_of(const Memory& source, const std::string& name, const std::optional<RowsColumns>& shape,
                     const RowsColumns& offset, const RowsColumns& block) {
  if (source.shape().size() != 2) refuse(name, fmt::format("{} dimensions of a matrix", source.shape().size()));
  const RowsColumns extent{source.shape()[0], source.shape()[1]};
  return {name, source.dtype(), shape.value_or(extent), offset, extent, source.strides(), block};
}

/// Returns the data of a tensor that a call reads or writes beside the source. Throws unless it is contiguous, of this
/// dtype and shape, and on the device of the source.
std::byte* result(const Memory& memory, const Memory& source, const MatrixShard& shard, const char* what, DType dtype,
                  const RowsColumns& extent, bool written) {
  if (memory.dtype() != dtype) {
    refuse(shard.name, fmt::format("{} is {}, not {}", what, to_string(memory.dtype()), to_string(dtype)));
  }
  if (memory.shape() != std::vector<std::uint64_t>{extent[0], extent[1]} || !memory.contiguous()) {
    refuse(shard.name, fmt::format("{} is not a contiguous [{}, {}]", what, extent[0], extent[1]));
  }
  if (memory.device() != source.device()) {
    refuse(shard.name, fmt::format("{} is on {}, the source on {}", what, memory.device_name(), source.device_name()));
  }
  if (written && !memory.writable()) refuse(shard.name, fmt::format("{} cannot be written", what));
  return memory.data();
}

float* floats(std::byte* data) { return static_cast<float*>(static_cast<void*>(data)); }
CUstream_st* stream_of(std::uintptr_t stream) { return reinterpret_cast<CUstream_st*>(stream); }

nb::tuple grid_of(const Memory& source, const std::string& name, const std::optional<RowsColumns>& shape,
                  const RowsColumns& offset, const RowsColumns& block) {
  const BlockGrid grid = block_grid(shard_of(source, name, shape, offset, block));
  return nb::make_tuple(nb::make_tuple(grid.offset[0], grid.offset[1]), nb::make_tuple(grid.extent[0], grid.extent[1]),
                        grid.whole);
}

void amax_of(const Memory& source, const Memory& amax, const std::string& name, const std::optional<RowsColumns>& shape,
             const RowsColumns& offset, const RowsColumns& block, int threads, std::uintptr_t stream) {
  const MatrixShard shard = shard_of(source, name, shape, offset, block);
  float* out = floats(result(amax, source, shard, "amax", DType::kF32, block_grid(shard).extent, true));
  if (source.on_device()) {
    device_block_amax(shard, source.data(), out, stream_of(stream));
  } else {
    block_amax(shard, source.data(), out, threads);
  }
}

void quantize(const Memory& source, const Memory& fp8, const Memory& scale_inv, const Memory* amax,
              const std::string& name, const std::optional<RowsColumns>& shape, const RowsColumns& offset,
              const RowsColumns& block, int threads, std::uintptr_t stream) {
  const MatrixShard shard = shard_of(source, name, shape, offset, block);
  const RowsColumns grid = block_grid(shard).extent;
  std::byte* weight = result(fp8, source, shard, "fp8", DType::kF8E4M3, shard.extent, true);
  float* scales = floats(result(scale_inv, source, shard, "scale_inv", DType::kF32, grid, true));
  float* given = amax == nullptr ? nullptr : floats(result(*amax, source, shard, "amax", DType::kF32, grid, false));
  if (source.on_device() && given != nullptr) {
    device_quantize_with_amax(shard, source.data(), given, weight, scales, stream_of(stream));
  } else if (source.on_device()) {
    device_quantize_blocks(shard, source.data(), weight, scales, stream_of(stream));
  } else if (given != nullptr) {
    quantize_with_amax(shard, source.data(), given, weight, scales, threads);
  } else {
    quantize_blocks(shard, source.data(), weight, scales, threads);
  }
}

}  // namespace

void bind_quantize(nb::module_& m) {
  using namespace nb::literals;  // NOLINT: the library's own way to name arguments.
  m.def("block_grid", grid_of, "source"_a, nb::kw_only(), "name"_a = "", "shape"_a = nb::none(),
        "offset"_a = RowsColumns{0, 0}, "block"_a = RowsColumns{128, 128},
        nb::sig("def block_grid(source: Memory, *, name: str = '', shape: Sequence[int] | None = None, "
                "offset: Sequence[int] = (0, 0), block: Sequence[int] = (128, 128)) "
                "-> tuple[tuple[int, int], tuple[int, int], bool]"),
        "Returns the blocks that a shard of a matrix touches: (first block, blocks, whether all are whole), as "
        "pairs of rows and columns. `source` is the shard, bf16, fp16 or fp32; `shape` is that of the whole matrix "
        "(None: that of the shard), and `offset` where the shard begins in it.");
  m.def("block_amax", amax_of, "source"_a, "amax"_a, nb::kw_only(), "name"_a = "", "shape"_a = nb::none(),
        "offset"_a = RowsColumns{0, 0}, "block"_a = RowsColumns{128, 128}, "threads"_a = 1, "stream"_a = 0,
        ReleaseGil(),
        "Writes the greatest finite magnitude that this shard has of each block to `amax`, F32 of the extent that "
        "block_grid gives. On a device: on its CUDA stream `stream`, current device, without waiting.");
  m.def("quantize_blocks", quantize, "source"_a, "fp8"_a, "scale_inv"_a, "amax"_a = nb::none(), nb::kw_only(),
        "name"_a = "", "shape"_a = nb::none(), "offset"_a = RowsColumns{0, 0}, "block"_a = RowsColumns{128, 128},
        "threads"_a = 1, "stream"_a = 0, ReleaseGil(),
        "Writes the shard's F8_E4M3 elements and its blocks' F32 weight_scale_inv (amax / 448). Without `amax` every "
        "block must be whole (UsageError names the shard and the edge); with it, the maximum over the ranks that share "
        "blocks. All contiguous, on the source's device. See sparsecast/quantize.hpp.");
}

}  // namespace sparsecast::python
