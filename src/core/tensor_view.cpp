// SPDX-License-Identifier: Apache-2.0
#include "core/tensor_view.hpp"

#include <fmt/format.h>

#include "sparsecast/error.hpp"

namespace sparsecast {
namespace {

std::string name_of(const TensorSpec& spec) { return fmt::format("tensor '{}'", spec.name); }

void require_count(const TensorTable& table, std::size_t count, const char* what) {
  if (count == table.size()) return;
  throw Error(ErrorCode::kUsage, fmt::format("{} {} tensors for a table of {}", count, what, table.size()));
}

template <class Byte, class Tensor>
std::vector<TensorPlace<Byte>> place_all(const TensorTable& table, const std::vector<Tensor>& tensors,
                                         const char* what) {
  require_count(table, tensors.size(), what);
  std::vector<TensorPlace<Byte>> places;
  places.reserve(tensors.size());
  for (std::size_t t = 0; t < table.size(); ++t) {
    if (tensors[t].data == nullptr && table[t].elements() != 0) {
      throw Error(ErrorCode::kUsage, fmt::format("the pointer to its {} elements is null", what), name_of(table[t]));
    }
    TensorPlace<Byte>& place = places.emplace_back();
    place.data = tensors[t].data;
    const StridedView view = view_of_tensor(table[t], tensors[t].strides);
    if (is_contiguous(view)) continue;
    if (!std::is_const_v<Byte> && repeats_places(view)) {
      throw Error(ErrorCode::kUsage, fmt::format("its {} elements overlap", what), name_of(table[t]));
    }
    place.view = std::make_unique<const StridedView>(view);
  }
  return places;
}

template <class Tensor, class Span>
std::vector<Tensor> contiguous(const TensorTable& table, const std::vector<Span>& tensors, const char* what) {
  require_count(table, tensors.size(), what);
  std::vector<Tensor> all;
  all.reserve(tensors.size());
  for (std::size_t t = 0; t < table.size(); ++t) {
    if (tensors[t].size() != table[t].bytes()) {
      throw Error(ErrorCode::kUsage, fmt::format("{} {} bytes for {}", tensors[t].size(), what, table[t].bytes()),
                  name_of(table[t]));
    }
    all.push_back({tensors[t].data(), {}});
  }
  return all;
}

}  // namespace

StridedView view_of_tensor(const TensorSpec& spec, const std::vector<std::int64_t>& strides) {
  if (strides.empty() || spec.elements() == 0) return {};
  if (strides.size() != spec.shape.size()) {
    throw Error(ErrorCode::kUsage, "it has not one stride for each dimension", name_of(spec));
  }
  if (strides.size() > kMostDims) {
    throw Error(ErrorCode::kUsage, fmt::format("a strided tensor has at most {} dimensions", kMostDims), name_of(spec));
  }
  return make_strided_view(spec.shape, strides);
}

bool is_master(DType dtype, DType given, const std::string& where) {
  if (given == dtype) return false;
  if (given == DType::kF32 && dtype == DType::kBF16) return true;
  throw Error(ErrorCode::kUsage,
              fmt::format("{} given for {}: only F32 masters of BF16 are cast", to_string(given), to_string(dtype)),
              where);
}
bool is_master(const TensorSpec& spec, DType given) { return is_master(spec.dtype, given, name_of(spec)); }

DigestIndex digest_index_of(const TensorTable& table, std::size_t tensor) {
  const DigestOrigin& origin = table.digest_origin(tensor);
  DigestIndex index{origin.key, origin.first, true, view_of_tensor(table[tensor], origin.strides)};
  index.flat = is_contiguous(index.view);
  return index;
}

std::vector<TensorPlace<std::byte>> place_tensors(const TensorTable& table, const std::vector<HostTensor>& tensors,
                                                  const char* what) {
  return place_all<std::byte>(table, tensors, what);
}

std::vector<TensorPlace<const std::byte>> place_tensors(const TensorTable& table,
                                                        const std::vector<ConstHostTensor>& tensors, const char* what) {
  return place_all<const std::byte>(table, tensors, what);
}

std::vector<HostTensor> host_tensors(const TensorTable& table, const std::vector<TensorBytes>& tensors,
                                     const char* what) {
  return contiguous<HostTensor>(table, tensors, what);
}

std::vector<ConstHostTensor> host_tensors(const TensorTable& table, const std::vector<ConstTensorBytes>& tensors,
                                          const char* what) {
  return contiguous<ConstHostTensor>(table, tensors, what);
}

}  // namespace sparsecast
