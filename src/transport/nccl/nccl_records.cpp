// SPDX-License-Identifier: Apache-2.0

// Broadcasts records through staging memory: one count table, then large broadcasts.

#ifdef SPARSECAST_HAVE_NCCL

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <span>
#include <vector>

#include "sparsecast/delta.hpp"
#include "transport/nccl/nccl_group.hpp"

namespace sparsecast {

/// Walks over records and copies them to or from staging memory, a piece at a time. A receiver allocates a record when
/// its first byte has arrived.
class RecordCursor {
 public:
  RecordCursor(std::vector<Bytes>& records, std::span<const std::uint64_t> sizes, bool source)
      : records_(records), sizes_(sizes), source_(source) {}

  void copy(std::byte* h_staging, std::uint64_t bytes) {
    while (bytes > 0) {
      if (offset_ == sizes_[record_]) {
        ++record_;
        offset_ = 0;
        continue;
      }
      Bytes& record = records_[record_];
      if (!source_ && offset_ == 0) record.resize(static_cast<std::size_t>(sizes_[record_]));
      const std::uint64_t part = std::min(bytes, sizes_[record_] - offset_);
      std::byte* const place = record.data() + offset_;
      std::memcpy(source_ ? h_staging : place, source_ ? place : h_staging, static_cast<std::size_t>(part));
      h_staging += part;
      offset_ += part;
      bytes -= part;
    }
  }

 private:
  std::vector<Bytes>& records_;
  std::span<const std::uint64_t> sizes_;
  bool source_;
  std::size_t record_ = 0;
  std::uint64_t offset_ = 0;
};

ncclResult_t NcclGroup::enqueue(void* d_data, std::uint64_t bytes, int source) const {
  const NcclFunctions& nccl = *runtime_.functions;
  const auto count = static_cast<std::size_t>(bytes);
  const auto stream = static_cast<cudaStream_t>(staging_->stream);
  if (!report_.configured) return nccl.broadcast(d_data, d_data, count, ncclInt8, source, communicator_, stream);
  NcclCollConfig config;
  if (options_.broadcast_ctas != 0) config.max_ctas = options_.broadcast_ctas;
  config.user_profiler_tag = options_.profiler_tag;
  return nccl.broadcast_config(d_data, d_data, count, ncclInt8, source, communicator_, stream, &config);
}

void NcclGroup::issue(void* d_data, std::uint64_t bytes, int source, Deadline deadline) {
  // All broadcasts of records use this call; those of frames are in nccl_frames.cpp.
  check_nccl(*runtime_.functions, enqueue(d_data, bytes, source), communicator_, "ncclBroadcast");
  watchdog_.settle(communicator_, deadline, "ncclBroadcast");
}

void NcclGroup::wait_event(void* event, Deadline deadline, const std::string& what) {
  watchdog_.wait([&] { return staging_->api().finished(event); }, communicator_, deadline, what);
}

void NcclGroup::exchange_table(const CountTable& table, int source, Deadline deadline) {
  Staging& staging = *staging_;
  DeviceApi& device = staging.api();
  const bool sends = rank() == source;
  if (sends) {
    std::memcpy(staging.h_table, &table, sizeof(table));
    device.copy_to_device(staging.d_table, staging.h_table, sizeof(table), staging.stream);
  }
  issue(staging.d_table, sizeof(table), source, deadline);
  if (!sends) device.copy_to_host(staging.h_table, staging.d_table, sizeof(table), staging.stream);
  device.record(staging.table_arrived, staging.stream);
  // The source need not wait, because its next pieces follow on the same stream.
  if (sends) return;
  wait_event(staging.table_arrived, deadline, fmt::format("the count table of rank {}", source));
  check_table(*staging.h_table, TableKind::kHostRecords, sequence_, {options_.max_records, options_.max_bytes});
}

std::vector<std::uint64_t> NcclGroup::exchange_sizes(std::vector<std::uint64_t> sizes, int source, Deadline deadline) {
  const bool sends = rank() == source;
  ++sequence_;
  const CountTable own = sends ? make_table(sequence_, sizes) : CountTable{};
  exchange_table(own, source, deadline);
  const CountTable table = sends ? own : *staging_->h_table;
  if (!sends) sizes = sizes_of(table);
  if (sizes.size() > kTableSizes) {
    std::byte* place = std::as_writable_bytes(std::span(sizes).subspan(kTableSizes)).data();
    pipe((sizes.size() - kTableSizes) * sizeof(std::uint64_t), source,
         [&](std::byte* h_staging, std::uint64_t bytes) {
           std::memcpy(sends ? h_staging : place, sends ? place : h_staging, static_cast<std::size_t>(bytes));
           place += bytes;
         },
         deadline);
  }
  check_sizes(table, sizes);
  return sizes;
}

void NcclGroup::pipe(std::uint64_t total, int source, const CopyPiece& copy, Deadline deadline) {
  Staging& staging = *staging_;
  DeviceApi& device = staging.api();
  const bool sends = rank() == source;
  const std::uint64_t pieces = (total + staging.bytes() - 1) / staging.bytes();
  const auto length = [&](std::uint64_t piece) { return std::min(staging.bytes(), total - piece * staging.bytes()); };
  const auto arrive = [&](std::uint64_t piece) {
    wait_event(staging.half(piece).arrived, deadline,
               sends ? fmt::format("piece {} of {}", piece + 1, pieces)
                     : fmt::format("piece {} of {} from rank {}", piece + 1, pieces, source));
    if (!sends) copy(staging.half(piece).h_data, length(piece));
  };
  for (std::uint64_t piece = 0; piece < pieces; ++piece) {
    StagingHalf& half = staging.half(piece);
    if (sends) {
      if (piece >= 2) arrive(piece - 2);
      copy(half.h_data, length(piece));
      device.copy_to_device(half.d_data, half.h_data, length(piece), staging.stream);
    }
    issue(half.d_data, length(piece), source, deadline);
    if (!sends) device.copy_to_host(half.h_data, half.d_data, length(piece), staging.stream);
    device.record(half.arrived, staging.stream);
    if (!sends && piece >= 1) arrive(piece - 1);  // Copied out while this piece is in transit.
  }
  if (sends && pieces >= 2) arrive(pieces - 2);
  if (pieces >= 1) arrive(pieces - 1);
}

void NcclGroup::check_source(int source, const char* phase) const {
  if (source < 0 || source >= size()) {
    throw Error(ErrorCode::kUsage, fmt::format("source {} of {} ranks", source, size()), context(phase));
  }
}

void NcclGroup::broadcast(std::vector<Bytes>& records, int source, Deadline deadline) {
  check_source(source, "broadcast");
  guard("broadcast", [&] {
    const bool sends = rank() == source;
    if (size() == 1) return;
    resume(deadline);
    std::vector<std::uint64_t> sizes;
    if (sends) {
      for (const Bytes& record : records) sizes.push_back(record.size());
    }
    sizes = exchange_sizes(std::move(sizes), source, deadline);
    std::uint64_t total = 0;
    for (const std::uint64_t size : sizes) total += size;
    std::vector<Bytes> arriving(sends ? 0 : sizes.size());
    RecordCursor cursor(sends ? records : arriving, sizes, sends);
    pipe(
        total, source, [&](std::byte* h_staging, std::uint64_t bytes) { cursor.copy(h_staging, bytes); }, deadline);
    if (sends) {
      wait_event(staging_->table_arrived, deadline, "the count table");
    } else {
      records.swap(arriving);
    }
  });
}

}  // namespace sparsecast

#endif
