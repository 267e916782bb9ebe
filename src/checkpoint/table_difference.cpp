// SPDX-License-Identifier: Apache-2.0
#include "checkpoint/table_difference.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <vector>

#include "core/nearest_name.hpp"
#include "sparsecast/error.hpp"

namespace sparsecast {
namespace {

constexpr std::size_t kShown = 3;

std::string describe(const TensorSpec& spec) {
  return fmt::format("{} [{}]", to_string(spec.dtype), fmt::join(spec.shape, ", "));
}

class Findings {
 public:
  void add(std::string line) {
    if (lines_.size() < kShown) lines_.push_back(std::move(line));
    ++count_;
  }
  std::string text() const {
    std::string joined = fmt::format("{}", fmt::join(lines_, "; "));
    if (count_ > lines_.size()) joined += fmt::format("; and {} more", count_ - lines_.size());
    return joined;
  }
  bool empty() const { return count_ == 0; }
  bool full() const { return count_ >= kShown; }

 private:
  std::vector<std::string> lines_;
  std::size_t count_ = 0;
};

}  // namespace

std::string explain_difference(const TensorTable& first, const std::string& first_name, const TensorTable& second,
                               const std::string& second_name) {
  if (first.hash() == second.hash()) return {};
  Findings missing;
  Findings extra;
  Findings other;
  for (const TensorSpec& spec : first) {
    const auto found = second.find(spec.name);
    if (!found) {
      const std::string nearest = missing.full() ? std::string{} : nearest_name(second, spec.name);
      missing.add(
          fmt::format("'{}'{}", spec.name, nearest.empty() ? std::string{} : fmt::format(" (nearest: '{}')", nearest)));
    } else if (!(second[*found] == spec)) {
      other.add(fmt::format("'{}' is {} against {}", spec.name, describe(spec), describe(second[*found])));
    }
  }
  for (const TensorSpec& spec : second) {
    if (!first.find(spec.name)) extra.add(fmt::format("'{}'", spec.name));
  }
  std::vector<std::string> parts;
  if (!missing.empty()) parts.push_back(fmt::format("only in {}: {}", first_name, missing.text()));
  if (!extra.empty()) parts.push_back(fmt::format("only in {}: {}", second_name, extra.text()));
  if (!other.empty()) parts.push_back(fmt::format("different dtype or shape: {}", other.text()));
  if (parts.empty()) parts.emplace_back("the same tensors in another order");
  return fmt::format("{}", fmt::join(parts, ". "));
}

PairsOf pairs_of(const TensorTable& table) {
  return [&table](const TensorSpec& spec) -> std::optional<DType> {
    const std::optional<std::size_t> wanted = table.find(spec.name);
    if (!wanted || as_pairs(spec, table[*wanted].dtype) != table[*wanted]) return std::nullopt;
    return table[*wanted].dtype;
  };
}

bool is_checkpoint_of(FileSystem& fs, const std::string& path, const Hash128& table_hash) {
  try {
    return Checkpoint::open(fs, path).table().hash() == table_hash;
  } catch (const Error& error) {
    if (error.code() == ErrorCode::kIo) throw;
    return false;
  }
}

void require_same_table(const TensorTable& first, const std::string& first_name, const TensorTable& second,
                        const std::string& second_name) {
  const std::string difference = explain_difference(first, first_name, second, second_name);
  if (difference.empty()) return;
  throw Error(ErrorCode::kTableMismatch,
              fmt::format("'{}' and '{}' do not hold the same tensors. {}", first_name, second_name, difference));
}

}  // namespace sparsecast
