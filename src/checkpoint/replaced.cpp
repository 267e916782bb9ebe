// SPDX-License-Identifier: Apache-2.0
#include "checkpoint/replaced.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <set>
#include <vector>

#include "checkpoint/undo_record.hpp"
#include "core/weight_files.hpp"
#include "sparsecast/error.hpp"

namespace sparsecast {

void remove_replaced(FileSystem& fs, const std::string& old, const std::string& current) {
  const std::set<std::string> weights = weight_files(fs, old);
  std::vector<std::string> names = fs.list(old);
  // The index is removed last, because after a crash it tells which files remain to be removed.
  std::stable_partition(names.begin(), names.end(), [](const std::string& name) { return name != kIndexName; });
  for (const std::string& name : names) {
    const std::string before = old + "/" + name;
    const std::string now = current + "/" + name;
    const bool taken = fs.is_link(now) || fs.exists(now);
    if (taken && fs.is_directory(before) && !fs.is_link(before)) {
      throw Error(ErrorCode::kUsage, fmt::format("is in the way of '{}', which is kept: move one of them", now),
                  before);
    }
    if (taken || weights.contains(name) || is_undo_record(name)) {
      fs.remove(before);
    } else {
      fs.rename(before, now);
    }
  }
  fs.sync_directory(current);
  fs.remove(old);
}

}  // namespace sparsecast
