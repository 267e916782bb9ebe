// SPDX-License-Identifier: Apache-2.0
#include "sparsecast/tensor.hpp"

#include <fmt/format.h>

#include <cstring>

#include "core/tensor_view.hpp"
#include "core/utf8.hpp"
#include "sparsecast/error.hpp"

namespace sparsecast {
namespace {

constexpr std::uint64_t kMaxTotalElements = std::uint64_t{1} << 60;

/// Returns the product of the shape, or nullopt when it is over `limit`. With a zero in the shape the product is zero,
/// however large the other extents are.
std::optional<std::uint64_t> checked_product(const std::vector<std::uint64_t>& shape, std::uint64_t limit) {
  std::uint64_t product = 1;
  for (const std::uint64_t dim : shape) {
    if (dim == 0) return 0;
  }
  for (const std::uint64_t dim : shape) {
    if (dim > limit / product) return std::nullopt;
    product *= dim;
  }
  return product;
}

/// Returns the first rule that a spec breaks, or an empty string.
std::string find_fault(const TensorSpec& spec) {
  if (spec.name.empty() || spec.name.size() > 0xFFFF) return fmt::format("a name of {} bytes", spec.name.size());
  if (!is_utf8(spec.name)) return "a name that is not UTF-8";
  if (!dtype_from_code(static_cast<std::uint8_t>(spec.dtype))) return "an unknown dtype";
  if (spec.shape.size() > TensorTable::kMaxRank) return fmt::format("rank {}", spec.shape.size());
  if (!checked_product(spec.shape, TensorTable::kMaxElements)) return "more than 2^46 elements";
  return {};
}

template <class T>
void append(std::vector<std::byte>& out, T value) {
  out.resize(out.size() + sizeof(T));
  std::memcpy(out.data() + out.size() - sizeof(T), &value, sizeof(T));
}

void append_entry(std::vector<std::byte>& out, const TensorSpec& spec) {
  append(out, static_cast<std::uint16_t>(spec.name.size()));
  append(out, static_cast<std::uint8_t>(spec.dtype));
  append(out, static_cast<std::uint8_t>(spec.shape.size()));
  for (const std::uint64_t dim : spec.shape) append(out, dim);
  out.resize(out.size() + spec.name.size());
  std::memcpy(out.data() + out.size() - spec.name.size(), spec.name.data(), spec.name.size());
}

class TableReader {
 public:
  explicit TableReader(std::span<const std::byte> bytes) : bytes_(bytes) {}

  std::span<const std::byte> take(std::size_t size) {
    if (size > bytes_.size() - offset_) {
      throw Error(ErrorCode::kCorrupt, "the tensor table is cut off", fmt::format("table offset {}", offset_));
    }
    offset_ += size;
    return bytes_.subspan(offset_ - size, size);
  }
  template <class T>
  T get() {
    T value;
    std::memcpy(&value, take(sizeof(T)).data(), sizeof(T));
    return value;
  }
  std::size_t left() const { return bytes_.size() - offset_; }

