// SPDX-License-Identifier: Apache-2.0
#pragma once

// Synchronises a trainer and its engines that shard the same tensors differently: every trainer rank publishes its own
// shards, every engine rank gets the elements that it holds, and all of them reach a version together. docs/fanout.md
// gives the details.

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

/// Function that opens a channel for each group of the plan that has the calling rank as a member. The result is
/// parallel to plan.groups(), and null for groups without this rank. All ranks of `world` must call it.
using GroupOpener = std::function<std::vector<std::unique_ptr<Transport>>(ControlChannel& world, const FanoutPlan& plan,
                                                                          Deadline deadline)>;

/// Returns an opener whose channels send records over the world's own control channel, which is split once per round of
/// the plan (tcp_transport.hpp).
SPARSECAST_API GroupOpener open_control_groups();
/// Returns an opener that makes one MPI communicator per channel. Only the members of a channel make its communicator
/// (MPI_Comm_create_group), after all ranks have announced this within the deadline. `communicator` points to the
/// MPI_Comm whose ranks are the world's (null: MPI_COMM_WORLD), and must outlive the opener. Throws Error{kUnsupported}
/// in a build without MPI.
SPARSECAST_API GroupOpener open_mpi_groups(const void* communicator = nullptr);
/// Returns an opener that makes one NCCL communicator over the world. For each round of the plan it splits this
/// communicator once, into the channels of the round's groups. The channels of a rank share its staging memory
/// (options.staging_bytes). The opener throws the errors of NcclTransport::open.
SPARSECAST_API GroupOpener open_nccl_groups(const NcclOptions& options);

struct ShardedOptions {
  StreamId stream;            ///< Identifier of the stream, the same on every rank; all zero: derived from the tensors.
  std::uint64_t version = 0;  ///< Version of the weights that the memory holds now.
  EncodeOptions encode;       ///< Publisher: options of the encoder.
  PlanOptions plan;           ///< Options of the plan; all ranks use those that trainer rank 0 has set.
  /// Publisher with tensors in device memory: whether the snapshot (for masters, the snapshot of their cast) is in
  /// pinned host memory, for trainers without spare device memory. The kernels read the snapshot there and write
  /// changed elements to it, so each sync moves all bytes of the snapshot over the bus. Error{kUsage} for tensors in
  /// host memory.
  bool pinned_snapshot = false;
  int threads = 1;  ///< Subscriber: number of host threads for apply and digests; 0: all cores.
  /// Subscriber: number of audit_next() calls in which all its tensors are read once; 0: no audit.
  std::uint32_t audit_versions = 64;
  /// Subscriber: average time that an audit_next() call may take; 0: no limit.
  std::chrono::microseconds audit_time{0};
  /// Subscriber: true when the memory holds no version yet; the trainer then seeds it in the next regroup().
  bool needs_anchor = false;
  /// Publisher: whether to fill in ShardedReport::tensors and blocks_by_codec, which reads the directory entry of every
  /// block.
  bool report_tensors = false;
};

/// Statistics of the elements of one canonical tensor that a rank has sent. Elements that were sent in several deltas,
/// for engines with different cuts, are counted once for each delta.
struct SentTensor {
  std::string name;
  std::uint64_t elements = 0;  ///< Number of elements in the boxes that this rank sends.
  std::uint64_t changed = 0;
  std::uint64_t bytes = 0;  ///< Bytes of the tensor's blocks: directory entries and payloads.
  /// Number of blocks sent whole (kDense) because their changes alone would take more bytes.
  std::uint64_t dense_blocks = 0;
  std::uint64_t blocks = 0;
};

/// Statistics of one sync on this rank, over all its routes.
struct ShardedReport {
  std::uint64_t version = 0;
  std::uint64_t changed = 0;  ///< Number of changed elements in the deltas that this rank sent.
  std::uint64_t applied = 0;  ///< Number of elements in the deltas that this rank applied.
  /// Bytes of the deltas that this rank sent; each delta counts once for any number of receivers.
  std::uint64_t sent_bytes = 0;
  std::uint64_t received_bytes = 0;  ///< Bytes of the deltas that this rank received for itself.
  /// Bytes of deltas for other members of a channel, which this rank received and dropped.
  std::uint64_t foreign_bytes = 0;
  // The first three times overlap, so that their sum may exceed the total.
  double encode_seconds = 0;  ///< Time for which this rank detected and encoded changes.
  /// Time in transfers and in waits for other ranks, but not in waits for this rank's own encoding.
  double wire_seconds = 0;
  double stage_seconds = 0;  ///< Time for which received records were verified.
  double apply_seconds = 0;  ///< Seconds of the pause, in which deltas were applied.
  double total_seconds = 0;
  /// Number of blocks sent with each codec (report_tensors only); the index is a PositionCodec.
  std::uint64_t blocks_by_codec[6] = {};
  std::vector<SentTensor> tensors;  ///< Statistics of each sent tensor (report_tensors only), in the plan's order.
};

