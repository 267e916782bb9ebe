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

/// True when this build of the library has the NCCL transport. The NCCL library itself is found at run time.
SPARSECAST_API bool nccl_available() noexcept;

/// The NCCL library of this process.
struct NcclLibraryInfo {
  int version = 0;             ///< 22809 is 2.28.9.
  std::string path;            ///< The file that it was loaded from.
  std::string chosen_because;  ///< "SPARSECAST_NCCL_LIBRARY", "already loaded by this process", "found by the loader".
  std::vector<std::string> optional;  ///< Optional entry points that it has, for example "ncclCommShrink".
  std::vector<std::string> absent;    ///< Optional ones that it lacks: something else is done instead.
};

/// Loads libnccl, once a process: the file that the environment's SPARSECAST_NCCL_LIBRARY names, else the copy that is
/// loaded already (torch's), else what the system's loader finds. Throws Error{kUnsupported} that says what was tried.
SPARSECAST_API NcclLibraryInfo nccl_library();

/// "2.28.9" of 22809.
SPARSECAST_API std::string nccl_version_text(int version);

struct NcclOptions {
  int device = -1;  ///< CUDA ordinal; -1: the calling thread's current device.
  /// Each of the two staging buffers, in device and in pinned host memory; also the largest device bucket. The same on
  /// every rank.
  std::uint64_t staging_bytes = std::uint64_t{32} << 20;
  std::uint64_t max_records = std::uint64_t{1} << 22;  ///< A receiver refuses more before it allocates.
  std::uint64_t max_bytes = std::uint64_t{1} << 40;    ///< Of all records of one broadcast.
  /// Take staging memory from ncclMemAlloc and register it, where every rank can.
  bool register_memory = true;
};

/// One bucket in device memory.
struct DeviceBucket {
  const void* d_data = nullptr;
  std::uint64_t bytes = 0;
};

/// On a receiver, in order: bucket `index` lies at `d_data` (device memory of the transport) from where `stream` (a
/// cudaStream_t) stands. Enqueue on `stream` what reads it, and return; it is overwritten only after that work.
using DeviceConsumer = std::function<void(std::size_t index, const void* d_data, std::uint64_t bytes, void* stream)>;

/// How a channel came to be and what it uses; for logs.
struct NcclChannelReport {
  NcclLibraryInfo library;
  std::string formed_by;  ///< "init", "init with several roots", "split", "shrink" or "grow".
  bool registered = false;
  int device = 0;
};

/// A channel over one NCCL communicator, non-blocking, with its own watchdog. All channels of a device are used from
/// one thread (another one gets Error{kUsage}) and share one stream, so their operations have one order. After any
/// failure the communicator is stopped on this rank, the others learn of it through the control channel and stop
/// theirs, and every later call throws; reform() makes a new channel. docs/nccl.md has the whole story.
class SPARSECAST_API NcclTransport final : public Transport {
 public:
  /// Collective over `control`, which belongs to the channel from now on. Throws Error: kGroupMismatch when ranks
  /// disagree on versions or settings or share a GPU, kTimeout, kPeerFailed, kDevice, kUnsupported (no NCCL). A rank
  /// that joins an existing channel calls this while the others call reform().
  static std::unique_ptr<NcclTransport> open(std::shared_ptr<ControlChannel> control, const NcclOptions& options,
                                             Deadline deadline);
  ~NcclTransport() override;
  NcclTransport(const NcclTransport&) = delete;
  NcclTransport& operator=(const NcclTransport&) = delete;

  int rank() const noexcept override;
  int size() const noexcept override;
  void broadcast(std::vector<Bytes>& records, int source, Deadline deadline) override;
  int agree(int status, Deadline deadline) override;

  /// Device memory to device memory: one count table, then one large broadcast a bucket; the host waits for no bucket,
  /// only at the end. On the source `buckets` is input, read after what is on `ready_stream` now (a cudaStream_t; null:
  /// they are ready); elsewhere it is ignored and `consume` gets them. Returns the sizes, on every rank. When it
  /// throws, the device is done with the buckets as well, unless it hangs for good.
  std::vector<std::uint64_t> broadcast_device(std::span<const DeviceBucket> buckets, int source,
                                              const DeviceConsumer& consume, Deadline deadline,
                                              void* ready_stream = nullptr);

  /// A channel for each color, by ncclCommSplit; ordered by key, then rank. A negative color joins none: null.
  std::unique_ptr<NcclTransport> split(int color, int key, Deadline deadline);
  /// The channel of a changed group: of the survivors when ranks were lost (ncclCommShrink where possible), of more
  /// ranks when some join (ncclCommGrow where possible), else a new communicator. `members` is a control channel that
  /// they have met on anew; ranks that stay keep their order, those that join come last. This channel is used up.
  std::unique_ptr<NcclTransport> reform(std::shared_ptr<ControlChannel> members, Deadline deadline);

  /// Gives up: stops the communicator here and tells the other ranks why.
  void abort(const std::string& reason) noexcept;
  const NcclChannelReport& report() const noexcept;

  class Group;     ///< Internal.
  class DeviceSync;  ///< Internal.
  explicit NcclTransport(std::unique_ptr<Group> channel);

 private:
  std::uint64_t bucket_bytes() const noexcept;  ///< The largest of broadcast_device.
  void copy_on_device(void* d_to, const void* d_from, std::uint64_t bytes, void* stream);

  std::unique_ptr<Group> channel_;
};

/// sync_send and sync_receive (transport.hpp) with frames that never leave device memory: one small broadcast carries
/// header, commit and the frames' sizes, then each frame is one broadcast (several, if it is longer than
/// staging_bytes), which receivers take to where they stage it. Publisher and subscriber have their tensors on the
/// transport's device. `weights_ready` as in Publisher::publish, `order` as in Subscriber::apply.
SPARSECAST_API SyncReport sync_send(Publisher& publisher, NcclTransport& transport, std::chrono::milliseconds timeout,
                                    CUevent_st* weights_ready);
SPARSECAST_API SyncReport sync_receive(Subscriber& subscriber, NcclTransport& transport, int source,
                                       std::chrono::milliseconds timeout, const ApplyOrder& order);

}  // namespace sparsecast
