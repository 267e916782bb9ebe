// SPDX-License-Identifier: Apache-2.0
#include "capi/buffer.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <optional>

#include "sync/vote.hpp"

namespace sparsecast::capi {
namespace {

using std::chrono::steady_clock;

/// Runs a step of this rank alone, and keeps its failure, so that the other ranks can be told first.
template <class Step>
std::optional<Error> failure_of(const Step& step) {
  try {
    step();
  } catch (const Error& error) {
    return error;
  } catch (const std::exception& error) {
    return Error(ErrorCode::kPeerFailed, error.what());
  }
  return std::nullopt;
}

/// Returns the time left until the deadline, at least one millisecond, so that a call that takes a timeout reports the
/// expiry itself.
std::chrono::milliseconds time_left(Deadline deadline) {
  using std::chrono::milliseconds;
  return std::max(std::chrono::ceil<milliseconds>(deadline - steady_clock::now()), milliseconds(1));
}

/// Returns whether the error means that the bytes are not what was verified, because somebody else has written into
/// them.
bool shows_foreign_writes(ErrorCode code) {
  return code == ErrorCode::kDirty || code == ErrorCode::kDigestMismatch || code == ErrorCode::kWrongBase;
}

}  // namespace

BroadcastBuffer::BroadcastBuffer(std::shared_ptr<Communicator> comm, std::shared_ptr<const TensorTable> table,
                                 scMemory_t kind, std::unique_ptr<BufferTensors> tensors, const Error* failure)
    : comm_(std::move(comm)),
      number_(comm_->next_buffer()),
      table_(std::move(table)),
      kind_(kind),
      tensors_(std::move(tensors)) {
  comm_->exchange(notice(Notice::kRegister, -1), failure, comm_->deadline());
  stats_.dense_bytes = table_->bytes();
}

Notice BroadcastBuffer::notice(Notice::Kind kind, int root) const {
  Notice own;
  own.kind = kind;
  own.buffer = number_;
  own.root = root;
  own.memory = static_cast<std::uint32_t>(kind_);
  if (table_) own.table = table_->hash();
  own.version = stats_.version;
  own.base_root = base_root_;
  if (publisher_) own.digest = publisher_->digest();
  if (subscriber_) own.digest = subscriber_->digest();
  return own;
}

void BroadcastBuffer::broadcast(int root, CUstream_st* stream) {
  const auto start = steady_clock::now();
  const Deadline deadline = comm_->deadline();
  const auto failure = failure_of([&] {
    if (root < 0 || root >= comm_->size()) {
      throw Error(ErrorCode::kUsage, fmt::format("root {} of {} ranks", root, comm_->size()), "scBroadcast");
    }
    tensors_->begin_behind(stream);
  });
  const std::vector<Notice> all =
      comm_->exchange(notice(Notice::kBroadcast, root), failure ? &*failure : nullptr, deadline);
  const bool follow = std::all_of(all.begin(), all.end(), [&](const Notice& other) {
    return other.base_root == root && other.version == all[0].version && other.digest == all[0].digest;
  });
  std::uint64_t version = 0;
  for (const Notice& other : all) version = std::max(version, other.version);
  // Set again when all is verified: whatever fails in between, the next broadcast is an anchor.
  base_root_ = -1;
  try {
    if (follow) {
      send_changes(root, deadline);
    } else {
      anchor(root, version + 1, deadline);
    }
  } catch (const Error& error) {
    if (subscriber_ && (subscriber_->dirty() || shows_foreign_writes(error.code()))) stats_.dirty = 1;
    throw error.within(fmt::format("scBroadcast of buffer {} from rank {}", number_, root));
  }
  base_root_ = root;
  stats_.dirty = 0;
  stats_.anchor = follow ? 0 : 1;
  stats_.anchors += follow ? 0 : 1;
  ++stats_.broadcasts;
  stats_.seconds = std::chrono::duration<double>(steady_clock::now() - start).count();
}

void BroadcastBuffer::send_changes(int root, Deadline deadline) {
  ApplyOrder order;
  order.after = tensors_->ready();
  const SyncReport report = comm_->rank() == root
                                ? sync_send(*publisher_, comm_->transport(), time_left(deadline), tensors_->ready())
                                : sync_receive(*subscriber_, comm_->transport(), root, time_left(deadline), order);
  stats_.version = report.version;
  stats_.changed = report.changed;
  stats_.wire_bytes = report.wire_bytes;
}

/// Makes the publisher, whose snapshot is a copy of the current tensors.
void BroadcastBuffer::make_publisher(std::uint64_t version) {
  tensors_->wait_until_ready();
  PublisherOptions options;
  options.version = version;
  options.encode.threads = comm_->config().threads;
  options.detection.device = tensors_->device();
  publisher_ = std::make_unique<Publisher>(table_, tensors_->refs(), options);
}

/// Makes the subscriber, whose digest is that of the current tensors.
void BroadcastBuffer::make_subscriber(std::uint64_t version) {
  tensors_->wait_until_ready();
  SubscriberOptions options;
  options.version = version;
  options.threads = comm_->config().threads;
  subscriber_ = std::make_unique<Subscriber>(table_, tensors_->refs(), options, tensors_->device());
}

void BroadcastBuffer::anchor(int root, std::uint64_t version, Deadline deadline) {
  publisher_.reset();  // Frees its memory first.
  subscriber_.reset();
  const auto failure = failure_of([&] { comm_->rank() == root ? make_publisher(version) : make_subscriber(version); });
  const std::vector<Notice> all =
      comm_->exchange(notice(Notice::kAnchor, root), failure ? &*failure : nullptr, deadline);
  const StateDigest expected = all[static_cast<std::size_t>(root)].digest;
  const bool equal = std::all_of(all.begin(), all.end(), [&](const Notice& other) { return other.digest == expected; });
  if (!equal) overwrite(root, expected, deadline);
  stats_.version = version;
  stats_.changed = equal ? 0 : table_->elements();
  stats_.wire_bytes = equal ? 0 : table_->bytes();
}

void BroadcastBuffer::overwrite(int root, const StateDigest& expected, Deadline deadline) {
  Outcome verified;
  if (comm_->rank() == root) {
    tensors_->broadcast_all(*comm_, root, deadline);
  } else {
    stats_.dirty = 1;  // The buffer is neither old nor new until all bytes have arrived and are verified.
    tensors_->broadcast_all(*comm_, root, deadline);
    verified.then([&] { subscriber_->reset(subscriber_->version(), expected); });
    if (verified.ok()) stats_.dirty = 0;
  }
  require_all(ranks_of(comm_->transport().control(), root), verified, deadline);
}

void BroadcastBuffer::audit() {
  if (stats_.dirty != 0) {
    throw Error(ErrorCode::kDirty, "the content is known to be wrong since an earlier failure; broadcast it anew",
                "scAudit");
  }
  if (!subscriber_) return;
  try {
    subscriber_->audit();
  } catch (const Error& error) {
    if (shows_foreign_writes(error.code())) {
      stats_.dirty = 1;
      base_root_ = -1;
    }
    throw error.within("scAudit");
  }
}

}  // namespace sparsecast::capi
