// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "sparsecast/control_channel.hpp"
#include "sparsecast/device.hpp"
#include "sparsecast/export.hpp"
#include "sparsecast/transport.hpp"

namespace sparsecast {

/// Returns true when this build of the library has the NCCL transport. The NCCL library itself is found at run time.
SPARSECAST_API bool nccl_available() noexcept;

/// Description of the NCCL library in this process.
struct NcclLibraryInfo {
  int version = 0;             ///< 22809 is 2.28.9.
  std::string path;            ///< The file that it was loaded from.
  std::string chosen_because;  ///< "SPARSECAST_NCCL_LIBRARY", "already loaded by this process", "found by the loader".
  std::vector<std::string> optional;  ///< Optional entry points that it has, for example "ncclCommShrink".
  std::vector<std::string> absent;    ///< Optional entry points that it lacks; fallbacks replace them.
};

/// Loads libnccl once a process: the file that the environment's SPARSECAST_NCCL_LIBRARY names, else the copy that is
/// loaded already (for example torch's), else the one that the system's loader finds. Throws Error{kUnsupported} that
/// lists the attempts.
SPARSECAST_API NcclLibraryInfo nccl_library();

/// Returns the version as text: "2.28.9" for 22809.
SPARSECAST_API std::string nccl_version_text(int version);

/// Settings of a channel. NcclTransport::open() takes `broadcast_ctas` and `suspend_between_rounds` from the
/// environment where they are not set here: SPARSECAST_NCCL_BROADCAST_CTAS, a number, and SPARSECAST_NCCL_SUSPEND, 1 or
/// 0; so they can be set under Python and the C interface, too.
struct NcclOptions {
  int device = -1;  ///< CUDA ordinal; -1: the calling thread's current device.
  /// Bytes of each of the two staging buffers, in device and in pinned host memory. Must be the same on every rank.
  std::uint64_t staging_bytes = std::uint64_t{32} << 20;
  std::uint64_t max_records = std::uint64_t{1} << 22;  ///< Limit that a receiver checks before it allocates.
  std::uint64_t max_bytes = std::uint64_t{1} << 40;    ///< Limit for all records, or all frames, of one transfer.
  /// Whether staging memory is allocated by ncclMemAlloc and registered, when every rank supports that.
  bool register_memory = true;
  /// Maximum CTAs of a communicator (ncclConfig_t::maxCTAs). Also limits its NCCL channels, whose buffers are most of
  /// the device memory that NCCL takes. 0: NCCL's choice. Must be the same on every rank, like `broadcast_ctas` and
  /// `suspend_between_rounds`.
  int max_ctas = 0;
  /// Maximum CTAs of one broadcast, where NCCL has ncclBroadcastConfig (2.31.2) on every rank; at most `max_ctas`. 0:
  /// as many as the communicator has. With a limit, NCCL launches each broadcast of a round separately.
  int broadcast_ctas = 0;
  /// Whether a round ends with ncclCommSuspend of its communicators, which frees memory of NCCL until their next use;
  /// only where NCCL has that call on every rank (2.29.7). NCCL suspends in the background, and waits there for all
  /// work of the device. The next use and the end of the channel first call ncclCommResume, which waits for all ranks.
  bool suspend_between_rounds = false;
  /// Tag of the broadcasts for NCCL's profiler plug-ins (ncclCollConfig_t::userProfilerTag, 2.31.2), below 2^63. 0:
  /// none.
  std::uint64_t profiler_tag = 0;
};

class NcclTransport;

/// One contiguous piece of a transfer's byte range, where the range is not a single allocation.
struct FramePiece {
  std::byte* data = nullptr;  ///< Only read on the source.
  std::uint64_t offset = 0;   ///< Offset of the piece in the bytes of the transfer.
  std::uint64_t bytes = 0;
  bool on_device = true;  ///< Device memory; otherwise host memory, of any kind.
};

/// One transfer of a round: everything that one source sends over one channel. Its byte range is the same on every rank
/// of the channel, whatever bytes the source puts there. The head tells receivers what they must know about the bytes.
struct FrameTransfer {
  static constexpr std::uint64_t kMaxHeadBytes = std::uint64_t{1} << 24;
  static constexpr std::uint32_t kMostHeadRoom = 8136;