/// Publishes the shards of one trainer rank. Not thread-safe. sync() encodes routes ahead of their transfers in a
/// second thread, which has ended when sync() returns; only the calling thread uses the channels.
///
///     regroup() --> sync() --> sync() --> ... --> regroup() whenever an engine joins, leaves, dies or changes its cut
class SPARSECAST_API ShardedPublisher {
 public:
  /// `local[i]` is layout.ranks()[rank].tensors[i]: contiguous, of any shape with the layout's number of elements, all
  /// on the host or all on one device; the caller owns it and keeps it in place. It has the layout's dtype. Where that
  /// is bf16, it may instead be the tensor's fp32 master, with the same layout: engines then get the master's cast (as
  /// make_detector casts), and the snapshot is the only copy of the cast that the rank keeps. `layout` is the layout of
  /// the whole trainer, the same on all its ranks. The first regroup() copies, or casts, the tensors that this rank
  /// sends into the snapshot, in the same kind of memory unless options.pinned_snapshot; at that time the tensors must
  /// hold options.version.
  ///
  /// On a device, all work is enqueued on `device.cuda_stream`, or, when it is null, on a stream that this object
  /// creates. When regroup() or sync() is called, writes to the tensors must be complete or enqueued earlier on that
  /// stream, and the tensors must stay unchanged until the call returns. Several threads enqueue on the stream, so
  /// cudaStreamPerThread, which differs between threads, is Error{kUsage}. No wait for the device is longer than
  /// `device.deadline`.
  ///
  /// Throws Error{kUsage} that names the rank and the tensor for memory that does not fit; Error{kUnsupported} without
  /// a device backend or a device, and for tensors on a device when options.encode.zstd_level is not 0.
  ShardedPublisher(std::shared_ptr<const Layout> layout, std::size_t rank, std::vector<TensorRef> local,
                   ShardedOptions options, const DeviceOptions& device = {});
  ~ShardedPublisher();
  ShardedPublisher(ShardedPublisher&&) noexcept;
  ShardedPublisher& operator=(ShardedPublisher&&) noexcept;

  /// Forms the group of all ranks of `world`, which are those of the trainer and of all engines in any order; replaces
  /// the previous group. All ranks must call it. Exchanges the layouts, settles a sync whose outcome is unknown, makes
  /// the plan, opens the channels, seeds the engines that have no anchor or another version, and verifies that every
  /// destination holds the committed version. Throws the errors of the plan, the control channel and the transports,
  /// and Error{kGroupMismatch | kWrongBase | kDigestMismatch} that names the rank, or the engine; the committed version
  /// stands then, and regroup() can be called again.
  ///
  /// Elements that the layout describes in several places, on one rank or on several, are copies; only one of them is
  /// sent. At this call all copies must be equal, in the form that engines get (masters: their cast), whatever version
  /// is committed. Where copies differ, every rank throws Error{kDigestMismatch} with the tensor, the box and two
  /// trainer ranks, before anything is written to an engine. Each rank reads its own copies once; elements in a single
  /// place cost nothing.
  void regroup(std::shared_ptr<ControlChannel> world, const GroupOpener& open, std::chrono::milliseconds timeout);

  /// Brings the current weights to every engine. All ranks of the world take part. When it throws, no rank has
  /// committed the new version and the group is broken: call regroup() with the remaining ranks. It throws the error of
  /// this rank, kPeerFailed (naming a failed rank and its message), kDigestMismatch (naming an engine), or kTimeout.
  ShardedReport sync(std::chrono::milliseconds timeout);

  /// Returns the group's plan. Throws Error{kUsage} before the first regroup().
  const FanoutPlan& plan() const;
  std::uint64_t version() const noexcept;  ///< Returns the last committed version.
  /// Returns the digest of the canonical tensors at the last committed version. `sparsecast digest` prints the same
  /// digest for a checkpoint of these tensors.
  const StateDigest& digest() const noexcept;
  /// Returns the size of the snapshot in bytes. The snapshot is the only copy of the tensors that the publisher keeps.
  /// It is in the same kind of memory as the tensors, unless options.pinned_snapshot is true.
  std::uint64_t snapshot_bytes() const noexcept;

