// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "sparsecast/delta.hpp"
#include "sparsecast/error.hpp"
#include "sparsecast/export.hpp"

namespace sparsecast {

/// Time by which a wait must end. One deadline limits the total time of several calls of a channel; a timeout for each
/// call would not.
using Deadline = std::chrono::steady_clock::time_point;

/// Returns the time until a deadline, for a call that takes a timeout; negative after the deadline.
inline std::chrono::milliseconds time_left(Deadline deadline) {
  return std::chrono::duration_cast<std::chrono::milliseconds>(deadline - std::chrono::steady_clock::now());
}

/// A slow, reliable side channel between the ranks of a group. It is used to form communicators, to take decisions, and
/// to notify ranks that wait on a device of a failure. Every call with a deadline is collective: all ranks must make
/// it. It succeeds by `deadline` or throws Error{kTimeout | kPeerFailed | kGroupMismatch}; after an error the channel
/// is broken, and all its ranks are notified. Only one thread at a time may use the channel (Error{kUsage}), except for
/// abort().
class SPARSECAST_API ControlChannel {
 public:
  virtual ~ControlChannel() = default;
  virtual int rank() const noexcept = 0;
  virtual int size() const noexcept = 0;
  /// Returns the maximum number of bytes that one rank may pass to all_gather, and rank 0 to broadcast. A longer
  /// message is Error{kUsage} and breaks the channel.
  virtual std::uint64_t max_blob_bytes() const noexcept { return std::uint64_t{1} << 20; }

  /// Returns every rank's bytes, in the order of ranks, on every rank.
  virtual std::vector<Bytes> all_gather(std::span<const std::byte> own, Deadline deadline) = 0;
  /// Function that combines all ranks' parts, in the order of ranks, into one message. The message must depend only on
  /// the parts and on values that are equal on all ranks, because the rank on which the function runs is unspecified.
  using Combine = std::function<Bytes(const std::vector<Bytes>& parts)>;
  /// Returns on every rank the result of `combine` for all ranks' bytes. Depending on the channel, `combine` runs on
  /// one rank, so that no other rank receives all parts, or on every rank. An error that `combine` throws ends the call
  /// on all ranks; a rank on which `combine` ran throws it with its own code. The default calls all_gather, then runs
  /// `combine` on each rank.
  virtual Bytes reduce(std::span<const std::byte> own, const Combine& combine, Deadline deadline) {
    return combine(all_gather(own, deadline));
  }
  /// Returns the bytes of rank 0 on every rank; `own` is ignored on the other ranks.
  virtual Bytes broadcast(std::span<const std::byte> own, Deadline deadline) = 0;
  /// Returns the largest `status` of all ranks, on every rank. The rank `coordinator` decides alone: once its call has
  /// returned, the result stands, even when it could not be delivered to some ranks.
  virtual int agree(int status, int coordinator, Deadline deadline) = 0;
  /// Splits the channel into one channel for each color, and returns the channel of this rank's `color`. In the new
  /// channel, ranks are ordered by `key`, then by their rank in this channel. Returns null on a rank with a negative
  /// color.
  virtual std::shared_ptr<ControlChannel> split(int color, int key, Deadline deadline) = 0;

  /// Tells the other ranks, if possible, that this rank gives up, and why. The channel is broken then, and so are the
  /// channels that split() has made from it on this rank. Any thread may call it at any time. A call in progress in
  /// another thread ends at once with Error{kPeerFailed} and the reason, and so do the calls of all other ranks that
  /// wait in the channel; a rank that waits in a channel split from it is notified within a second or two. A decision
  /// that agree() has reached stands, and a split() that is forming a channel ends by its own deadline. Over MPI
  /// without MPI_THREAD_MULTIPLE, when no call is in progress, the other ranks are told by the next call of the thread
  /// that uses the channel, or when the channel is destroyed.
  virtual void abort(const std::string& reason) noexcept = 0;
  /// Returns the reason when the channel is broken, or a peer has given up or disconnected; nullopt otherwise. Does not
  /// wait.
  virtual std::optional<std::string> aborted() noexcept = 0;
};

}  // namespace sparsecast