  NcclTransport* channel = nullptr;
  int source = 0;  ///< Rank in the channel.
  int error = 0;   ///< Not 0: the ErrorCode that keeps the source from sending.
  Bytes head;      ///< At most kMaxHeadBytes.
  /// Expected bytes of the head, a multiple of 8 and equal on all ranks of the channel. This many bytes travel with the
  /// first launch; a longer head costs one more launch.
  std::uint32_t head_room = kMostHeadRoom;
  std::uint64_t bytes = 0;  ///< Length of the range.
  /// Device memory of the whole range, which NCCL reads on the source and writes on other ranks, without a copy. Null:
  /// the source gathers `pieces` in memory of the channel. Other ranks receive into memory of the channel and copy from
  /// there to `pieces`; bytes outside of all pieces are dropped.
  std::byte* d_frames = nullptr;
  /// Pieces in ascending order that do not overlap. Pieces in host memory pass through the staging buffers.
  std::vector<FramePiece> pieces;
  /// Stream for the order of this transfer: its device memory is read or written only after the work that is on the
  /// stream now, and on receivers later work on the stream sees the bytes. Null: no such order is needed.
  CUstream_st* stream = nullptr;
};

/// Description of how a channel was formed and what it uses, for logs.
struct NcclChannelReport {
  NcclLibraryInfo library;
  std::string formed_by;  ///< "init", "init with several roots", "split", "shrink" or "grow".
  bool registered = false;
  int device = 0;
  bool configured = false;  ///< NcclOptions::broadcast_ctas or profiler_tag are in effect.
  bool suspends = false;    ///< NcclOptions::suspend_between_rounds is in effect.
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
                                             Deadline deadline);
  ~NcclTransport() override;
  NcclTransport(const NcclTransport&) = delete;
  NcclTransport& operator=(const NcclTransport&) = delete;

  void broadcast(std::vector<Bytes>& records, int source, Deadline deadline) override;
  ControlChannel& control() const noexcept override;

  // A round brings the transfers of one or several channels, which were split from one another, from the memory of
  // their sources to the memory of all other ranks. Every rank of a channel passes all transfers of that channel, in
  // the same order, including transfers that it does not need. A failure breaks all channels of the round.

  /// Performs the first half of a round: one grouped launch of one small broadcast a transfer, a second launch where
  /// heads are long, and one wait of the host for each launch. Sources set `error`, or `head` and `bytes`; other ranks
  /// receive these fields, checked against NcclOptions::max_bytes. With an error, head and bytes are empty on every
  /// rank. Throws Error{kUsage} on a source whose head is too long; other ranks get that as the transfer's error.
  static void exchange_heads(std::span<FrameTransfer> transfers, Deadline deadline);
  /// Performs the second half: one grouped launch of one broadcast for each transfer with bytes, and one wait of the
  /// host (more where pieces are in host memory). `bytes` must be equal on all ranks, as exchange_heads leaves it. A
  /// receiver that names no memory takes part too: it receives into memory of the channel, which is kept for the next
  /// round. After an error the received bytes are undefined, but the device no longer uses the memory. Only where the
  /// device or NCCL hangs may it still use the memory: then the library frees no device memory any more (docs/nccl.md),
  /// and the caller must not either.
  static void broadcast_frames(std::span<FrameTransfer> transfers, Deadline deadline);

  /// Splits the channel into one for each color by ncclCommSplit; ranks are ordered by key, then rank. Returns null on
  /// a rank with a negative color.
  std::unique_ptr<NcclTransport> split(int color, int key, Deadline deadline);
  /// Makes the channel of a changed group: when ranks were lost, by ncclCommShrink where possible; when ranks join, by
  /// ncclCommGrow where possible; otherwise by a new communicator. `members` is a new control channel of the changed
  /// group; remaining ranks keep their order, and joining ranks come last. This channel cannot be used afterwards.
  std::unique_ptr<NcclTransport> reform(std::shared_ptr<ControlChannel> members, Deadline deadline);

  /// Aborts the communicator on this rank and tells the other ranks why.
  void abort(const std::string& reason) noexcept;
  const NcclChannelReport& report() const noexcept;

  class Group;  ///< Internal.
  class Round;  ///< Internal.
  explicit NcclTransport(std::unique_ptr<Group> channel);

 private:
  std::unique_ptr<Group> channel_;
};

}  // namespace sparsecast
