// SPDX-License-Identifier: Apache-2.0
#pragma once

// Groups of sharded syncs on the fake NCCL, without NCCL's headers, which do not go with those of the emulated device.

#include <memory>
#include <string>

#include "sparsecast/sharded.hpp"

namespace sparsecast::test {

class FakeNccl;

/// One at a time, as FakeNccl.
class FakeGroups {
 public:
  FakeGroups();
  ~FakeGroups();
  FakeGroups(const FakeGroups&) = delete;
  FakeGroups& operator=(const FakeGroups&) = delete;

  /// Opens the groups of a world rank.
  GroupOpener open(int rank);
  /// Lets the call number `call` from now on fail once, of those that move data for this rank.
  void fail_call(int rank, int call);
  bool call_has_failed() const;
  /// From now on broadcasts of so many bytes never arrive, and no abort of a communicator comes back.
  void hang(std::uint64_t bytes);
  /// Returns the number of blocks of device and pinned memory that the channels have allocated and not freed.
  int held_blocks() const;
  /// Returns the bytes of those that belong to a rank.
  std::uint64_t held_bytes(int rank);
  static constexpr std::uint64_t kStagingBytes = 4096;
  /// Returns the undefined uses of NCCL; tests expect none.
  std::string misuses() const;

 private:
  std::unique_ptr<FakeNccl> fake_;
};

}  // namespace sparsecast::test