 private:
  friend class ColocatedRank;
  struct State;
  std::unique_ptr<State> state_;
};

/// Receives the shards of one engine rank. Not thread-safe. sync() and receive() verify received records in a second
/// thread, which has ended when they return; only the calling thread uses the channels.
class SPARSECAST_API ShardedSubscriber {
 public:
  /// `engine` is the name of the engine, `layout` the layout of all its ranks, and `rank` the index of this rank in it.
  /// `local[i]` is layout.ranks()[rank].tensors[i], with the rules of ShardedPublisher, but no fp32 masters. Throws as
  /// ShardedPublisher does. While regroup() or sync() runs, nothing else may read or write the tensors, except work
  /// that was enqueued on the stream before the call. When sync() returns, the new version has been verified, and work
  /// enqueued afterwards on any stream sees it. `options.threads` counts threads for work on the host.
  ShardedSubscriber(std::string engine, std::shared_ptr<const Layout> layout, std::size_t rank,
                    std::vector<TensorRef> local, ShardedOptions options, const DeviceOptions& device = {});
  ~ShardedSubscriber();
  ShardedSubscriber(ShardedSubscriber&&) noexcept;
  ShardedSubscriber& operator=(ShardedSubscriber&&) noexcept;

  /// Forms the group, with the rules and errors of ShardedPublisher::regroup. If it fails while the rank is being
  /// seeded, its memory is partly written, and the next regroup() seeds it again.
  void regroup(std::shared_ptr<ControlChannel> world, const GroupOpener& open, std::chrono::milliseconds timeout);
  /// Replaces the layout and the local tensors of this rank, for an engine that has moved experts and their weights
  /// between its ranks. regroup() must follow before the next sync(). Throws Error{kUsage} while the outcome of a
  /// version is unknown.
  void replace(std::shared_ptr<const Layout> layout, std::vector<TensorRef> local, const DeviceOptions& device = {});

  /// Brings this rank to the trainer's current weights. Collective: all ranks of the world take part, those of the
  /// trainer by ShardedPublisher::sync. Throws the same errors as that function. When it throws, the rank holds its old
  /// version, or a version whose outcome is unknown until the next regroup() settles it.
  ShardedReport sync(std::chrono::milliseconds timeout);
  /// Performs the first half of sync(), during which an engine may continue to generate: returns when every rank of the
  /// world has sent or staged everything. The weights are not written. Throws as sync() does. Different threads may
  /// call it, one at a time; with NCCL channels only the thread that called regroup() may.
  void receive(std::chrono::milliseconds timeout);
  /// Performs the second half of sync(), which is the pause: writes the weights, verifies them, and waits for every
  /// engine and for the decision. The trainer's sync() waits for this call within its own timeout. Throws Error{kUsage}
  /// without a receive() before it, and the errors of sync().
  ShardedReport apply(std::chrono::milliseconds timeout);

  /// Returns the version that this rank has applied and verified without hearing whether it was committed; 0: none. The
  /// memory then holds the bytes of that version, while version() is the one before. The next regroup() settles it.
  std::uint64_t in_doubt() const noexcept;
  /// Returns true when an anchor has overwritten the memory, or a part of it, since the last verified version; only a
  /// successful regroup() makes the memory whole again. False after a regroup() that failed before the first byte
  /// arrived: the memory is unchanged then. May be called in any thread.
  bool anchor_begun() const noexcept;
  /// Settles a version in doubt without a regroup(), for an engine that goes on to serve though its trainer is gone.
  /// When `committed` is true, the version stands; this is right if any rank of the world has received the decision to
  /// commit. When it is false, the memory is rolled back to version(). All ranks of an engine must pass the same value.
  /// Does nothing when no version is in doubt. Throws Error{kDirty} when the memory could not be rolled back; the next
  /// regroup() seeds it then.
  void settle(bool committed);

  /// Performs one step of the rolling audit of this rank's memory, with the rules and errors of Subscriber::audit_next.
  /// Returns the number of bytes read.
  std::uint64_t audit_next();
  /// Reads all tensors of this rank and compares their digests with the expected ones, as Subscriber::audit does.
  /// Throws Error{kDirty} when they differ.
  void audit();

  const FanoutPlan& plan() const;
  std::uint64_t version() const noexcept;  ///< Returns the last verified version.

 private:
  friend class ColocatedRank;
  struct State;
  std::unique_ptr<State> state_;
};

/// A rank of the world that belongs to the trainer and to an engine at once. Data that the rank sends to itself stays
/// in the process. Its regroup() and sync() take the place of the functions of publisher and subscriber with these
/// names, which must not be called. Both must outlive this object.
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
