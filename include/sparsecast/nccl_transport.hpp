// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "sparsecast/control_channel.hpp"
#include "sparsecast/export.hpp"
#include "sparsecast/transport.hpp"

namespace sparsecast {

class NcclGroup;

/// Returns true when this build of the library has the NCCL transport. The NCCL library itself is found at run time.
SPARSECAST_API bool nccl_available() noexcept;

/// Description of the NCCL library in this process.
struct NcclLibraryInfo {
  int version = 0;   ///< Version of the library as NCCL numbers it: 22809 is 2.28.9.
  std::string path;  ///< Path of the file that the library was loaded from.
  /// Reason why this file was chosen: "SPARSECAST_NCCL_LIBRARY", "already loaded by this process", "found by the
  /// loader".
  std::string chosen_because;
  std::vector<std::string> optional;  ///< Optional functions that the library has, for example "ncclCommShrink".
  std::vector<std::string> absent;    ///< Optional functions that the library lacks, so that fallbacks are used.
};

/// Returns the description of libnccl, which the first call loads: the file that the environment's
/// SPARSECAST_NCCL_LIBRARY names, else the copy that is loaded already (for example torch's), else the file that the
/// system's loader finds. Throws Error{kUnsupported} that lists the attempts.
SPARSECAST_API NcclLibraryInfo nccl_library();

/// Returns a version number of NCCL as text: "2.28.9" for 22809.
SPARSECAST_API std::string nccl_version_text(int version);

/// Settings of a channel. NcclTransport::open() takes `broadcast_ctas` and `suspend_between_rounds` from the
/// environment where they are not set here: SPARSECAST_NCCL_BROADCAST_CTAS, a number, and SPARSECAST_NCCL_SUSPEND, 1 or
/// 0; so they can be set under Python and the C interface, too.
struct NcclOptions {
  int device = -1;  ///< CUDA ordinal; -1: the calling thread's current device.
  /// Bytes of each of the two staging buffers, in device and in pinned host memory. Must be the same on every rank.
  std::uint64_t staging_bytes = std::uint64_t{32} << 20;
  /// Maximum number of records of one transfer; a receiver checks it before it allocates memory.
  std::uint64_t max_records = std::uint64_t{1} << 22;
  /// Maximum number of bytes of all records, or all frames, of one transfer.
  std::uint64_t max_bytes = std::uint64_t{1} << 40;
  /// Whether staging memory is allocated by ncclMemAlloc and registered, when every rank supports that.
  bool register_memory = true;
  /// Maximum number of CTAs (thread blocks) of a communicator (ncclConfig_t::maxCTAs). Also limits its NCCL channels,
  /// whose buffers are most of the device memory that NCCL takes. 0: NCCL's choice. Must be the same on every rank,
  /// like `broadcast_ctas` and `suspend_between_rounds`.
  int max_ctas = 0;
  /// Maximum number of CTAs of one broadcast, at most `max_ctas`. It has an effect only where NCCL has
  /// ncclBroadcastConfig (2.31.2) on every rank. 0: as many as the communicator uses. With a limit, NCCL launches each
  /// broadcast of a round separately.
  int broadcast_ctas = 0;
  /// Whether ncclCommSuspend is called at the end of a round for its communicators, which frees memory of NCCL until
  /// their next use. It has an effect only where NCCL has that call on every rank (2.29.7). NCCL suspends in the
  /// background, and waits there for all work of the device. The next use and the end of the channel first call
  /// ncclCommResume, which waits for all ranks.
  bool suspend_between_rounds = false;
  /// Tag of the broadcasts for NCCL's profiler plug-ins (ncclCollConfig_t::userProfilerTag, 2.31.2), below 2^63. 0:
  /// none.
  std::uint64_t profiler_tag = 0;
};

/// Description of how a channel was formed and what it uses, for logs.
struct NcclChannelReport {
  NcclLibraryInfo library;
  /// How the communicator was made: "init", "init with several roots", "split", "shrink" or "grow".
  std::string formed_by;
  bool registered = false;  ///< Whether staging memory is registered with NCCL (NcclOptions::register_memory).
  int device = 0;
  bool configured = false;  ///< Whether NcclOptions::broadcast_ctas or profiler_tag are in effect.
  bool suspends = false;    ///< Whether NcclOptions::suspend_between_rounds is in effect.
};

/// A channel over one non-blocking NCCL communicator with its own watchdog. All channels of a device must be used in
/// one thread (another thread gets Error{kUsage}) and share one stream, so that their operations have one order. After
/// any failure the communicator is aborted on this rank, the other ranks are notified through the control channel and
/// abort theirs, and every later call throws; reform() makes a new channel. docs/nccl.md gives the details.
class SPARSECAST_API NcclTransport final : public Transport {
 public:
  /// Opens a channel, collectively over `control`, which belongs to the channel from now on. Throws Error:
  /// kGroupMismatch when ranks disagree on versions or settings or share a GPU, kUsage for options out of range,
  /// kTimeout, kPeerFailed, kDevice, kUnsupported (no NCCL); kDevice also after work of an earlier channel that could
  /// not be stopped. A rank that joins an existing channel calls this while the others call reform().
  static std::unique_ptr<NcclTransport> open(std::shared_ptr<ControlChannel> control, const NcclOptions& options,
                                             std::chrono::milliseconds timeout);
  ~NcclTransport() override;
  NcclTransport(const NcclTransport&) = delete;
  NcclTransport& operator=(const NcclTransport&) = delete;

  void broadcast(std::vector<Bytes>& records, int source, Deadline deadline) override;
  ControlChannel& control() const noexcept override;
  FrameChannel* frames() noexcept override;

  /// Splits the channel by ncclCommSplit into one channel for each color, and returns the channel of this rank's
  /// `color`; its ranks are ordered by `key`, then rank. Returns null on a rank with a negative color.
  std::unique_ptr<NcclTransport> split(int color, int key, std::chrono::milliseconds timeout);
  /// Returns the channel of a changed group: when ranks were lost, by ncclCommShrink where possible; when ranks join,
  /// by ncclCommGrow where possible; otherwise by a new communicator. `members` is a new control channel of the changed
  /// group; remaining ranks keep their order, and joining ranks come last. This channel cannot be used afterwards.
  std::unique_ptr<NcclTransport> reform(std::shared_ptr<ControlChannel> members, std::chrono::milliseconds timeout);

  /// Aborts the communicator on this rank, and tells the other ranks `reason`.
  void abort(const std::string& reason) noexcept;
  const NcclChannelReport& report() const noexcept;

  explicit NcclTransport(std::unique_ptr<NcclGroup> group);  ///< Internal: makes the channel of a formed group.

 private:
  std::unique_ptr<NcclGroup> group_;
};

}  // namespace sparsecast
