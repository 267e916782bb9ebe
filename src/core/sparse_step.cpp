// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <set>

#include "core/utf8.hpp"
#include "core/word.hpp"
#include "sparsecast/error.hpp"
#include "sparsecast/safetensors.hpp"

namespace sparsecast {
namespace {

constexpr std::string_view kIndices = ".indices";
constexpr std::string_view kValues = ".values";

std::string stem(const std::string& name, std::string_view suffix) {
  return name.size() > suffix.size() && name.ends_with(suffix) ? name.substr(0, name.size() - suffix.size())
                                                               : std::string{};
}

/// Returns whether each index is greater than the previous one. Has no branch for each element, so that compilers
/// vectorise it.
bool are_increasing(const std::byte* indices, std::uint64_t count) {
  std::uint32_t faults = 0;
  for (std::uint64_t i = 1; i < count; ++i) {
    faults |=
        static_cast<std::uint32_t>(load_word<std::int32_t>(indices, i) <= load_word<std::int32_t>(indices, i - 1));
  }
  return faults == 0;
}

/// Checks that positions are strictly increasing and below `elements`; throws with the offset in the file.
void check_indices(std::span<const std::byte> indices, std::uint64_t count, std::uint64_t elements,
                   std::uint64_t file_offset) {
  if (count == 0) return;
  const auto index = [&](std::uint64_t i) { return std::int64_t{load_word<std::int32_t>(indices.data(), i)}; };
  const auto inside = [&](std::int64_t i) { return i >= 0 && static_cast<std::uint64_t>(i) < elements; };
  if (inside(index(0)) && inside(index(count - 1)) && are_increasing(indices.data(), count)) return;
  std::int64_t previous = -1;
  for (std::uint64_t i = 0; i < count; ++i) {
    if (index(i) <= previous || !inside(index(i))) {
      throw Error(ErrorCode::kCorrupt, fmt::format("index {} at offset {} is out of order or not below {}", index(i),
                                                   file_offset + i * sizeof(std::int32_t), elements));
    }
    previous = index(i);
  }
}

}  // namespace

bool SparseStep::recognises(const SafetensorsHeader& header) {
  const auto sparse = header.metadata.find("sparse");
  if (sparse != header.metadata.end() && sparse->second == "True") return true;
  if (header.entries.empty()) return false;
  std::set<std::string_view> names;
  for (const SafetensorsEntry& entry : header.entries) names.insert(entry.spec.name);
  const auto has_partner = [&](const std::string& name, std::string_view suffix, std::string_view partner) {
    const std::string tensor = stem(name, suffix);
    return !tensor.empty() && names.count(tensor + std::string(partner)) != 0;
  };
  return std::all_of(header.entries.begin(), header.entries.end(), [&](const SafetensorsEntry& entry) {
    return has_partner(entry.spec.name, kIndices, kValues) || has_partner(entry.spec.name, kValues, kIndices);
  });
}

SparseStep SparseStep::open(FileSystem& fs, const std::string& path, const TensorTable& base) {
  SparseStep step;
  step.base_ = base;
  step.file_ = fs.open(path, OpenMode::kRead);
  std::vector<std::byte> room;
  try {
    const SafetensorsHeader header = SafetensorsHeader::read(*step.file_);
    step.metadata_ = header.metadata;
    std::map<std::string, const SafetensorsEntry*> by_name;
    for (const SafetensorsEntry& entry : header.entries) by_name[entry.spec.name] = &entry;
    for (const SafetensorsEntry& indices : header.entries) {
      const std::string value_stem = stem(indices.spec.name, kValues);
      if (!value_stem.empty() && by_name.count(value_stem + std::string(kIndices)) != 0) continue;
      const std::string name = stem(indices.spec.name, kIndices);
      const auto found = by_name.find(name + std::string(kValues));
      if (name.empty() || found == by_name.end()) {
        throw Error(ErrorCode::kCorrupt, "not one of a pair NAME.indices and NAME.values",
                    fmt::format("entry '{}'", excerpt(indices.spec.name)));
      }
      const SafetensorsEntry& values = *found->second;
      const std::string where = fmt::format("tensor '{}'", excerpt(name));
      const std::optional<std::size_t> tensor = base.find(name);
      if (!tensor) throw Error(ErrorCode::kTableMismatch, "the base has no such tensor", where);
      const TensorSpec& spec = base[*tensor];
      const std::optional<TensorSpec> pairs = as_pairs(values.spec, spec.dtype);
      const bool in_bytes = is_fp6(spec.dtype) && values.spec.dtype == DType::kU8;
      if (values.spec.dtype != spec.dtype && !in_bytes && !(pairs && pairs->shape == values.spec.shape)) {
        throw Error(ErrorCode::kTableMismatch,
                    fmt::format("values of {} for a tensor of {}", to_string(values.spec.dtype), to_string(spec.dtype)),
                    where);
      }
      if (indices.spec.dtype != DType::kI32 || indices.spec.elements() != values.spec.elements()) {
        throw Error(ErrorCode::kCorrupt,
                    fmt::format("{} indices of {} for {} values", indices.spec.elements(),
                                to_string(indices.spec.dtype), values.spec.elements()),
                    where);
      }
      const Entry entry{{*tensor, indices.spec.elements()}, indices.begin, values.begin};
      try {
        check_indices(step.read(entry, room).indices, entry.head.count, spec.elements(), indices.begin);
      } catch (const Error& error) {
        throw error.within(where);
      }
      step.entries_.push_back(entry);
    }
  } catch (const Error& error) {
    throw error.within(path);
  }
  return step;
}

TensorPatch SparseStep::read(const Entry& entry, std::vector<std::byte>& room) const {
  const TensorSpec& spec = base_[entry.head.tensor];
  const std::uint64_t indices = entry.head.count * sizeof(std::int32_t);
  const std::uint64_t values = entry.head.count * element_size(spec.dtype);
  room.resize(indices + values);
  const std::span<std::byte> all = room;
  try {
    file_->read_at(entry.indices, all.first(indices));
    file_->read_at(entry.values, all.subspan(indices));
  } catch (const Error& error) {
    throw error.within(fmt::format("tensor '{}'", excerpt(spec.name)));
  }
  return {entry.head.tensor, all.first(indices), all.subspan(indices), entry.head.count};
}

TensorPatches SparseStep::patches() const {
  TensorPatches patches;
  for (const Entry& entry : entries_) patches.heads.push_back(entry.head);
  patches.read = [this](std::size_t n, std::vector<std::byte>& room) { return read(entries_[n], room); };
  return patches;
}

std::uint64_t SparseStep::apply(std::span<const MutableBytes> tensors) const {
  if (tensors.size() != base_.size()) throw Error(ErrorCode::kUsage, "the tensors are not those of the base's table");
  for (const Entry& entry : entries_) {
    if (tensors[entry.head.tensor].size() != base_[entry.head.tensor].bytes()) {
      throw Error(ErrorCode::kUsage, "the tensor has another size than in the base's table",
                  fmt::format("tensor '{}'", base_[entry.head.tensor].name));
    }
  }
  std::uint64_t written = 0;
  std::vector<std::byte> room;
  for (const Entry& entry : entries_) {
    const TensorPatch patch = read(entry, room);
    with_word(element_size(base_[patch.tensor].dtype), [&]<class T>() {
      for (std::uint64_t i = 0; i < patch.count; ++i) {
        const auto index = static_cast<std::size_t>(load_word<std::int32_t>(patch.indices.data(), i));
        store_word(tensors[patch.tensor].data(), index, load_word<T>(patch.values.data(), i));
      }
    });
    written += patch.count;
  }
  return written;
}

}  // namespace sparsecast
