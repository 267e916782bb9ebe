// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "sparsecast/control_channel.hpp"
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

struct NcclOptions {
  int device = -1;  ///< CUDA ordinal; -1: the calling thread's current device.
  /// Bytes of each of the two staging buffers, in device and in pinned host memory; also the maximum device bucket.
  /// Must be the same on every rank.
  std::uint64_t staging_bytes = std::uint64_t{32} << 20;
  std::uint64_t max_records = std::uint64_t{1} << 22;  ///< Limit that a receiver checks before it allocates.
  std::uint64_t max_bytes = std::uint64_t{1} << 40;    ///< Limit for all records of one broadcast.
  /// Whether staging memory is allocated by ncclMemAlloc and registered, when every rank supports that.
  bool register_memory = true;
};

/// One bucket in device memory.
struct DeviceBucket {
  const void* d_data = nullptr;
  std::uint64_t bytes = 0;
};

/// Called on a receiver for each bucket, in order. Work enqueued on `stream` (a cudaStream_t) from now on sees bucket
/// `index` at `d_data` (device memory of the transport). The consumer enqueues its reads on `stream` and returns; the
/// bucket is overwritten only after that work.
using DeviceConsumer = std::function<void(std::size_t index, const void* d_data, std::uint64_t bytes, void* stream)>;

/// Description of how a channel was formed and what it uses, for logs.
struct NcclChannelReport {
  NcclLibraryInfo library;
  std::string formed_by;  ///< "init", "init with several roots", "split", "shrink" or "grow".
  bool registered = false;
  int device = 0;
};

/// A channel over one non-blocking NCCL communicator with its own watchdog. All channels of a device must be used in
/// one thread (another thread gets Error{kUsage}) and share one stream, so that their operations have one order. After
/// any failure the communicator is aborted on this rank, the other ranks are notified through the control channel and
/// abort theirs, and every later call throws; reform() makes a new channel. docs/nccl.md gives the details.
class SPARSECAST_API NcclTransport final : public Transport {
 public:
  /// Opens a channel, collectively over `control`, which belongs to the channel from now on. Throws Error:
  /// kGroupMismatch when ranks disagree on versions or settings or share a GPU, kTimeout, kPeerFailed, kDevice,
  /// kUnsupported (no NCCL). A rank that joins an existing channel calls this while the others call reform().
  static std::unique_ptr<NcclTransport> open(std::shared_ptr<ControlChannel> control, const NcclOptions& options,
                                             Deadline deadline);
  ~NcclTransport() override;
  NcclTransport(const NcclTransport&) = delete;
  NcclTransport& operator=(const NcclTransport&) = delete;

  int rank() const noexcept override;
  int size() const noexcept override;
  void broadcast(std::vector<Bytes>& records, int source, Deadline deadline) override;
  int agree(int status, Deadline deadline) override;

  /// Broadcasts from device memory to device memory: first a table of sizes, then each bucket by one broadcast. The
  /// host waits only at the end, not for each bucket. On the source, `buckets` is the input, which is read after the
  /// work that is on `ready_stream` now (a cudaStream_t; null: the buckets are ready). On other ranks it is ignored,
  /// and `consume` gets the buckets. Returns the sizes on every rank. Also when it throws, the device no longer uses
  /// the buckets, unless the device hangs.
  std::vector<std::uint64_t> broadcast_device(std::span<const DeviceBucket> buckets, int source,
                                              const DeviceConsumer& consume, Deadline deadline,
                                              void* ready_stream = nullptr);

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

  class Group;       ///< Internal.
  class DeviceSync;  ///< Internal.
  explicit NcclTransport(std::unique_ptr<Group> channel);

 private:
  std::uint64_t bucket_bytes() const noexcept;  ///< Maximum bucket of broadcast_device.
  void copy_on_device(void* d_to, const void* d_from, std::uint64_t bytes, void* stream);

  std::unique_ptr<Group> channel_;
};

/// Versions of sync_send and sync_receive (transport.hpp) whose frames never leave device memory. One small broadcast
/// carries header, commit and the frames' sizes. Then each frame is one broadcast (or several, if it is longer than
/// staging_bytes), which receivers copy to their staging memory. Publisher and subscriber must have their tensors on
/// the transport's device. `weights_ready` is as in Publisher::publish, `order` as in Subscriber::apply.
SPARSECAST_API SyncReport sync_send(Publisher& publisher, NcclTransport& transport, std::chrono::milliseconds timeout,
                                    CUevent_st* weights_ready);
SPARSECAST_API SyncReport sync_receive(Subscriber& subscriber, NcclTransport& transport, int source,
                                       std::chrono::milliseconds timeout, const ApplyOrder& order);

}  // namespace sparsecast
