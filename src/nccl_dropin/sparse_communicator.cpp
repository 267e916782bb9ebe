// SPDX-License-Identifier: Apache-2.0
#include "nccl_dropin/sparse_communicator.hpp"

#include <fmt/format.h>

#include <cstring>
#include <string_view>

#include "core/poll_pause.hpp"
#include "core/trace.hpp"
#include "nccl_dropin/settings.hpp"

namespace sparsecast::dropin {
namespace {

enum Way : std::uint32_t { kPlain, kFill, kDelta };

/// A delta that would take more than this share of the dense bytes is not worth its encoding.
constexpr double kMostShare = 0.5;

ncclResult_t result_of(const std::exception& failure) {
  const auto* const error = dynamic_cast<const Error*>(&failure);
  if (error == nullptr) return ncclSystemError;
  switch (error->code()) {
    case ErrorCode::kPeerFailed:
    case ErrorCode::kTimeout:
    case ErrorCode::kIo:
      return ncclRemoteError;
    case ErrorCode::kUsage:
    case ErrorCode::kGroupMismatch:
      return ncclInvalidUsage;
    case ErrorCode::kDevice:
    case ErrorCode::kUnsupported:
      return ncclUnhandledCudaError;
    default:
      return ncclInternalError;
  }
}

/// Reason that a rank gives when it destroys its communicator without an error. It has done its part of every broadcast
/// that all ranks have begun.
constexpr std::string_view kEnded = "a rank has ended its communicator";

CUevent_st* event_of(const std::shared_ptr<void>& event) { return static_cast<CUevent_st*>(event.get()); }

}  // namespace

/// Message that each rank sends to all others before a broadcast. Ranks other than the root leave the last three fields
/// zero.
struct SparseCommunicator::Notice {
  std::uint64_t number = 0;
  Shape shape;
  std::uint32_t way = kPlain;
  std::uint32_t zero = 0;
  std::uint64_t slot = 0;
  std::uint64_t delta_bytes = 0;
};

SparseCommunicator::SparseCommunicator(const NcclFunctions& real, ncclComm_t comm, Meeting meeting, DeviceApi& api,
                                       int device, std::chrono::milliseconds timeout)
    : real_(real),
      comm_(comm),
      control_(std::move(meeting.control)),
      api_(api),
      device_(device),
      timeout_(timeout),
      slots_(meeting.cache_bytes) {}

ncclResult_t SparseCommunicator::broadcast(const void* from, void* to, const Shape& shape, cudaStream_t stream) {
  const std::lock_guard lock(mutex_);
  if (failure_ != ncclSuccess) return failure_;
  try {
    deadline_ = std::chrono::steady_clock::now() + timeout_;
    const DeviceApiGuard guard(api_, device_);  // NCCL, too, takes calls while another device is the current one.
    run(from, to, shape, stream);
    return ncclSuccess;
  } catch (const std::exception& error) {
    failure_ = result_of(error);
    control_->abort(error.what());
    fmt::print(stderr, "sparsecast: rank {}: broadcast {} of {} bytes from rank {} failed: {}\n", control_->rank(),
               number_, shape.bytes, shape.root, error.what());
    return failure_;
  }
}

void SparseCommunicator::leave(bool aborts) noexcept {
  control_->abort(aborts ? "a rank has aborted its communicator" : std::string(kEnded));
}

void SparseCommunicator::run(const void* from, void* to, const Shape& shape, cudaStream_t stream) {
  ++number_;
  const TraceRange<"dropin.broadcast"> range({.version = number_, .bytes = shape.bytes});
  const Stopwatch watch(statistics().total_us);
  const bool is_root = static_cast<int>(shape.root) == control_->rank();
  Notice notice{number_, shape};
  if (is_root) notice = prepare(from, shape, stream);
  exchange(notice);
  ++statistics().broadcasts;
  statistics().dense_bytes += shape.bytes;
  statistics().sent_bytes += notice.way == kDelta ? notice.delta_bytes : shape.bytes;
  if (notice.way == kPlain) {
    call_nccl(from, to, shape.bytes, shape.root, stream);
  } else if (notice.way == kFill) {
    fill(notice, from, to, stream);
  } else {
    ++statistics().sparse;
    if (is_root) {
      send_delta(notice, from, to, stream);
    } else {
      receive_delta(notice, to, stream);
    }
  }
}

std::optional<std::uint64_t> SparseCommunicator::nearest_slot(const void* from, const Shape& shape,
                                                              cudaStream_t stream) {
  const TraceRange<"dropin.sample"> range({.version = number_, .bytes = shape.bytes});
  const Stopwatch watch(statistics().sample_us);
  reserve(Sample::kBytes);
  auto* const h_sample = static_cast<std::byte*>(staging_.h_memory.get());
  for (std::uint64_t i = 0; i < Sample::kPieces; ++i) {
    api_.copy_to_host(h_sample + i * Sample::kPieceBytes,
                      static_cast<const std::byte*>(from) + Sample::offset(i, shape.bytes), Sample::kPieceBytes,
                      stream);
  }
  api_.record(staged_.get(), stream);
  await(staged_);
  sample_.assign(h_sample, h_sample + Sample::kBytes);
  return slots_.nearest(shape, sample_);
}

SparseCommunicator::Notice SparseCommunicator::prepare(const void* from, const Shape& shape, cudaStream_t stream) {
  Notice notice{number_, shape};
  if (shape.bytes < Sample::kBytes) return notice;
  const std::optional<std::uint64_t> nearest = nearest_slot(from, shape, stream);
  const Stopwatch watch(statistics().encode_us);
  if (!nearest) {
    if (slots_.admits(shape, number_)) {
      notice.way = kFill;
      notice.slot = number_;
    }
    return notice;
  }

  notice.way = kFill;
  notice.slot = *nearest;
  Slot& slot = *slots_.find(*nearest);
  api_.copy_on_device(slot.memory.get(), from, shape.bytes, stream);
  api_.record(slot.copied.get(), stream);
  const Delta& delta = slot.sender->publish(event_of(slot.copied));
  if (static_cast<double>(delta.wire_bytes()) > kMostShare * static_cast<double>(shape.bytes)) return notice;
  require_result(slot, delta);
  notice.way = kDelta;
  notice.delta_bytes = delta.wire_bytes();
  reserve(notice.delta_bytes);
  auto* to = static_cast<std::byte*>(staging_.h_memory.get());
  const auto append = [&to](const Bytes& record) {
    std::memcpy(to, record.data(), record.size());
    to += record.size();
  };
  append(delta.header);
  for (const Bytes& frame : delta.frames) append(frame);
  append(delta.commit);
  slot.sender->commit(delta.info.version);
  return notice;
}

void SparseCommunicator::exchange(Notice& notice) {
  const TraceRange<"dropin.exchange"> range({.version = number_});
  const Stopwatch watch(statistics().exchange_us);
  const std::vector<Bytes> all = control_->all_gather(std::as_bytes(std::span(&notice, 1)), deadline_);
  Notice first;
  for (std::size_t rank = 0; rank < all.size(); ++rank) {
    Notice other;
    if (all[rank].size() != sizeof other) throw Error(ErrorCode::kCorrupt, fmt::format("a notice of rank {}", rank));
    std::memcpy(&other, all[rank].data(), sizeof other);
    if (rank == 0) first = other;
    if (other.number != first.number || !(other.shape == first.shape)) {
      throw Error(
          ErrorCode::kGroupMismatch,
          fmt::format("rank 0 calls broadcast {} of the communicator with {} bytes of type {} from rank {}, rank "
                      "{} broadcast {} with {} bytes of type {} from rank {}",
                      first.number, first.shape.bytes, first.shape.type, first.shape.root, rank, other.number,
                      other.shape.bytes, other.shape.type, other.shape.root));
    }
    if (rank == notice.shape.root) notice = other;
  }
}

void SparseCommunicator::fill(const Notice& notice, const void* from, void* to, cudaStream_t stream) {
  const bool is_root = static_cast<int>(notice.shape.root) == control_->rank();
  Slot& slot = slots_.renew(notice.slot, notice.shape);
  int lacks_memory = 0;
  try {
    slot.memory = allocate(notice.shape.bytes, false);
    slot.copied = new_event();
  } catch (const Error&) {
    lacks_memory = 1;
  }
  call_nccl(from, to, notice.shape.bytes, notice.shape.root, stream);
  if (lacks_memory == 0) {
    api_.copy_on_device(slot.memory.get(), is_root ? from : to, notice.shape.bytes, stream);
    api_.record(slot.copied.get(), stream);
    await(slot.copied);
    try {
      make_endpoint(slot, number_, is_root, device_);
    } catch (const Error&) {
      lacks_memory = 1;
    }
  }
  slot.last_use = number_;
  slot.sample = is_root ? sample_ : std::vector<std::byte>{};
  // All ranks keep the slot, or none: one without memory for it goes on without.
  if (control_->agree(lacks_memory, 0, deadline_) != 0) slots_.drop(notice.slot);
}

void SparseCommunicator::send_delta(const Notice& notice, const void* from, void* to, cudaStream_t stream) {
  void* const d_records = staging_.d_memory.get();
  api_.copy_to_device(d_records, staging_.h_memory.get(), notice.delta_bytes, stream);
  call_nccl(d_records, d_records, notice.delta_bytes, notice.shape.root, stream);
  api_.record(staged_.get(), stream);
  if (to != nullptr && to != from) api_.copy_on_device(to, from, notice.shape.bytes, stream);
  Slot& slot = *slots_.find(notice.slot);
  slot.last_use = number_;
  slot.sample = sample_;
}

void SparseCommunicator::receive_delta(const Notice& notice, void* to, cudaStream_t stream) {
  const TraceRange<"dropin.receive"> range({.version = number_, .bytes = notice.delta_bytes});
  const Stopwatch watch(statistics().apply_us);
  Slot* const slot = slots_.find(notice.slot);
  if (slot == nullptr || notice.delta_bytes > notice.shape.bytes) {
    throw Error(ErrorCode::kWrongBase,
                fmt::format("the root sends a delta over slot {}, which is not here", notice.slot));
  }
  reserve(notice.delta_bytes);
  void* const d_records = staging_.d_memory.get();
  call_nccl(d_records, d_records, notice.delta_bytes, notice.shape.root, stream);
  api_.copy_to_host(staging_.h_memory.get(), d_records, notice.delta_bytes, stream);
  api_.record(staged_.get(), stream);
  await(staged_);
  ConstBytes rest(static_cast<const std::byte*>(staging_.h_memory.get()), notice.delta_bytes);
  while (!rest.empty()) {
    const std::uint32_t bytes = peek_record(rest).bytes;
    if (bytes > rest.size()) throw Error(ErrorCode::kCorrupt, "a record is longer than what has arrived");
    slot->receiver->stage(rest.first(bytes));
    rest = rest.subspan(bytes);
  }
  slot->receiver->apply({.after = event_of(slot->copied)});
  slot->receiver->audit();  // The delta has verified what it changes, not the rest of the slot.
  api_.copy_on_device(to, slot->memory.get(), notice.shape.bytes, stream);
  api_.record(slot->copied.get(), stream);
  slot->last_use = number_;
}

void SparseCommunicator::call_nccl(const void* from, void* to, std::uint64_t bytes, std::uint32_t root,
                                   cudaStream_t stream) {
  settle(ncclInProgress);  // The call before may still be in progress.
  settle(real_.broadcast(from, to, static_cast<std::size_t>(bytes), ncclInt8, static_cast<int>(root), comm_, stream));
}

void SparseCommunicator::settle(ncclResult_t result) {
  PollPause pace;
  while (result == ncclInProgress) {
    if (std::chrono::steady_clock::now() > deadline_) throw Error(ErrorCode::kTimeout, "NCCL's call is in progress");
    result = state();
    if (result == ncclInProgress) pace.pause();
  }
  check(result);
}

ncclResult_t SparseCommunicator::state() {
  ncclResult_t found = ncclSuccess;
  const ncclResult_t asked = real_.comm_get_async_error(comm_, &found);
  return asked == ncclSuccess ? found : asked;
}

void SparseCommunicator::check(ncclResult_t result) {
  if (result == ncclSuccess || result == ncclInProgress) return;
  throw Error(ErrorCode::kPeerFailed, fmt::format("NCCL: {}", real_.get_error_string(result)));
}

void SparseCommunicator::await(const std::shared_ptr<void>& event) {
  constexpr int kTurnsBetweenChecks = 16;  // Asking the other ranks costs more than asking for an event.
  PollPause pace;
  for (int turn = 0; !api_.finished(event.get()); ++turn) {
    if (turn % kTurnsBetweenChecks == 0) {
      const auto reason = control_->aborted();
      if (reason && !reason->ends_with(kEnded)) throw Error(ErrorCode::kPeerFailed, *reason);
      check(state());
      if (std::chrono::steady_clock::now() > deadline_) {
        throw Error(ErrorCode::kTimeout, "the device has not finished; SPARSECAST_NCCL_TIMEOUT has the deadline");
      }
    }
    pace.pause();
  }
}

std::shared_ptr<void> SparseCommunicator::new_event() {
  DeviceApi& api = api_;
  const int device = device_;
  return {api.create_event(),
          [&api, device](void* event) { release_on(api, device, [&] { api.destroy_event(event); }); }};
}

std::shared_ptr<void> SparseCommunicator::allocate(std::uint64_t bytes, bool on_host) {
  DeviceApi& api = api_;
  const int device = device_;
  return {on_host ? api.allocate_host(bytes) : api.allocate(bytes), [&api, device, on_host](void* memory) {
            release_on(api, device, [&] { on_host ? api.free_host(memory) : api.free(memory); });
          }};
}

void SparseCommunicator::reserve(std::uint64_t bytes) {
  if (staged_ == nullptr) staged_ = new_event();
  await(staged_);
  if (staging_.bytes >= bytes) return;
  staging_ = {};
  staging_.d_memory = allocate(bytes, false);
  staging_.h_memory = allocate(bytes, true);
  staging_.bytes = bytes;
}

}  // namespace sparsecast::dropin
