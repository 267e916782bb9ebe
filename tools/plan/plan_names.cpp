// SPDX-License-Identifier: Apache-2.0
#include "tools/plan/plan_names.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <map>

namespace sparsecast::tools {
namespace {

using Components = std::vector<std::string>;

/// Length of prefixes, in components, that identify a module of a layer.
constexpr std::size_t kModuleDepth = 4;
constexpr std::size_t kMostPatterns = 4;

std::vector<std::string> runs_of(const std::vector<int>& ranks) {
  std::vector<std::string> runs;
  for (std::size_t at = 0; at < ranks.size();) {
    std::size_t end = at + 1;
    const int step = end < ranks.size() ? ranks[end] - ranks[at] : 1;
    while (end < ranks.size() && ranks[end] - ranks[end - 1] == step) ++end;
    // One rank, or two that are not neighbours, are printed singly.
    if (end - at < 2 || (end - at == 2 && step != 1)) {
      runs.push_back(std::to_string(ranks[at]));
      ++at;
      continue;
    }
    runs.push_back(fmt::format("{}-{}", ranks[at], ranks[end - 1]));
    if (step != 1) runs.back() += fmt::format("/{}", step);
    at = end;
  }
  return runs;
}

Components components_of(const std::string& name) {
  Components components(1);
  for (const char c : name) {
    if (c == '.') {
      components.emplace_back();
    } else {
      components.back() += c;
    }
  }
  for (std::string& component : components) {
    const bool number = !component.empty() && component.find_first_not_of("0123456789") == std::string::npos;
    if (number) component = "*";
  }
  return components;
}

std::string to_text(const Components& components) { return fmt::format("{}", fmt::join(components, ".")); }

std::size_t common_prefix(const Components& a, const Components& b) {
  const auto end = std::mismatch(a.begin(), a.end(), b.begin(), b.end()).first;
  return static_cast<std::size_t>(end - a.begin());
}

struct Sums {
  std::uint64_t tensors = 0;
  std::uint64_t bytes = 0;
};
using Merged = std::map<Components, Sums>;

/// Returns the length of the longest prefix that two neighbours share. In the order of the map, patterns with a common
/// prefix are neighbours.
std::size_t deepest_prefix(const Merged& merged) {
  std::size_t deepest = 0;
  for (auto at = merged.begin(); std::next(at) != merged.end(); ++at) {
    deepest = std::max(deepest, common_prefix(at->first, std::next(at)->first));
  }
  return deepest;
}

Merged merge_at(const Merged& merged, std::size_t depth) {
  std::map<Components, std::uint32_t> sharing;
  for (const auto& [components, unused] : merged) {
    if (components.size() >= depth) ++sharing[Components(components.begin(), components.begin() + depth)];
  }
  Merged result;
  for (const auto& [components, sums] : merged) {
    Components key = components;
    if (key.size() >= depth) {
      Components prefix(key.begin(), key.begin() + static_cast<std::ptrdiff_t>(depth));
      if (sharing[prefix] > 1) {
        key = std::move(prefix);
        if (key.back() != "*") key.push_back("*");
      }
    }
    Sums& into = result[key];
    into.tensors += sums.tensors;
    into.bytes += sums.bytes;
  }
  return result;
}

}  // namespace

std::string rank_ranges(const std::vector<int>& ranks) { return fmt::format("{}", fmt::join(runs_of(ranks), ",")); }

std::string short_rank_ranges(const std::vector<int>& ranks, std::size_t most) {
  std::string whole = rank_ranges(ranks);
  if (whole.size() <= most) return whole;
  const std::size_t cut = whole.rfind(',', most);
  return fmt::format("{},... ({})", whole.substr(0, cut == std::string::npos ? whole.find(',') : cut), ranks.size());
}

NamePatterns::NamePatterns(const TensorTable& table) {
  std::map<Components, std::uint32_t> ids;
  for (std::size_t t = 0; t < table.size(); ++t) {
    const auto [at, added] = ids.emplace(components_of(table[t].name), static_cast<std::uint32_t>(patterns_.size()));
    if (added) patterns_.push_back(at->first);
    pattern_of_.push_back(at->second);
  }
}

std::vector<TensorPattern> NamePatterns::of(const std::vector<std::uint64_t>& bytes) const {
  Merged merged;
  for (std::size_t t = 0; t < bytes.size(); ++t) {
    if (bytes[t] == 0) continue;
    Sums& sums = merged[patterns_[pattern_of_[t]]];
    ++sums.tensors;
    sums.bytes += bytes[t];
  }
  while (merged.size() > 1) {
    const std::size_t depth = deepest_prefix(merged);
    if (depth < kModuleDepth && (merged.size() <= kMostPatterns || depth == 0)) break;
    merged = merge_at(merged, depth);
  }
  std::vector<TensorPattern> result;
  for (const auto& [components, sums] : merged) result.push_back({to_text(components), sums.tensors, sums.bytes});
  std::stable_sort(result.begin(), result.end(),
                   [](const TensorPattern& a, const TensorPattern& b) { return a.bytes > b.bytes; });
  return result;
}

std::string join_patterns(const std::vector<TensorPattern>& patterns) {
  std::string text;
  for (const TensorPattern& pattern : patterns) text += (text.empty() ? "" : ", ") + pattern.pattern;
  return text;
}

std::string short_patterns(const std::vector<TensorPattern>& patterns, std::size_t most) {
  std::string text;
  for (std::size_t i = 0; i < patterns.size(); ++i) {
    if (i > 0 && text.size() + 2 + patterns[i].pattern.size() > most) {
      return fmt::format("{}, +{}", text, patterns.size() - i);
    }
    text += (text.empty() ? "" : ", ") + patterns[i].pattern;
  }
  return text;
}

}  // namespace sparsecast::tools
