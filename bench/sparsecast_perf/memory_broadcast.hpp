// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <span>

#include "sparsecast_perf/group.hpp"

namespace sparsecast::perf {

/// Plain broadcast of the publisher's bytes through memory that all ranks of one machine share: two copies, nothing
/// encrypted and nothing sent, so that it costs as little as it can.
class MemoryBroadcast {
 public:
  /// Collective. Null on every rank where the ranks are on several machines, or cannot share memory.
  static std::unique_ptr<MemoryBroadcast> open(Group& group);
  ~MemoryBroadcast();
  MemoryBroadcast(const MemoryBroadcast&) = delete;
  MemoryBroadcast& operator=(const MemoryBroadcast&) = delete;

  /// Collective; `bytes` has one size on all ranks. Throws Error{kTimeout} after `deadline`.
  void broadcast(std::span<std::byte> bytes, Deadline deadline);

 private:
  explicit MemoryBroadcast(Group& group) : group_(group) {}
  /// The publisher's file without a name, as the others of its user find it; empty where there is none.
  std::string create();
  bool map(int descriptor);

  Group& group_;
  int created_ = -1;  ///< Descriptor of the publisher's file.
  std::byte* window_ = nullptr;
};

}  // namespace sparsecast::perf
