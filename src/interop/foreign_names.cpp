#include <array>
#include <utility>

#include "sparsecast/interop.hpp"

namespace sparsecast {
namespace {

constexpr std::array<std::pair<ForeignFamily, std::string_view>, 3> kFamilies = {
    {{ForeignFamily::kTrl, "trl"}, {ForeignFamily::kSlime, "slime"}, {ForeignFamily::kPacked, "packed"}}};

constexpr std::array<std::pair<ForeignFormat, std::string_view>, 8> kFormats = {
    {{ForeignFormat::kTrl, "trl"},
     {ForeignFormat::kSlimeXor, "slime-xor"},
     {ForeignFormat::kSlimeOverwrite, "slime-overwrite"},
     {ForeignFormat::kPackedIndices, "packed-indices"},
     {ForeignFormat::kPackedDeltas, "packed-deltas"},
     {ForeignFormat::kPackedDeltasZstd, "packed-deltas-zstd"},
     {ForeignFormat::kVerl, "verl"},
     {ForeignFormat::kVllm, "vllm"}}};

template <class Table, class Value>
std::string_view name_of(const Table& table, Value value) noexcept {
  for (const auto& [known, name] : table) {
    if (known == value) return name;
  }
  return "unknown";
}

template <class Value, class Table>
std::optional<Value> value_of(const Table& table, std::string_view name) noexcept {
  for (const auto& [value, known] : table) {
    if (known == name) return value;
  }
  return std::nullopt;
}

}  // namespace

std::string_view to_string(ForeignFamily family) noexcept { return name_of(kFamilies, family); }
std::string_view to_string(ForeignFormat format) noexcept { return name_of(kFormats, format); }

std::optional<ForeignFamily> foreign_family_from_name(std::string_view name) noexcept {
  return value_of<ForeignFamily>(kFamilies, name);
}

std::optional<ForeignFormat> foreign_format_from_name(std::string_view name) noexcept {
  return value_of<ForeignFormat>(kFormats, name);
}

}  // namespace sparsecast
