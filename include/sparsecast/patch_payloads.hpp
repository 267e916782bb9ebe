// SPDX-License-Identifier: Apache-2.0
#pragma once

// Payloads for receivers of other systems, made in memory from tensor patches (tensor_patch.hpp), so that a publisher
// of deltas can feed an unmodified SGLang (through slime's, miles' or verl's loader) or vLLM. Layouts: docs/interop.md.

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "sparsecast/export.hpp"
#include "sparsecast/tensor_patch.hpp"

namespace sparsecast {

/// Encoding of positions in a packed flush.
enum class PackedEncoding {
  kIndices,  ///< "indices": int32 element indices.
  kDeltas,   ///< "deltas": gaps idx[k] - idx[k-1] - 1, idx[-1] = -1; uint16, or uint32 for a whole parameter.
};

/// Part of a flush that belongs to one parameter: a range of bytes in `positions`, and of elements in `values`.
struct PackedParam {
  std::size_t tensor = 0;
  std::uint64_t positions_begin = 0;
  std::uint64_t positions_end = 0;
  std::uint32_t width = 4;  ///< Bytes of a position.
  std::uint64_t values_begin = 0;
  std::uint64_t values_end = 0;
};

/// One payload of slime's packed form (2026-05 to 2026-07; also miles, and SGLang's loader of that time) and of verl:
/// the bytes of `__positions__`, the bytes of `__values__`, which have one dtype, and the manifest.
struct SPARSECAST_API PackedFlush {
  PackedEncoding encoding = PackedEncoding::kIndices;
  DType dtype = DType::kBF16;
  Bytes positions;
  Bytes values;
  std::vector<PackedParam> params;

  /// Returns the list of DeltaParam objects as JSON.
  std::string params_json(const TensorTable& table) const;
  /// Returns `hash(positions) ^ (hash(values) << 1)`, where hash is torch.hash_tensor, in decimal (up to 65 bits).
  /// Throws Error{kUnsupported} for the 8-bit floating dtypes, for which PyTorch has no such hash.
  std::string checksum() const;
  /// Returns verl's `__delta_spec__`: encoding, params and checksum. Throws Error{kUnsupported} unless the encoding is
  /// kIndices.
  std::string verl_spec(const TensorTable& table) const;
};

/// Collects patches into flushes. A flush has one dtype and at most `flush_bytes` of positions and values, unless a
/// single patch is larger. At most one open flush a dtype is kept in memory.
class SPARSECAST_API PackedFlusher {
 public:
  using Sink = std::function<void(PackedFlush&&)>;
  /// `table` outlives the flusher.
  PackedFlusher(const TensorTable& table, PackedEncoding encoding, std::uint64_t flush_bytes, Sink sink);

  /// Throws Error{kUnsupported} for a tensor of numbers of 4 or 6 bits (is_pair, is_fp6), which the format cannot name.
  void add(const TensorPatch& patch);
  /// Passes all open flushes to the sink. add() must not be called afterwards.
  void finish();

 private:
  PackedFlush& open_flush(DType dtype, std::uint64_t more_bytes);

  const TensorTable& table_;
  PackedEncoding encoding_;
  std::uint64_t flush_bytes_;
  Sink sink_;
  std::vector<PackedFlush> open_;
};

/// Builds the update info of vLLM's `sparse_nccl` engine. For each patch, in the same order, the sender broadcasts the
/// indices, then the values.
class SPARSECAST_API VllmUpdate {
 public:
  /// `table` outlives the object.
  explicit VllmUpdate(const TensorTable& table) : table_(table) {}
  /// Adds a patch. Throws Error{kUnsupported} for patches that the receiver would reject midway: a tensor that is not
  /// floating, or a NaN.
  void add(const TensorPatch& patch);
  bool empty() const noexcept { return tensors_.empty(); }  ///< Returns true when there is nothing to send.
  /// Returns {"names": [...], "dtype_names": [...], "shapes": [[...]], "num_updates_list": [...]}.
  std::string json() const;

 private:
  const TensorTable& table_;
  std::vector<std::size_t> tensors_;
  std::vector<std::uint64_t> counts_;
};

}  // namespace sparsecast
