#pragma once

// A trainer and its engines that hold the same tensors cut differently: every trainer rank publishes its own shards,
// every engine rank gets what it holds, and all of them reach a version together. docs/fanout.md tells the whole story.

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "sparsecast/control_channel.hpp"
#include "sparsecast/device.hpp"
#include "sparsecast/export.hpp"
#include "sparsecast/fanout_plan.hpp"
#include "sparsecast/nccl_transport.hpp"
#include "sparsecast/publisher.hpp"
#include "sparsecast/subscriber.hpp"
#include "sparsecast/transport.hpp"

namespace sparsecast {

/// Opens the channels of a plan that `rank` (of the world) is a member of; parallel to plan.groups(), null elsewhere.
/// Collective over the world.
using GroupOpener = std::function<std::vector<std::unique_ptr<Transport>>(ControlChannel& world,
                                                                            const FanoutPlan& plan, Deadline deadline)>;

/// Records travel over the world's own control channel, split once a round of the plan (tcp_transport.hpp).
SPARSECAST_API GroupOpener open_control_groups();
/// An MPI communicator a channel, made by its members alone (MPI_Comm_create_group), after all ranks have said within
/// the deadline that they are about to. `communicator` points to the MPI_Comm whose ranks are the world's, null for
/// MPI_COMM_WORLD; it outlives the opener. Throws Error{kUnsupported} without MPI.
SPARSECAST_API GroupOpener open_mpi_groups(const void* communicator = nullptr);
/// One NCCL communicator over the world, split into the channels, once a round of the plan. The channels of a rank
/// share its staging memory (options.staging_bytes). Throws as NcclTransport::open.
SPARSECAST_API GroupOpener open_nccl_groups(const NcclOptions& options);

struct ShardedOptions {
  StreamId stream;            ///< All zero: derived from the tensors. The same on every rank.
  std::uint64_t version = 0;  ///< That the memory holds now.
  EncodeOptions encode;       ///< Publisher.
  PlanOptions plan;           ///< The publisher's of trainer rank 0 are everybody's.
  /// Publisher: what the elements of its local tensors are, one dtype for each; empty: all are what the layout says. A
  /// kF32 where the layout says kBF16 is the fp32 master of such a tensor, laid out alike: engines get its cast
  /// (rounded as by make_fused_cast), and the snapshot is the only copy of that which the rank keeps (a cast snapshot).
  /// Any other difference is Error{kUsage}.
  std::vector<DType> local_dtypes;
  int threads = 1;                    ///< Subscriber: for apply and digests; 0: all cores.
  std::uint32_t audit_versions = 64;  ///< Subscriber: as SubscriberOptions.
  /// Subscriber: the memory holds no version yet. The trainer seeds it in the next regroup().
  bool needs_anchor = false;
  bool report_tensors = false;  ///< Publisher: fill in ShardedReport::tensors; costs a look at every block's entry.
};

/// What a rank has sent of a canonical tensor. Elements that went in several deltas, for engines of other cuts, count
/// in each.
struct SentTensor {
  std::string name;
  std::uint64_t elements = 0;  ///< Of the boxes that this rank sends.
  std::uint64_t changed = 0;
  std::uint64_t bytes = 0;         ///< Directory entries and payload.
  std::uint64_t dense_blocks = 0;  ///< Blocks sent whole because that was smaller.
  std::uint64_t blocks = 0;
};

/// What one sync did on this rank, over all its routes.
struct ShardedReport {
  std::uint64_t version = 0;
  std::uint64_t changed = 0;         ///< Elements in the deltas that it sent.
  std::uint64_t applied = 0;         ///< Elements in those that it applied.
  std::uint64_t sent_bytes = 0;      ///< Of its own deltas, each once, however many ranks got it.
  std::uint64_t received_bytes = 0;  ///< Of deltas for this rank.
  std::uint64_t foreign_bytes = 0;   ///< Of deltas for others of a channel, dropped unread.
  // The first three overlap, so that their sum may be more than the total.
  double encode_seconds = 0;  ///< That routes were being detected and encoded.
  double wire_seconds = 0;    ///< In transfers, with the waits for other ranks; not the wait for an own route.
  double stage_seconds = 0;   ///< That what came was being verified.
  double apply_seconds = 0;   ///< The pause.
  double total_seconds = 0;
  std::uint64_t blocks_by_codec[5] = {};  ///< Of what was sent, with report_tensors; index: PositionCodec.
  std::vector<SentTensor> tensors;        ///< With report_tensors: what this rank sends, in the plan's order.
};

/// The trainer's end on one rank. Not thread-safe. sync() encodes routes ahead of the wire on a thread of its own, which
/// has ended when it returns; all calls of the channels are made by the calling thread.
///
///     regroup() --> sync() --> sync() --> ... --> regroup() whenever an engine joins, leaves, dies or is cut anew
class SPARSECAST_API ShardedPublisher {
 public:
  /// `local[i]` is the memory of layout.ranks()[rank].tensors[i], contiguous, of the layout's dtype or that of
  /// options.local_dtypes; the caller owns it, and it stays where it is. `layout` is the whole trainer's, the same on
  /// all its ranks. The first regroup() copies, or casts, the tensors that this rank sends (the snapshot): they must
  /// then hold options.version. Throws Error{kUsage} for memory that does not fit.
  ShardedPublisher(std::shared_ptr<const Layout> layout, std::size_t rank, std::vector<TensorBytes> local,
                   ShardedOptions options);
  /// The same for tensors in device memory, aligned to their elements; one without elements may have a null pointer.
  /// The snapshot lies there as well; records come to the host, where the channels take them. All work is enqueued on
  /// `device.stream`, or, when that is null, on one stream of the object's own for all routes: when regroup() or sync()
  /// is called, the tensors are complete for what follows on that stream, and they stay as they are until it returns.
  /// Several threads enqueue there: Error{kUsage} for cudaStreamPerThread, which is another one on each.
  /// No wait for the device is longer than `device.deadline`, and `device.chunk_bytes` holds for each route. Throws
  /// Error{kUnsupported} without a device backend or a device, or for options.encode.zstd_level other than 0, and
  /// Error{kUsage} for pointers that do not fit.
  ShardedPublisher(std::shared_ptr<const Layout> layout, std::size_t rank, std::vector<void*> d_local,
                   ShardedOptions options, const DeviceOptions& device);
  ~ShardedPublisher();
  ShardedPublisher(ShardedPublisher&&) noexcept;
  ShardedPublisher& operator=(ShardedPublisher&&) noexcept;

