// SPDX-License-Identifier: Apache-2.0
#include "core/joined_tables.hpp"

#include <fmt/format.h>

#include <unordered_set>
#include <utility>

namespace sparsecast {

JoinedTables::JoinedTables(std::shared_ptr<const TensorTable> table)
    : tables_{std::move(table)}, all_(tables_.front()), first_{0, all_->size()} {}

JoinedTables::JoinedTables(const TensorTable& table)
    : JoinedTables(std::shared_ptr<const TensorTable>(std::shared_ptr<const void>(), &table)) {}

JoinedTables::JoinedTables(std::vector<std::shared_ptr<const TensorTable>> tables)
    : tables_(std::move(tables)), first_{0} {
  if (tables_.size() == 1) {
    *this = JoinedTables(tables_.front());
    return;
  }
  std::vector<TensorSpec> specs;
  std::vector<DigestOrigin> origins;
  std::unordered_set<std::string> names;
  for (std::size_t s = 0; s < tables_.size(); ++s) {
    const TensorTable& table = *tables_[s];
    for (std::size_t t = 0; t < table.size(); ++t) {
      specs.push_back(table[t]);
      std::string& name = specs.back().name;
      if (!names.insert(name).second) name = fmt::format("{} (stream {})", name, s);
      origins.push_back(table.digest_origin(t));
    }
    first_.push_back(specs.size());
  }
  all_ = std::make_shared<const TensorTable>(std::move(specs), std::move(origins));
}

std::vector<StateDigest> JoinedTables::sums(const std::vector<StateDigest>& of_tensors) const {
  std::vector<StateDigest> sums(streams());
  for (std::size_t s = 0; s < streams(); ++s) {
    for (std::size_t t = first(s); t < first(s + 1); ++t) sums[s] += of_tensors[t];
  }
  return sums;
}

}  // namespace sparsecast
