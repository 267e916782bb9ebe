#pragma once

// One sync of a channel (sync.cpp), for whatever way the records of a delta take from the source to the receivers.

#include "sparsecast/transport.hpp"

namespace sparsecast {

/// The source's part of the way.
class SourceSteps {
 public:
  struct Published {
    std::uint64_t version = 0;
    std::uint64_t changed = 0;
    std::uint64_t wire_bytes = 0;
  };

  virtual ~SourceSteps() = default;
  virtual Published publish(Publisher& publisher) = 0;
  /// Collective. When publish() has thrown (`refused`), the receivers get nothing, and learn it.
  virtual void send(bool refused, Deadline deadline) = 0;
};

/// A receiver's part. One object serves one sync.
class ReceiverSteps {
 public:
  virtual ~ReceiverSteps() = default;
  /// Collective; the bytes that have come. What is wrong with them is for stage() to say, so that no rank is missed in
  /// what follows.
  virtual std::uint64_t receive(int source, Deadline deadline) = 0;
  /// False when the source had nothing to send.
  virtual bool any() const = 0;
  /// The header's and the commit's record; empty when there are none.
  virtual ConstBytes header() const = 0;
  virtual ConstBytes commit() const = 0;
  virtual void stage(Subscriber& subscriber) = 0;
  /// Staged or refused: what has come is not needed any more.
  virtual void forget() = 0;
  virtual ApplyReport apply(Subscriber& subscriber) = 0;
};

SyncReport run_source(Publisher& publisher, Transport& transport, std::chrono::milliseconds timeout,
                      SourceSteps& steps);
SyncReport run_receiver(Subscriber& subscriber, Transport& transport, int source, std::chrono::milliseconds timeout,
                        ReceiverSteps& steps);

}  // namespace sparsecast
