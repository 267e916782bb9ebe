#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "sparsecast/delta.hpp"
#include "sparsecast/error.hpp"
#include "sparsecast/export.hpp"

namespace sparsecast {

using Deadline = std::chrono::steady_clock::time_point;

/// A slow, reliable side channel between the ranks of a group: it forms communicators, takes decisions, and carries the
/// news of a failure to ranks that wait on a device. Every call except abort() and aborted() is collective, ends by
/// `deadline`, and throws Error{kTimeout | kPeerFailed | kGroupMismatch} otherwise; after that the channel is broken
/// and every rank of it learns so. One thread at a time (Error{kUsage}), but for abort().
class SPARSECAST_API ControlChannel {
 public:
  virtual ~ControlChannel() = default;
  virtual int rank() const noexcept = 0;
  virtual int size() const noexcept = 0;
  /// The longest part of one rank in all_gather, and of broadcast; more is Error{kUsage} and breaks the channel.
  virtual std::uint64_t max_blob_bytes() const noexcept { return std::uint64_t{1} << 20; }

  /// Every rank's bytes, in the order of ranks, on every rank.
  virtual std::vector<Bytes> all_gather(std::span<const std::byte> own, Deadline deadline) = 0;
  /// The bytes of rank 0, on every rank; `own` is ignored elsewhere.
  virtual Bytes broadcast(std::span<const std::byte> own, Deadline deadline) = 0;
  /// The largest status of all ranks. `coordinator` alone decides: once it has returned, its decision stands, even where
  /// it could not be delivered.
  virtual int agree(int status, int coordinator, Deadline deadline) = 0;
  /// Channels of the ranks of one `color` each, ordered by `key`, then rank. A negative color joins none: null.
  virtual std::shared_ptr<ControlChannel> split(int color, int key, Deadline deadline) = 0;

  /// Tells the others that this rank gives up, and why; best effort. The channel is broken then, and so are the
  /// channels that split() has made of it here. May be called by any thread at any time: a call that another one is in
  /// ends at once with Error{kPeerFailed} and the reason, and so does that of every other rank that waits in the
  /// channel; one that waits in a part of it hears of it within a second or two. But a decision that agree() has reached
  /// stands, and a split() whose part is being formed ends by its own deadline. Over MPI without MPI_THREAD_MULTIPLE,
  /// when no thread is in a call, it is the next call of the thread that makes them, or the end of the channel, that
  /// tells the others.
  virtual void abort(const std::string& reason) noexcept = 0;
  /// Why the channel is broken, or that a peer has given up or gone; asks without waiting.
  virtual std::optional<std::string> aborted() noexcept = 0;
};

}  // namespace sparsecast
