// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "sparsecast/object_store.hpp"

namespace sparsecast::test {

struct RaceSettings {
  int publishers = 8;
  std::uint64_t races = 40;  ///< Times that all of them begin a takeover at once.
  std::uint64_t seed = 1;
};

struct RaceReport {
  std::uint64_t versions = 0;   ///< Number of versions of the log at the end, without the genesis.
  std::uint64_t wins = 0;       ///< Number of commits that were confirmed to some publisher; each version once.
  std::uint64_t takeovers = 0;  ///< Number of takeovers among them.
  std::uint64_t fenced = 0;     ///< Calls that were refused.
  std::string problem;          ///< Empty: one history, every version somebody's, every commit whole.
};

/// Each call gives another object for the same place, where there is no log yet.
using OpenStore = std::function<std::unique_ptr<ObjectStore>()>;

/// Publishers on threads of their own, each with a store, reader and writer of its own on the same place, race for the
/// log: in each round all of them take over, every other time with the same commit to create at the same moment,
/// and who can goes on publishing. Then the chain is read and checked.
RaceReport race_publishers(const OpenStore& open_store, const RaceSettings& settings);
/// In a directory of this machine.
RaceReport race_publishers(const std::string& directory, const RaceSettings& settings);

}  // namespace sparsecast::test