 private:
  std::span<const std::byte> bytes_;
  std::size_t offset_ = 0;
};

TensorSpec read_entry(TableReader& reader) {
  TensorSpec spec;
  const auto name_bytes = reader.get<std::uint16_t>();
  const auto dtype = dtype_from_code(reader.get<std::uint8_t>());
  const auto rank = reader.get<std::uint8_t>();
  if (!dtype) throw Error(ErrorCode::kCorrupt, "the tensor table has an unknown dtype");
  if (rank > TensorTable::kMaxRank) throw Error(ErrorCode::kCorrupt, fmt::format("the tensor table has rank {}", rank));
  spec.dtype = *dtype;
  for (int d = 0; d < rank; ++d) spec.shape.push_back(reader.get<std::uint64_t>());
  const auto name = reader.take(name_bytes);
  spec.name.assign(reinterpret_cast<const char*>(name.data()), name.size());
  return spec;
}

}  // namespace

std::uint64_t TensorSpec::elements() const noexcept {
  return checked_product(shape, TensorTable::kMaxElements).value_or(0);
}

TensorTable::TensorTable(std::vector<TensorSpec> specs) : specs_(std::move(specs)) {
  if (specs_.size() > kMaxTensors)
    throw Error(ErrorCode::kUsage, fmt::format("{} tensors are too many", specs_.size()));
  std::vector<std::byte> bytes;
  append(bytes, static_cast<std::uint32_t>(specs_.size()));
  for (std::size_t i = 0; i < specs_.size(); ++i) {
    const TensorSpec& spec = specs_[i];
    const std::string fault = find_fault(spec);
    if (!fault.empty()) throw Error(ErrorCode::kUsage, fault, fmt::format("tensor {} '{}'", i, excerpt(spec.name)));
    if (!by_name_.emplace(spec.name, i).second) {
      throw Error(ErrorCode::kUsage, "the name occurs twice", fmt::format("tensor '{}'", excerpt(spec.name)));
    }
    elements_ += spec.elements();
    bytes_ += spec.bytes();
    if (elements_ > kMaxTotalElements) throw Error(ErrorCode::kUsage, "the table has more than 2^60 elements");
    const std::size_t begin = bytes.size();
    append_entry(bytes, spec);
    origins_.push_back({xxh3_128(std::span(bytes).subspan(begin)), 0, {}});
  }
  hash_ = xxh3_128(bytes);
}

TensorTable::TensorTable(std::vector<TensorSpec> specs, std::vector<DigestOrigin> origins)
    : TensorTable(std::move(specs)) {
  if (origins.size() != specs_.size()) {
    throw Error(ErrorCode::kUsage, fmt::format("{} digest origins for {} tensors", origins.size(), specs_.size()));
  }
  for (std::size_t i = 0; i < specs_.size(); ++i) {
    if (!origins[i].strides.empty() && origins[i].strides.size() != specs_[i].shape.size()) {
      throw Error(ErrorCode::kUsage,
                  fmt::format("{} strides for {} dimensions", origins[i].strides.size(), specs_[i].shape.size()),
                  fmt::format("tensor '{}'", excerpt(specs_[i].name)));
    }
    view_of_tensor(specs_[i], origins[i].strides);  // Throws for strides that the digest cannot use.
  }
  origins_ = std::move(origins);
}

std::optional<std::size_t> TensorTable::find(std::string_view name) const {
  const auto found = by_name_.find(std::string(name));
  if (found == by_name_.end()) return std::nullopt;
  return found->second;
}

std::vector<std::byte> TensorTable::serialize() const {
  std::vector<std::byte> bytes;
  append(bytes, static_cast<std::uint32_t>(specs_.size()));
  for (const TensorSpec& spec : specs_) append_entry(bytes, spec);
  return bytes;
}

TensorTable TensorTable::parse(std::span<const std::byte> bytes) {
  TableReader reader(bytes);
  const auto count = reader.get<std::uint32_t>();
  constexpr std::size_t kLeastEntry = 5;
  if (count > kMaxTensors || count > reader.left() / kLeastEntry) {
    throw Error(ErrorCode::kCorrupt,
                fmt::format("a tensor table of {} bytes cannot hold {} tensors", bytes.size(), count));
  }
  std::vector<TensorSpec> specs;
  specs.reserve(count);
  for (std::uint32_t i = 0; i < count; ++i) specs.push_back(read_entry(reader));
  if (reader.left() != 0)
    throw Error(ErrorCode::kCorrupt, fmt::format("{} bytes follow the tensor table", reader.left()));
  try {
    return TensorTable(std::move(specs));
  } catch (const Error& error) {
    throw Error(ErrorCode::kCorrupt, error.message(), error.context());
  }
}

}  // namespace sparsecast