  /// Collective over `world`: all ranks of the trainer and of all engines, in any order; replaces the group before.
  /// Exchanges the layouts, settles a sync whose fate was in doubt, plans, opens the channels, seeds the engines that
  /// have no anchor or another version, and verifies that every destination holds the committed version. Throws what the plan,
  /// the control channel and the transports throw, and Error{kGroupMismatch | kWrongBase | kDigestMismatch} that names
  /// the rank, or the engine; the committed version stands then, and regroup() can be called again.
  void regroup(std::shared_ptr<ControlChannel> world, const GroupOpener& open, std::chrono::milliseconds timeout);

  /// Collective over the world: brings the weights as they are now to every engine. When it throws, no rank claims the
  /// new version, and the group is broken: regroup() with whoever is left comes next. The error is this rank's own, or
  /// kPeerFailed that names a rank that failed and its words, kDigestMismatch that names an engine, kTimeout.
  ShardedReport sync(std::chrono::milliseconds timeout);

  /// Of the group; Error{kUsage} before the first regroup().
  const FanoutPlan& plan() const;
  std::uint64_t version() const noexcept;  ///< Last committed.
  /// Of the canonical tensors at that version: what `sparsecast digest` says of such a checkpoint.
  const StateDigest& digest() const noexcept;
  /// Of the snapshot, in the memory that the tensors are in: the only copy of them that is kept.
  std::uint64_t snapshot_bytes() const noexcept;

