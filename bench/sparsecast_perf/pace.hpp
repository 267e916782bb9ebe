// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <mutex>

#include "sparsecast/sharded.hpp"
#include "sparsecast_perf/memory_broadcast.hpp"
#include "sparsecast_perf/wire.hpp"

namespace sparsecast::perf {

/// Token bucket of one link. It holds up to `burst_bytes` tokens, one for each byte that may pass at once, and gains
/// `bytes_per_second` of them. A sender takes the tokens of a whole message and may go into debt; the message has
/// passed the link when the debt is paid. It reads no clock, so that its owner decides what time is.
class TokenBucket {
 public:
  using Clock = std::chrono::steady_clock;

  /// Creates a full bucket. Throws Error{kUsage} unless the rate is positive and the burst is not negative.
  TokenBucket(double bytes_per_second, double burst_bytes, Clock::time_point now);

  /// Takes one token for each of `bytes` at `now`, which never goes back. Returns the time at which the last byte has
  /// passed, which is `now` where there were tokens for all of them.
  Clock::time_point take(std::uint64_t bytes, Clock::time_point now);

 private:
  double bytes_per_second_;
  double burst_bytes_;
  double tokens_;  ///< Negative: a debt.
  Clock::time_point counted_;
};

/// Outgoing link of one rank. Any thread may use it.
class PacedLink {
 public:
  /// Bytes that may pass at once after a pause: one frame of Ethernet.
  static constexpr double kBurstBytes = 1500;

  /// `gigabits_per_second`: rate in 10^9 bits a second.
  explicit PacedLink(double gigabits_per_second);

  /// Returns the time at which a message of `bytes` that is handed to the link now has passed it.
  Deadline take(std::uint64_t bytes);
  /// Sleeps until `passed`, the last part by spinning. Throws Error{kTimeout} at once if that is later than `deadline`.
  static void wait(Deadline passed, Deadline deadline);

 private:
  std::mutex mutex_;
  TokenBucket bucket_;
};

/// When a source waits for its link.
enum class Payment {
  kBefore,  ///< Before the transport carries the message: no receiver has a byte before the link could have brought it.
  kAlongside,  ///< While it does: takes the longer of the two times. For broadcasts whose end is a barrier.
};

/// Decorates a transport: a broadcast takes its source at least as long as `link` needs for the bytes. Votes are not
/// paced.
std::unique_ptr<Transport> make_paced_transport(std::unique_ptr<Transport> transport, std::shared_ptr<PacedLink> link,
                                                Payment payment);
/// Decorates the groups that `open` makes, all of them over one link of this rank.
GroupOpener paced_groups(GroupOpener open, std::shared_ptr<PacedLink> link, Payment payment);
/// Decorates a wire of host memory from Wire::start_timing() on: its transport pays before, its dense broadcast
/// alongside, out of one bucket. Unless `dense` is null, the dense broadcast goes through it instead.
std::unique_ptr<Wire> make_paced_wire(std::unique_ptr<Wire> wire, double gigabits_per_second, bool publishes,
                                      std::unique_ptr<MemoryBroadcast> dense);

}  // namespace sparsecast::perf
