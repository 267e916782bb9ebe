// SPDX-License-Identifier: Apache-2.0
#include "tools/delta/convert_steps.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstring>

#include "core/utf8.hpp"
#include "sparsecast/error.hpp"

namespace sparsecast::tools {
namespace {

bool is_delta(FileSystem& fs, const std::string& path) {
  if (fs.is_directory(path)) return false;
  const std::unique_ptr<File> file = fs.open(path, OpenMode::kRead);
  std::array<std::byte, 4> magic{};
  if (file->size() < magic.size()) return false;
  file->read_at(0, magic);
  return std::memcmp(magic.data(), "SCH1", magic.size()) == 0;
}

ConvertStep delta_step(FileSystem& fs, const std::string& path) {
  const DeltaFile delta = DeltaFile::open(fs, path);
  return {path, std::nullopt, delta.header().base_version, delta.header().version};
}

std::vector<ConvertStep> deltas_of(FileSystem& fs, const std::string& directory) {
  std::vector<ConvertStep> steps;
  for (const std::string& name : fs.list(directory)) {
    if (name.ends_with(".scd")) steps.push_back(delta_step(fs, directory + "/" + name));
  }
  std::sort(steps.begin(), steps.end(),
            [](const ConvertStep& a, const ConvertStep& b) { return *a.version < *b.version; });
  return steps;
}

std::vector<ConvertStep> steps_of(FileSystem& fs, const std::string& path, const std::string& from) {
  const bool automatic = from == "auto";
  if (from == "scd" || automatic) {
    if (!fs.exists(path)) throw Error(ErrorCode::kIo, "no such file or directory", path);
    if (fs.is_directory(path)) {
      std::vector<ConvertStep> steps = deltas_of(fs, path);
      if (!steps.empty()) return steps;
      if (!automatic) throw Error(ErrorCode::kUsage, "there are no deltas (.scd)", path);
    } else if (!automatic || is_delta(fs, path)) {
      return {delta_step(fs, path)};
    }
  }
  std::vector<ConvertStep> steps;
  for (const ForeignStep& step : find_foreign_steps(fs, path, foreign_family_from_name(from))) {
    steps.push_back({step.path, step, step.base_version, step.version});
  }
  return steps;
}

std::uint64_t first_base(const ConvertStep& step) {
  if (step.base_version) return *step.base_version;
  return step.version && *step.version > 0 ? *step.version - 1 : 0;
}

}  // namespace

std::vector<ConvertStep> find_convert_steps(FileSystem& fs, const std::vector<std::string>& inputs,
                                            const std::string& from) {
  std::vector<ConvertStep> all;
  for (const std::string& input : inputs) {
    for (ConvertStep& step : steps_of(fs, input, from)) all.push_back(std::move(step));
  }
  return all;
}

std::vector<ConvertStep> chain_of(std::vector<ConvertStep> steps, std::optional<std::uint64_t> base_version) {
  std::vector<ConvertStep> chain;
  if (steps.empty()) return chain;
  std::uint64_t held = base_version.value_or(first_base(steps.front()));
  std::string held_label;
  for (ConvertStep& step : steps) {
    if (step.version && *step.version <= held && base_version && chain.empty()) continue;
    const bool full = step.foreign && step.foreign->full;
    // A given number of the base overrides a first step that states none.
    const bool free = full || (chain.empty() && !step.base_version && base_version);
    const std::uint64_t wanted = step.base_version.value_or(step.version.value_or(held + 1) - 1);
    if ((!free && wanted != held) || (step.version && *step.version <= held)) {
      throw Error(ErrorCode::kVersionGap,
                  fmt::format("leads from version {} to {}, but what comes before it ends at {}", wanted,
                              step.version.value_or(held + 1), held),
                  step.path);
    }
    const std::string base_label = step.foreign ? step.foreign->base_label : "";
    if (!step.base_version && !base_label.empty() && !held_label.empty() && base_label != held_label) {
      throw Error(ErrorCode::kVersionGap,
                  fmt::format("leads from version '{}', but what comes before it is '{}'", excerpt(base_label),
                              excerpt(held_label)),
                  step.path);
    }
    held_label = step.foreign ? step.foreign->label : "";
    step.base_version = held;
    step.version = step.version.value_or(held + 1);
    held = *step.version;
    chain.push_back(std::move(step));
  }
  return chain;
}

}  // namespace sparsecast::tools