 private:
  friend class ColocatedRank;
  struct State;
  std::unique_ptr<State> state_;
};

/// An engine's end on one rank. Not thread-safe. sync() and receive() verify what has come on a thread of their own,
/// which has ended when they return; all calls of the channels are made by the calling thread.
class SPARSECAST_API ShardedSubscriber {
 public:
  /// As ShardedPublisher, but without local_dtypes; `engine` names the engine, whose ranks share the layout.
  ShardedSubscriber(std::string engine, std::shared_ptr<const Layout> layout, std::size_t rank,
                    std::vector<TensorBytes> local, ShardedOptions options);
  /// The same for tensors in device memory, as with ShardedPublisher. Nothing else reads or writes them while
  /// regroup() or sync() runs, but for what is on the stream before. When sync() returns, the new version has been
  /// verified there, and whatever is enqueued from then on, on any stream, sees it. `options.threads` is of no use.
  ShardedSubscriber(std::string engine, std::shared_ptr<const Layout> layout, std::size_t rank,
                    std::vector<void*> d_local, ShardedOptions options, const DeviceOptions& device);
  ~ShardedSubscriber();
  ShardedSubscriber(ShardedSubscriber&&) noexcept;
  ShardedSubscriber& operator=(ShardedSubscriber&&) noexcept;

  /// As ShardedPublisher::regroup. Should it fail while the rank is being seeded, its memory is half-written, and the
  /// next one seeds it again.
  void regroup(std::shared_ptr<ControlChannel> world, const GroupOpener& open, std::chrono::milliseconds timeout);
  /// Before a regroup() of an engine that has moved its experts between its ranks, contents included. Throws
  /// Error{kUsage} while a version is in doubt.
  void replace(std::shared_ptr<const Layout> layout, std::vector<TensorBytes> local);
  void replace(std::shared_ptr<const Layout> layout, std::vector<void*> d_local, const DeviceOptions& device);

  /// As ShardedPublisher::sync. When it throws, the rank holds the version that it held before, or one whose fate is in
  /// doubt and is settled by the next regroup().
  ShardedReport sync(std::chrono::milliseconds timeout);
  /// The first half of sync(), for engines that go on generating meanwhile: returns when every rank of the world has
  /// sent or staged everything. Live memory is only read. Fails as sync(). Threads may take turns, one call at a time;
  /// with NCCL channels this is called by the thread that called regroup().
  void receive(std::chrono::milliseconds timeout);
  /// The second half, the pause: writes, verifies, and waits for every engine and the decision; the trainer's sync() waits
  /// for it within its own timeout. Throws Error{kUsage} without a receive() before it, and fails as sync().
  ShardedReport apply(std::chrono::milliseconds timeout);

  /// As Subscriber::audit_next and audit, over this rank's routes.
  std::uint64_t audit_next();
  void audit();

  const FanoutPlan& plan() const;
  std::uint64_t version() const noexcept;  ///< Last verified.

 private:
  friend class ColocatedRank;
  struct State;
  std::unique_ptr<State> state_;
};

/// A rank of the world that is a trainer's and an engine's at once; what it sends to itself never leaves it. Its two
/// ends outlive it, and neither's own regroup() and sync() are used beside it.
class SPARSECAST_API ColocatedRank {
 public:
  ColocatedRank(ShardedPublisher& publisher, ShardedSubscriber& subscriber)
      : publisher_(publisher), subscriber_(subscriber) {}
  void regroup(std::shared_ptr<ControlChannel> world, const GroupOpener& open, std::chrono::milliseconds timeout);
  ShardedReport sync(std::chrono::milliseconds timeout);

 private:
  ShardedPublisher& publisher_;
  ShardedSubscriber& subscriber_;
};

}  // namespace sparsecast
