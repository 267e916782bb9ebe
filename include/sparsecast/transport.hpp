// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <vector>

#include "sparsecast/control_channel.hpp"
#include "sparsecast/delta.hpp"
#include "sparsecast/export.hpp"

namespace sparsecast {

class FrameChannel;

/// A channel between a source and the receivers that get the same tensors. It moves bytes and nothing else: messages
/// about the bytes go over its control channel. After an error the transport and its control channel are broken: the
/// other ranks are notified, every later call throws at once, and the owner must make a new transport.
class SPARSECAST_API Transport {
 public:
  virtual ~Transport() = default;
  /// Sends the records of rank `source` to every rank, in order; all ranks must call it. On the source `records` is
  /// input; on other ranks it is output. Throws Error{kTimeout | kPeerFailed}, at the latest at `deadline`.
  virtual void broadcast(std::vector<Bytes>& records, int source, Deadline deadline) = 0;
  /// Returns the control channel of the same ranks. It lives at least as long as the transport.
  virtual ControlChannel& control() const noexcept = 0;
  /// Internal: returns the transport's interface for frames that go from the memory of one rank, on the host or a
  /// device, to the memory of other ranks. Null when the transport carries only records in host memory.
  virtual FrameChannel* frames() noexcept { return nullptr; }

  int rank() const noexcept { return control().rank(); }
  int size() const noexcept { return control().size(); }
};

}  // namespace sparsecast
