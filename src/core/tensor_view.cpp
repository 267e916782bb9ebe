// SPDX-License-Identifier: Apache-2.0
#include "core/tensor_view.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "sparsecast/error.hpp"

namespace sparsecast {
namespace {

std::string name_of(const TensorSpec& spec) { return fmt::format("tensor '{}'", spec.name); }

void require_count(const TensorTable& table, std::size_t count, const char* what) {
  if (count == table.size()) return;
  throw Error(ErrorCode::kUsage, fmt::format("{} {} tensors for a table of {}", count, what, table.size()));
}

template <class Byte>
std::vector<TensorPlace<Byte>> place_all(const TensorTable& table, const std::vector<TensorRef>& tensors,
                                         const char* what, bool masters) {
  check_refs(table, tensors, what, masters);
  if (common_device(table, tensors, what) != kHostMemory) {
    throw Error(ErrorCode::kUsage, fmt::format("{} tensors on a device, where memory of the host belongs", what));
  }
  std::vector<TensorPlace<Byte>> places;
  places.reserve(tensors.size());
  for (std::size_t t = 0; t < table.size(); ++t) {
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

std::string text_of(const std::vector<std::uint64_t>& shape) { return fmt::format("[{}]", fmt::join(shape, ", ")); }

std::string name_of_device(int device) { return device == kHostMemory ? "the host" : fmt::format("device {}", device); }

template <class Span>
std::vector<TensorRef> contiguous_refs(const TensorTable& table, const std::vector<Span>& tensors) {
  require_count(table, tensors.size(), "host");
  std::vector<TensorRef> all;
  all.reserve(tensors.size());
  for (std::size_t t = 0; t < table.size(); ++t) {
    if (tensors[t].size() != table[t].bytes()) {
      throw Error(ErrorCode::kUsage, fmt::format("{} bytes for {}", tensors[t].size(), table[t].bytes()),
                  name_of(table[t]));
    }
    all.push_back(ref_to(table[t], tensors[t].data()));
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

void check_ref(const TensorSpec& spec, const TensorRef& tensor, const char* what, bool masters) {
  const auto refuse = [&](const std::string& why) { throw Error(ErrorCode::kUsage, why, name_of(spec)); };
  if (tensor.shape != spec.shape) {
    refuse(fmt::format("its {} tensor has the shape {}, the table's is {}", what, text_of(tensor.shape),
                       text_of(spec.shape)));
  }
  if (masters) {
    static_cast<void>(is_master(spec, tensor.dtype));
  } else if (tensor.dtype != spec.dtype) {
    refuse(fmt::format("its {} tensor is {}, the table's is {}", what, to_string(tensor.dtype), to_string(spec.dtype)));
  }
  static_cast<void>(view_of_tensor(spec, tensor.strides));
  if (spec.elements() == 0) return;
  if (tensor.data == nullptr) refuse(fmt::format("the pointer to its {} elements is null", what));
  const std::size_t size = element_size(tensor.dtype);
  if (tensor.device != kHostMemory && reinterpret_cast<std::uintptr_t>(tensor.data) % size != 0) {
    refuse(fmt::format("its {} pointer is not aligned to its elements", what));
  }
}

void check_refs(const TensorTable& table, const std::vector<TensorRef>& tensors, const char* what, bool masters) {
  require_count(table, tensors.size(), what);
  for (std::size_t t = 0; t < table.size(); ++t) check_ref(table[t], tensors[t], what, masters);
}

void check_cast_masters(const TensorTable& table, const std::vector<TensorRef>& masters) {
  if (masters.size() != table.size()) {
    throw Error(ErrorCode::kUsage, fmt::format("{} masters for a table of {}", masters.size(), table.size()));
  }
  for (std::size_t t = 0; t < table.size(); ++t) {
    if (masters[t].data == nullptr) continue;
    const std::string where = name_of(table[t]);
    if (table[t].dtype != DType::kBF16) throw Error(ErrorCode::kUsage, "only bf16 has a fused cast", where);
    check_ref(table[t], masters[t], "master", true);
    if (masters[t].dtype != DType::kF32) throw Error(ErrorCode::kUsage, "its master is not fp32", where);
  }
}

void require_contiguous(const TensorTable& table, const std::vector<TensorRef>& tensors, const char* what) {
  for (std::size_t t = 0; t < table.size(); ++t) {
    if (tensors[t].data == nullptr || is_contiguous(view_of_tensor(table[t], tensors[t].strides))) continue;
    throw Error(ErrorCode::kUnsupported, fmt::format("{} takes no views", what), name_of(table[t]));
  }
}

int common_device(const TensorTable& table, const std::vector<TensorRef>& tensors, const char* what) {
  require_count(table, tensors.size(), what);
  std::size_t first = tensors.size();
  for (std::size_t t = 0; t < tensors.size(); ++t) {
    if (tensors[t].data == nullptr) continue;
    if (first == tensors.size()) first = t;
    if (tensors[t].device == tensors[first].device) continue;
    throw Error(ErrorCode::kUsage,
                fmt::format("its {} tensor is on {}, that of '{}' on {}", what, name_of_device(tensors[t].device),
                            table[first].name, name_of_device(tensors[first].device)),
                name_of(table[t]));
  }
  if (first != tensors.size()) return tensors[first].device;
  return tensors.empty() ? kHostMemory : tensors.front().device;
}

std::vector<TensorPlace<std::byte>> place_tensors(const TensorTable& table, const std::vector<TensorRef>& tensors,
                                                  const char* what) {
  return place_all<std::byte>(table, tensors, what, false);
}

std::vector<TensorPlace<const std::byte>> place_read_tensors(const TensorTable& table,
                                                             const std::vector<TensorRef>& tensors, const char* what,
                                                             bool masters) {
  return place_all<const std::byte>(table, tensors, what, masters);
}

std::uint64_t TensorRef::elements() const noexcept {
  std::uint64_t product = 1;
  for (const std::uint64_t extent : shape) product *= extent;
  return product;
}

bool TensorRef::contiguous() const noexcept {
  if (strides.empty()) return true;
  std::int64_t step = 1;
  for (std::size_t d = std::min(shape.size(), strides.size()); d-- > 0;) {
    if (shape[d] != 1 && strides[d] != step) return elements() <= 1;
    step *= static_cast<std::int64_t>(shape[d]);
  }
  return true;
}

TensorRef ref_to(const TensorSpec& spec, const void* data, int device, std::vector<std::int64_t> strides) {
  // Constant memory is never written: the object that takes the reference documents whether it writes.
  auto* const bytes = static_cast<std::byte*>(const_cast<void*>(data));
  return {bytes, spec.dtype, spec.shape, std::move(strides), device};
}

std::vector<TensorRef> refs_to(const TensorTable& table, const std::vector<ConstBytes>& tensors) {
  return contiguous_refs(table, tensors);
}

std::vector<TensorRef> refs_to(const TensorTable& table, const std::vector<MutableBytes>& tensors) {
  return contiguous_refs(table, tensors);
}

std::vector<TensorRef> refs_to(const TensorTable& table, const std::vector<void*>& d_tensors, int device) {
  require_count(table, d_tensors.size(), "device");
  std::vector<TensorRef> all;
  all.reserve(d_tensors.size());
  for (std::size_t t = 0; t < table.size(); ++t) all.push_back(ref_to(table[t], d_tensors[t], device));
  return all;
}

}  // namespace sparsecast
