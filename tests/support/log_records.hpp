// SPDX-License-Identifier: Apache-2.0
#pragma once

// One record of each kind, the same in every run: what testdata/log holds and what tests alter.

#include <string>
#include <vector>

#include "sparsecast/delta_log.hpp"

namespace sparsecast::test {

LogCommit example_commit(CommitKind kind = CommitKind::kDelta);
LogCatalog example_catalog();
LogAnchor example_anchor();
LogFloor example_floor();
LogLease example_lease();

struct NamedRecord {
  std::string name;  ///< Name of its file in testdata/log, without ".record".
  std::string kind;  ///< Kind in the first line of the record.
  Bytes bytes;
};
/// Commits of all kinds, catalog, anchor and floor, unsigned and signed by fixed_key(7); a lease.
std::vector<NamedRecord> example_records();

}  // namespace sparsecast::test
