// SPDX-License-Identifier: Apache-2.0

// Lists the versions of another system that are at a path.

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <map>
#include <utility>

#include "core/utf8.hpp"
#include "interop/formats/packed.hpp"
#include "interop/formats/slime.hpp"
#include "sparsecast/error.hpp"
#include "sparsecast/interop.hpp"

namespace sparsecast {

namespace {

std::string file_name(const std::string& path) {
  const std::size_t end = path.find_last_not_of('/');
  const std::string trimmed = path.substr(0, end == std::string::npos ? 0 : end + 1);
  const std::size_t slash = trimmed.find_last_of('/');
  return slash == std::string::npos ? trimmed : trimmed.substr(slash + 1);
}

std::optional<std::uint64_t> parse_number(std::string_view text) {
  std::uint64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  const bool whole = !text.empty() && error == std::errc{} && end == text.data() + text.size();
  return whole ? std::optional(value) : std::nullopt;
}

/// Returns 12 for "step_000012.safetensors", and nothing for any other form.
std::optional<std::uint64_t> version_of_step_name(std::string_view name) {
  constexpr std::string_view kPrefix = "step_";
  constexpr std::string_view kSuffix = ".safetensors";
  if (!name.starts_with(kPrefix) || !name.ends_with(kSuffix)) return std::nullopt;
  return parse_number(name.substr(kPrefix.size(), name.size() - kPrefix.size() - kSuffix.size()));
}

std::map<std::string, std::string> metadata_of(FileSystem& fs, const std::string& path, bool& sparse) {
  const std::unique_ptr<File> file = fs.open(path, OpenMode::kRead);
  try {
    const SafetensorsHeader header = SafetensorsHeader::read(*file);
    sparse = SparseStep::recognises(header);
    return header.metadata;
  } catch (const Error& error) {
    throw error.within(path);
  }
}

ForeignStep trl_step(FileSystem& fs, const std::string& path) {
  ForeignStep step;
  step.family = ForeignFamily::kTrl;
  step.path = path;
  bool sparse = false;
  const std::map<std::string, std::string> metadata = metadata_of(fs, path, sparse);
  step.full = !sparse;
  step.version = version_of_step_name(file_name(path));
  if (const auto said = metadata.find("model_version"); said != metadata.end()) {
    step.version = parse_number(said->second);
    if (!step.version) {
      throw Error(ErrorCode::kCorrupt, fmt::format("model_version '{}' is no number", excerpt(said->second)), path);
    }
  }
  return step;
}

/// Returns 12 for "v12", which ModelExpress' trainers call a version's directory, and nothing for any other form.
std::optional<std::uint64_t> version_of_short_name(std::string_view name) {
  return name.starts_with('v') ? parse_number(name.substr(1)) : std::nullopt;
}

ForeignStep slime_step(FileSystem& fs, const std::string& path) {
  const slime::Index index = slime::read_index(fs, path);
  const std::string name = file_name(path);
  ForeignStep step;
  step.family = ForeignFamily::kSlime;
  step.path = path;
  step.full = !index.delta;
  step.label = index.version;
  step.base_label = index.base_version;
  step.version = version_of_short_name(name);
  if (step.version) return step;  // The labels may then be random, and one of only digits is no number.
  step.version = parse_number(index.version);
  step.base_version = parse_number(index.base_version);
  if (step.version && step.base_version) return step;
  step.version = slime::version_of_name(name);
  step.base_version = std::nullopt;
  return step;
}

/// Returns the step of a directory of packed flushes. If it has no flush, only its name gives the version.
ForeignStep packed_step(const std::string& path) {
  ForeignStep step;
  step.family = ForeignFamily::kPacked;
  step.path = path;
  step.version = slime::version_of_name(file_name(path));
  return step;
}

bool has_flushes(FileSystem& fs, const std::string& directory) {
  const std::vector<std::string> names = fs.list(directory);
  return std::any_of(names.begin(), names.end(),
                     [](const std::string& name) { return name == packed::kDoneName || packed::is_flush_name(name); });
}

ForeignStep version_directory(FileSystem& fs, const std::string& path, std::optional<ForeignFamily> family) {
  if (!family) family = has_flushes(fs, path) ? ForeignFamily::kPacked : ForeignFamily::kSlime;
  return *family == ForeignFamily::kPacked ? packed_step(path) : slime_step(fs, path);
}

/// Adds the step_*.safetensors files of a directory, by version.
void add_steps(FileSystem& fs, const std::string& directory, std::map<std::uint64_t, ForeignStep>& steps) {
  if (!fs.is_directory(directory)) return;
  for (const std::string& name : fs.list(directory)) {
    if (!version_of_step_name(name)) continue;
    ForeignStep step = trl_step(fs, directory + "/" + name);
    steps.emplace(*step.version, std::move(step));
  }
}

std::vector<ForeignStep> in_order(std::map<std::uint64_t, ForeignStep> by_version) {
  std::vector<ForeignStep> steps;
  for (auto& [version, step] : by_version) steps.push_back(std::move(step));
  return steps;
}

std::vector<ForeignStep> trl_directory(FileSystem& fs, const std::string& path) {
  std::map<std::uint64_t, ForeignStep> steps;
  add_steps(fs, path + "/deltas", steps);
  add_steps(fs, path, steps);
  add_steps(fs, path + "/anchors", steps);
  return in_order(std::move(steps));
}

std::vector<ForeignStep> version_directories(FileSystem& fs, const std::string& path,
                                             std::optional<ForeignFamily> family) {
  std::map<std::uint64_t, ForeignStep> steps;
  for (const std::string& name : fs.list(path)) {
    std::optional<std::uint64_t> version = slime::version_of_name(name);
    if (const std::optional<std::uint64_t> number = version_of_short_name(name)) {
      if (fs.exists(path + "/" + name + "/" + slime::kIndexName)) version = number;
    }
    if (version) steps.emplace(*version, version_directory(fs, path + "/" + name, family));
  }
  return in_order(std::move(steps));
}

bool is_version_directory(FileSystem& fs, const std::string& path) {
  return slime::version_of_name(file_name(path)) || fs.exists(path + "/" + slime::kIndexName) || has_flushes(fs, path);
}

}  // namespace

std::vector<ForeignStep> find_foreign_steps(FileSystem& fs, const std::string& path,
                                            std::optional<ForeignFamily> family) {
  if (!fs.exists(path)) throw Error(ErrorCode::kIo, "no such file or directory", path);
  if (!fs.is_directory(path)) {
    if (family && *family != ForeignFamily::kTrl) throw Error(ErrorCode::kUsage, "a version is a directory", path);
    return {trl_step(fs, path)};
  }
  const bool trl = family == ForeignFamily::kTrl;
  std::vector<ForeignStep> steps;
  if (!trl && is_version_directory(fs, path)) return {version_directory(fs, path, family)};
  if (!trl) steps = version_directories(fs, path, family);
  if (steps.empty() && (trl || !family)) steps = trl_directory(fs, path);
  if (steps.empty()) {
    throw Error(ErrorCode::kUsage, "there are neither directories weight_v* or v* nor step_*.safetensors", path);
  }
  return steps;
}

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
