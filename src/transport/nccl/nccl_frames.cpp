// SPDX-License-Identifier: Apache-2.0
#ifdef SPARSECAST_HAVE_NCCL

#include "transport/nccl/nccl_frames.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <cstring>

namespace sparsecast {
namespace {

constexpr std::uint64_t kScratchAlignment = 256;

static_assert(FrameTransfer::kMostHeadRoom == kTableHeadBytes);

/// Returns how many bytes of a table are sent.
std::uint64_t table_bytes(const FrameTransfer& transfer) { return offsetof(CountTable, sizes) + transfer.head_room; }

std::uint64_t rest_bytes(const CountTable& table, const FrameTransfer& transfer) {
  return table.count > transfer.head_room ? table.count - transfer.head_room : 0;
}

/// Copies between a staging buffer, which holds the transfer's range from `at` on, and the host's pieces of that range.
/// When sending, gaps between pieces become zeros in the buffer.
void copy_pieces(const FrameTransfer& transfer, std::uint64_t at, std::span<std::byte> h_staging, bool sending) {
  std::uint64_t done = at;
  const std::uint64_t end = at + h_staging.size();
  const auto fill = [&](std::uint64_t until) {
    if (sending && until > done) std::memset(h_staging.data() + (done - at), 0, until - done);
  };
  for (const FramePiece& piece : transfer.pieces) {
    const std::uint64_t first = std::max(piece.offset, at);
    const std::uint64_t last = std::min(piece.offset + piece.bytes, end);
    if (piece.on_device || first >= last) continue;
    fill(first);
    std::byte* const h_staged = h_staging.data() + (first - at);
    std::byte* const h_piece = piece.data + (first - piece.offset);
    std::memcpy(sending ? h_staged : h_piece, sending ? h_piece : h_staged, last - first);
    done = last;
  }
  fill(end);
}

/// Throws Error{kUsage} unless a source has memory with its frames and the pieces are in the range, in order.
void check_memory(const FrameTransfer& transfer, bool sends) {
  std::uint64_t at = 0;
  for (const FramePiece& piece : transfer.pieces) {
    if (piece.offset < at || piece.bytes > transfer.bytes || piece.offset > transfer.bytes - piece.bytes) {
      throw Error(ErrorCode::kUsage, fmt::format("a piece at byte {} with {} bytes of frames of {} bytes", piece.offset,
                                                 piece.bytes, transfer.bytes));
    }
    at = piece.offset + piece.bytes;
  }
  if (sends && transfer.bytes != 0 && transfer.d_frames == nullptr && transfer.pieces.empty()) {
    throw Error(ErrorCode::kUsage, fmt::format("the source does not say where its {} bytes lie", transfer.bytes));
  }
}

}  // namespace

NcclRound::NcclRound(std::span<FrameTransfer> transfers, const char* phase, Deadline deadline)
    : phase_(phase), deadline_(deadline) {
  for (FrameTransfer& transfer : transfers) {
    if (transfer.channel == nullptr) throw Error(ErrorCode::kUsage, "a transfer without a channel", phase);
    auto* const group = dynamic_cast<NcclGroup*>(transfer.channel);
    if (group == nullptr) throw Error(ErrorCode::kUsage, "a transfer over another transport than NCCL", phase);
    group->check_source(transfer.source, phase);
    if (transfer.head_room > FrameTransfer::kMostHeadRoom || transfer.head_room % 8 != 0) {
      throw Error(ErrorCode::kUsage, fmt::format("room for {} bytes of a head", transfer.head_room), phase);
    }
    if (!groups_.empty() && group->staging_ != groups_.front()->staging_) {
      throw Error(ErrorCode::kUsage, "the channels of a round do not come from one another (split, reform)", phase);
    }
    if (std::ranges::find(groups_, group) == groups_.end()) groups_.push_back(group);
    if (group->size() > 1) parts_.push_back({&transfer, group, group->rank() == transfer.source, nullptr});
  }
}

void NcclGroup::exchange_heads(std::span<FrameTransfer> transfers, Deadline deadline) {
  NcclRound(transfers, "exchange_heads", deadline).exchange_heads();
}

void NcclGroup::broadcast_frames(std::span<FrameTransfer> transfers, Deadline deadline) {
  NcclRound(transfers, "broadcast_frames", deadline).broadcast_frames();
}

void NcclRound::wait_event(void* event, const char* what) {
  NcclGroup::wait_for(
      groups_, [&] { return device().finished(event); }, deadline_, what);
}

template <class BytesOf>
void NcclRound::broadcast_all(const BytesOf& bytes_of) {
  const NcclFunctions& nccl = *groups_.front()->runtime_.functions;
  check_nccl(nccl, nccl.group_start(), nullptr, "ncclGroupStart");
  std::optional<Error> failure;
  for (const Part& part : parts_) {
    const std::uint64_t bytes = bytes_of(part);
    if (bytes == 0) continue;
    const ncclComm_t communicator = part.group->communicator_;
    const ncclResult_t result = part.group->enqueue(part.d_data, bytes, part.transfer->source);
    try {
      check_nccl(nccl, result, communicator, "ncclBroadcast");
    } catch (const Error& error) {
      failure = error;
      break;
    }
  }
  // Also called after an error, because an open NCCL group would capture this thread's next calls.
  const ncclResult_t ended = nccl.group_end();
  if (failure) throw Error(*failure);
  check_nccl(nccl, ended, nullptr, "ncclGroupEnd");
  // NCCL enqueues kernels in the background. Until every communicator is settled, nothing may be enqueued behind them.
  NcclGroup::settle(groups_, deadline_, "ncclGroupEnd");
}

void NcclRound::exchange_heads() {
  if (groups_.empty()) return;
  std::optional<Error> refused;
  for (const Part& part : parts_) {
    FrameTransfer& transfer = *part.transfer;
    if (!part.sends || transfer.error != 0 || transfer.head.size() <= FrameTransfer::kMaxHeadBytes) continue;
    // The other ranks wait for a table. They get one with the error, and the channels stay open.
    transfer.error = static_cast<int>(ErrorCode::kUsage);
    refused = Error(
        ErrorCode::kUsage,
        fmt::format("a head of {} bytes; at most {} are sent", transfer.head.size(), FrameTransfer::kMaxHeadBytes),
        part.group->context(phase_));
  }
  NcclGroup::guard(groups_, phase_, [&] {
    if (parts_.empty()) return;
    NcclGroup::resume(groups_, deadline_);
    send_tables();
    take_tables();
    exchange_rests();
  });
  if (refused) throw Error(*refused);
}

void NcclRound::send_tables() {
  std::uint64_t bytes = 0;
  for (const Part& part : parts_) bytes += table_bytes(*part.transfer);
  std::byte* const h_tables = staging().h_heads.reserve(device(), bytes);
  std::byte* const d_tables = staging().d_heads.reserve(device(), bytes);
  tables_.resize(parts_.size());
  std::uint64_t at = 0;
  for (std::size_t i = 0; i < parts_.size(); ++i) {
    Part& part = parts_[i];
    std::byte* const h_table = h_tables + at;
    part.d_data = d_tables + at;
    at += table_bytes(*part.transfer);
    CountTable& table = tables_[i];
    table.sequence = ++part.group->sequence_;
    if (!part.sends) continue;
    FrameTransfer& transfer = *part.transfer;
    if (transfer.error != 0) {
      transfer.head.clear();
      transfer.bytes = 0;
      table = make_error_table(table.sequence, static_cast<std::uint32_t>(transfer.error));
    } else {
      table = make_head_table(table.sequence, transfer.head, transfer.bytes, transfer.head_room);
    }
    std::memcpy(h_table, &table, table_bytes(transfer));
    device().copy_to_device(part.d_data, h_table, table_bytes(transfer), staging().stream);
  }
  broadcast_all([](const Part& part) { return table_bytes(*part.transfer); });
  device().copy_to_host(h_tables, d_tables, bytes, staging().stream);
  device().record(staging().table_arrived, staging().stream);
  wait_event(staging().table_arrived, "the heads of the frames");
}

void NcclRound::take_tables() {
  const std::byte* h_table = staging().h_heads.data();
  for (std::size_t i = 0; i < parts_.size(); h_table += table_bytes(*parts_[i++].transfer)) {
    if (parts_[i].sends) continue;
    const std::uint64_t sequence = tables_[i].sequence;
    std::memcpy(&tables_[i], h_table, table_bytes(*parts_[i].transfer));
    const CountTable& table = tables_[i];
    check_table(table, TableKind::kFrames, sequence,
                {FrameTransfer::kMaxHeadBytes, parts_[i].group->options_.max_bytes});
    FrameTransfer& transfer = *parts_[i].transfer;
    transfer.error = static_cast<int>(table.error_code);
    transfer.bytes = table.total;
    transfer.head = head_of(table, transfer.head_room);
  }
}

void NcclRound::exchange_rests() {
  std::uint64_t total = 0;
  for (std::size_t i = 0; i < parts_.size(); ++i) total += rest_bytes(tables_[i], *parts_[i].transfer);
  if (total == 0) return;
  std::byte* h_rest = staging().h_heads.reserve(device(), total);
  std::byte* const h_rests = h_rest;
  std::byte* const d_rests = staging().d_heads.reserve(device(), total);
  for (std::size_t i = 0; i < parts_.size(); ++i) {
    Part& part = parts_[i];
    const std::uint64_t bytes = rest_bytes(tables_[i], *part.transfer);
    part.d_data = d_rests + (h_rest - h_rests);
    if (part.sends && bytes != 0) {
      std::memcpy(h_rest, part.transfer->head.data() + part.transfer->head_room, bytes);
      device().copy_to_device(part.d_data, h_rest, bytes, staging().stream);
    }
    h_rest += bytes;
  }
  broadcast_all([&](const Part& part) {
    return rest_bytes(tables_[static_cast<std::size_t>(&part - parts_.data())], *part.transfer);
  });
  device().copy_to_host(h_rests, d_rests, total, staging().stream);
  device().record(staging().table_arrived, staging().stream);
  wait_event(staging().table_arrived, "the rests of long heads");
  h_rest = h_rests;
  for (std::size_t i = 0; i < parts_.size(); ++i) {
    const std::uint32_t room = parts_[i].transfer->head_room;
    const std::uint64_t bytes = rest_bytes(tables_[i], *parts_[i].transfer);
    Bytes& head = parts_[i].transfer->head;
    if (!parts_[i].sends && bytes != 0) std::memcpy(head.data() + room, h_rest, bytes);
    if (!parts_[i].sends) check_head(tables_[i], head, room);
    h_rest += bytes;
  }
}

void NcclRound::broadcast_frames() {
  std::erase_if(parts_, [](const Part& part) { return part.transfer->bytes == 0; });
  if (groups_.empty()) return;
  NcclGroup::guard(groups_, phase_, [&] {
    for (const Part& part : parts_) check_memory(*part.transfer, part.sends);
    if (!parts_.empty()) {
      NcclGroup::resume(groups_, deadline_);
      place_frames();
      wait_for_streams();
      gather_frames();
      broadcast_all([](const Part& part) { return part.transfer->bytes; });
      hand_over_frames();
    }
    NcclGroup::suspend(groups_);
  });
}

void NcclRound::place_frames() {
  std::uint64_t total = 0;
  const auto place = [&](std::byte* d_scratch) {
    total = 0;
    for (Part& part : parts_) {
      part.d_data = part.transfer->d_frames;
      if (part.d_data != nullptr) continue;
      part.d_data = d_scratch == nullptr ? nullptr : d_scratch + total;
      total += (part.transfer->bytes + kScratchAlignment - 1) / kScratchAlignment * kScratchAlignment;
    }
  };
  place(nullptr);
  if (total != 0) place(staging().scratch.reserve(device(), total));
}

void NcclRound::wait_for_streams() {
  for (const Part& part : parts_) {
    if (part.transfer->cuda_stream == nullptr) continue;
    device().record(staging().ready, part.transfer->cuda_stream);
    device().wait(staging().stream, staging().ready);
  }
}

std::vector<NcclRound::HostPart> NcclRound::host_parts(bool sending) const {
  std::vector<HostPart> host;
  for (const Part& part : parts_) {
    const FrameTransfer& transfer = *part.transfer;
    const bool any = std::ranges::any_of(transfer.pieces, [](const FramePiece& piece) { return !piece.on_device; });
    if (!any || part.sends != sending || transfer.d_frames != nullptr) continue;
    for (std::uint64_t at = 0; at < transfer.bytes; at += staging().bytes()) {
      host.push_back({&part, at, std::min(staging().bytes(), transfer.bytes - at)});
    }
  }
  return host;
}

/// Gathers the pieces of this rank's own frames in the memory that is sent.
void NcclRound::gather_frames() {
  const std::vector<HostPart> host = host_parts(true);
  for (std::size_t i = 0; i < host.size(); ++i) {
    const auto& [part, at, bytes] = host[i];
    StagingHalf& half = staging().half(i);
    if (i >= 2) wait_event(half.arrived, "a piece of the frames on its way to the device");
    copy_pieces(*part->transfer, at, {half.h_data, static_cast<std::size_t>(bytes)}, true);
    device().copy_to_device(part->d_data + at, half.h_data, bytes, staging().stream);
    device().record(half.arrived, staging().stream);
  }
  for (const Part& part : parts_) {
    if (!part.sends || part.transfer->d_frames != nullptr) continue;
    for (const FramePiece& piece : part.transfer->pieces) {
      if (!piece.on_device || piece.bytes == 0) continue;
      device().copy_on_device(part.d_data + piece.offset, piece.data, piece.bytes, staging().stream);
    }
  }
}

/// Copies received frames to their destination pieces, and waits for the copies.
void NcclRound::hand_over_frames() {
  for (const Part& part : parts_) {
    if (part.sends || part.transfer->d_frames != nullptr) continue;
    for (const FramePiece& piece : part.transfer->pieces) {
      if (!piece.on_device || piece.bytes == 0) continue;
      device().copy_on_device(piece.data, part.d_data + piece.offset, piece.bytes, staging().stream);
    }
  }
  device().record(staging().table_arrived, staging().stream);
  for (const Part& part : parts_) {
    if (!part.sends && part.transfer->cuda_stream != nullptr) {
      device().wait(part.transfer->cuda_stream, staging().table_arrived);
    }
  }
  const std::vector<HostPart> host = host_parts(false);
  for (std::size_t i = 0; i < host.size() + 1; ++i) {
    if (i < host.size()) {
      const auto& [part, at, bytes] = host[i];
      device().copy_to_host(staging().half(i).h_data, part->d_data + at, bytes, staging().stream);
      device().record(staging().half(i).arrived, staging().stream);
    }
    if (i == 0) continue;
    const auto& [part, at, bytes] = host[i - 1];  // Copied while the next part is in transit.
    wait_event(staging().half(i - 1).arrived, "frames on their way to the host");
    copy_pieces(*part->transfer, at, {staging().half(i - 1).h_data, static_cast<std::size_t>(bytes)}, false);
  }
  if (host.empty()) wait_event(staging().table_arrived, "the frames");
}

}  // namespace sparsecast

#endif
