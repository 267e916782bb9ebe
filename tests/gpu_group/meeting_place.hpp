// SPDX-License-Identifier: Apache-2.0
#pragma once

// Meeting place of the processes of a group: a rendezvous on loopback, whose port rank 0 writes to a file.

#include <functional>
#include <memory>
#include <optional>

#include "gpu_group/member.hpp"
#include "sparsecast/tcp_transport.hpp"

namespace sparsecast::test {

class MeetingPlace {
 public:
  MeetingPlace(const GroupPlan& plan, int rank) : plan_(plan), rank_(rank) {}

  std::shared_ptr<ControlChannel> meet(int size, std::uint32_t generation);
  /// Rank 0: the next meeting is the one for a late rank, which waits for that: it would not be in order before.
  void invite();
  void wait_for_invitation();
  Deadline deadline() const { return std::chrono::steady_clock::now() + plan_.timeout; }

 private:
  void wait_until(Deadline end, const std::function<bool()>& holds, const char* complaint);

  const GroupPlan& plan_;
  int rank_;
  std::optional<RendezvousListener> listener_;
};

}  // namespace sparsecast::test
