// SPDX-License-Identifier: Apache-2.0
#include "sparsecast/interop.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <nlohmann/json.hpp>

#include "core/nan_pattern.hpp"
#include "core/word.hpp"
#include "interop/formats/tensor_checksum.hpp"
#include "sparsecast/error.hpp"

namespace sparsecast {
namespace {

std::uint32_t largest_gap(const TensorPatch& patch) {
  std::uint32_t largest = 0;
  std::uint32_t next = 0;  // The index that a gap of 0 means.
  for (std::uint64_t i = 0; i < patch.count; ++i) {
    const auto index = load_word<std::uint32_t>(patch.indices.data(), i);
    largest = std::max(largest, index - next);
    next = index + 1;
  }
  return largest;
}

template <class Gap>
void append_gaps(const TensorPatch& patch, Bytes& out) {
  const std::size_t begin = out.size();
  out.resize(begin + patch.count * sizeof(Gap));
  std::uint32_t next = 0;
  for (std::uint64_t i = 0; i < patch.count; ++i) {
    const auto index = load_word<std::uint32_t>(patch.indices.data(), i);
    store_word(out.data() + begin, i, static_cast<Gap>(index - next));
    next = index + 1;
  }
}

}  // namespace

std::string PackedFlush::params_json(const TensorTable& table) const {
  nlohmann::ordered_json list = nlohmann::ordered_json::array();
  for (const PackedParam& param : params) {
    const TensorSpec& spec = table[param.tensor];
    list.push_back({{"name", spec.name},
                    {"dtype", torch_name(spec.dtype)},
                    {"shape", spec.shape},
                    {"pos_start", param.positions_begin},
                    {"pos_end", param.positions_end},
                    {"pos_width", param.width},
                    {"val_start", param.values_begin},
                    {"val_end", param.values_end}});
  }
  return list.dump();
}

std::string PackedFlush::checksum() const { return packed_checksum(positions, dtype, values); }

std::string PackedFlush::verl_spec(const TensorTable& table) const {
  if (encoding != PackedEncoding::kIndices) {
    throw Error(ErrorCode::kUnsupported, "verl's loader knows only flushes of the encoding 'indices'");
  }
  // Formatted by hand, because the checksum may have more bits than JSON libraries support.
  return fmt::format(R"({{"encoding": "indices", "params": {}, "checksum": {}}})", params_json(table), checksum());
}

PackedFlusher::PackedFlusher(const TensorTable& table, PackedEncoding encoding, std::uint64_t flush_bytes, Sink sink)
    : table_(table), encoding_(encoding), flush_bytes_(flush_bytes), sink_(std::move(sink)) {}

PackedFlush& PackedFlusher::open_flush(DType dtype, std::uint64_t more_bytes) {
  const auto found =
      std::find_if(open_.begin(), open_.end(), [&](const PackedFlush& flush) { return flush.dtype == dtype; });
  if (found == open_.end()) {
    open_.push_back({encoding_, dtype, {}, {}, {}});
    return open_.back();
  }
  if (!found->params.empty() && found->positions.size() + found->values.size() + more_bytes > flush_bytes_) {
    sink_(std::move(*found));
    *found = {encoding_, dtype, {}, {}, {}};
  }
  return *found;
}

void PackedFlusher::add(const TensorPatch& patch) {
  if (patch.count == 0) return;
  const TensorSpec& spec = table_[patch.tensor];
  if (is_pair(spec.dtype) || is_fp6(spec.dtype)) {
    throw Error(ErrorCode::kUnsupported,
                fmt::format("packed patches have no name for {}: declare the tensor as U8", to_string(spec.dtype)),
                fmt::format("tensor '{}'", spec.name));
  }
  const bool gaps = encoding_ == PackedEncoding::kDeltas;
  PackedParam param;
  param.tensor = patch.tensor;
  param.width = gaps && largest_gap(patch) <= std::numeric_limits<std::uint16_t>::max() ? 2 : 4;
  PackedFlush& flush = open_flush(spec.dtype, patch.count * param.width + patch.values.size());
  const std::size_t size = element_size(flush.dtype);
  param.positions_begin = flush.positions.size();
  param.values_begin = flush.values.size() / size;
  if (!gaps) {
    flush.positions.insert(flush.positions.end(), patch.indices.begin(), patch.indices.end());
  } else if (param.width == 2) {
    append_gaps<std::uint16_t>(patch, flush.positions);
  } else {
    append_gaps<std::uint32_t>(patch, flush.positions);
  }
  flush.values.insert(flush.values.end(), patch.values.begin(), patch.values.end());
  param.positions_end = flush.positions.size();
  param.values_end = flush.values.size() / size;
  flush.params.push_back(param);
}

void PackedFlusher::finish() {
  for (PackedFlush& flush : open_) {
    if (!flush.params.empty()) sink_(std::move(flush));
  }
  open_.clear();
}

void VllmUpdate::add(const TensorPatch& patch) {
  if (patch.count == 0) return;
  const TensorSpec& spec = table_[patch.tensor];
  const std::string where = fmt::format("tensor '{}'", spec.name);
  if (!is_floating(spec.dtype)) {
    throw Error(ErrorCode::kUnsupported,
                fmt::format("vLLM takes sparse patches of floating tensors only, not of {}", to_string(spec.dtype)),
                where);
  }
  const NanPattern nan = nan_pattern(spec.dtype);
  with_word(element_size(spec.dtype), [&]<class T>() {
    for (std::uint64_t i = 0; i < patch.count; ++i) {
      if (!is_nan_bits(nan, load_word<T>(patch.values.data(), i))) continue;
      throw Error(ErrorCode::kUnsupported, "vLLM takes no NaN in a sparse patch: it means 'unchanged' there",
                  fmt::format("{}: element {}", where, load_word<std::uint32_t>(patch.indices.data(), i)));
    }
  });
  tensors_.push_back(patch.tensor);
  counts_.push_back(patch.count);
}

std::string VllmUpdate::json() const {
  nlohmann::ordered_json names = nlohmann::ordered_json::array();
  nlohmann::ordered_json dtypes = nlohmann::ordered_json::array();
  nlohmann::ordered_json shapes = nlohmann::ordered_json::array();
  for (const std::size_t tensor : tensors_) {
    names.push_back(table_[tensor].name);
    dtypes.push_back(torch_name(table_[tensor].dtype));
    shapes.push_back(table_[tensor].shape);
  }
  const nlohmann::ordered_json info = {
      {"names", names}, {"dtype_names", dtypes}, {"shapes", shapes}, {"num_updates_list", counts_}};
  return info.dump();
}

}  // namespace sparsecast
