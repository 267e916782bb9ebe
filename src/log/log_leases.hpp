// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <vector>

#include "sparsecast/delta_log.hpp"

namespace sparsecast {

/// A lease object. One that cannot be read counts from the first version on, until an hour after it was written.
struct StoredLease {
  LogLease lease;
  std::chrono::milliseconds modified{0};  ///< Since 1970, by the store's clock.
  bool broken = false;
};

inline std::chrono::milliseconds unix_milliseconds(std::chrono::system_clock::time_point time) {
  return std::chrono::duration_cast<std::chrono::milliseconds>(time.time_since_epoch());
}

/// Returns all leases in the store, live or expired, of any stream.
std::vector<StoredLease> read_leases(ObjectStore& store);

}  // namespace sparsecast
