// SPDX-License-Identifier: Apache-2.0
#pragma once

// The channel that a group of processes syncs over: NCCL, or, to try the program itself without a device, the control
// channel alone.

#include <memory>

#include "sparsecast/nccl_transport.hpp"

namespace sparsecast::test {

class GroupChannel {
 public:
  virtual ~GroupChannel() = default;
  virtual void open(std::shared_ptr<ControlChannel> control, Deadline deadline) = 0;
  /// After a failure, with the members that are left.
  virtual void reform(std::shared_ptr<ControlChannel> members, Deadline deadline) = 0;
  virtual Transport& transport() = 0;
  /// Null over the control channel.
  virtual NcclTransport* nccl() = 0;
};

std::unique_ptr<GroupChannel> make_nccl_channel();
std::unique_ptr<GroupChannel> make_control_channel();

}  // namespace sparsecast::test
