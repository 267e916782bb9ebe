// SPDX-License-Identifier: Apache-2.0
#pragma once

// Steps of one sync (sync.cpp) that depend on how the records of a delta travel: through the host, or between devices.

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
  /// Collective. Sends the records; sends none when publish() has thrown (`refused`), which tells the receivers so.
  virtual void send(bool refused, Deadline deadline) = 0;
};

/// Steps of a receiver. One object serves one sync.
class ReceiverSteps {
 public:
  virtual ~ReceiverSteps() = default;
  /// Collective. Receives the records and returns their bytes. It does not check them: stage() does, so that no rank is
  /// missing from the collectives that follow.
  virtual std::uint64_t receive(int source, Deadline deadline) = 0;
  /// Returns false when the source had nothing to send.
  virtual bool any() const = 0;
  /// Return the records of the header and of the commit; empty when there are none.
  virtual ConstBytes header() const = 0;
  virtual ConstBytes commit() const = 0;
  virtual void stage(Subscriber& subscriber) = 0;
  /// Frees the received records, after they were staged or refused.
  virtual void forget() = 0;
  virtual ApplyReport apply(Subscriber& subscriber) = 0;
};

SyncReport run_source(Publisher& publisher, Transport& transport, std::chrono::milliseconds timeout,
                      SourceSteps& steps);
SyncReport run_receiver(Subscriber& subscriber, Transport& transport, int source, std::chrono::milliseconds timeout,
                        ReceiverSteps& steps);

}  // namespace sparsecast
