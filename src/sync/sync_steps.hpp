// SPDX-License-Identifier: Apache-2.0
#pragma once

// Steps of one sync (sync.cpp) that depend on how the records of a delta travel (sync_steps.cpp).

#include "sparsecast/transport.hpp"

namespace sparsecast {

/// Steps of the source. One object serves one sync.
class SourceSteps {
 public:
  struct Published {
    std::uint64_t version = 0;
    std::uint64_t changed = 0;
    std::uint64_t wire_bytes = 0;
  };

  virtual ~SourceSteps() = default;
  virtual Published publish(Publisher& publisher) = 0;
  /// Collective. Sends the records. When publish() has thrown, `refused` is its ErrorCode, not 0, and the receivers
  /// learn that there is nothing to send.
  virtual void send(int refused, Deadline deadline) = 0;
};

/// Steps of a receiver. One object serves one sync.
class ReceiverSteps {
 public:
  virtual ~ReceiverSteps() = default;
  /// Collective. Receives the records and returns their bytes. It does not check them: stage() does, so that no rank is
  /// missing from the collectives that follow.
  virtual std::uint64_t receive(Subscriber& subscriber, Deadline deadline) = 0;
  /// Return the records of the header and of the commit; empty when there are none.
  virtual ConstBytes header() const = 0;
  virtual ConstBytes commit() const = 0;
  /// Throws Error{kPeerFailed} when the source had nothing to send.
  virtual void stage(Subscriber& subscriber) = 0;
  /// Frees the received records, after they were staged or refused.
  virtual void forget() = 0;
};

SyncReport run_source(Publisher& publisher, Transport& transport, std::chrono::milliseconds timeout,
                      SourceSteps& steps);
SyncReport run_receiver(Subscriber& subscriber, Transport& transport, std::chrono::milliseconds timeout,
                        const ApplyOrder& order, ReceiverSteps& steps);

}  // namespace sparsecast
