// SPDX-License-Identifier: Apache-2.0

// Fuzzes messages between the ranks of a channel: the count table of an NCCL broadcast, the opening of a broadcast over
// MPI or TCP, and the table of rank infos from which a communicator is formed.

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <span>
#include <vector>

#include "sparsecast/digest.hpp"
#include "transport/message_plan.hpp"
#include "transport/nccl/count_table.hpp"
#include "transport/nccl/formation.hpp"

namespace {

using namespace sparsecast;

constexpr std::uint64_t kMostRecords = 4096;
constexpr std::uint64_t kMostBytes = std::uint64_t{1} << 20;

void require(bool condition) {
  if (!condition) std::abort();
}

/// Numbers from the input; zeros when it is used up.
class Reader {
 public:
  explicit Reader(std::span<const std::uint8_t> left) : left_(left) {}
  template <class Value>
  Value next() {
    Value value{};
    const std::size_t bytes = std::min(sizeof(Value), left_.size());
    if (bytes != 0) std::memcpy(&value, left_.data(), bytes);
    left_ = left_.subspan(bytes);
    return value;
  }

 private:
  std::span<const std::uint8_t> left_;
};

void require_consistent(std::span<const std::uint64_t> sizes, std::uint64_t total) {
  std::uint64_t sum = 0;
  for (const std::uint64_t size : sizes) {
    require(size <= total - sum);
    sum += size;
  }
  require(sum == total);
}

void count_table(Reader input) {
  auto table = make_table(7, {});
  const auto flags = input.next<std::uint8_t>();
  if (flags & 1) table.kind = static_cast<TableKind>(input.next<std::uint32_t>());
  if (flags & 2) table.protocol = input.next<std::uint32_t>();
  if (flags & 4) table.sequence = input.next<std::uint64_t>();
  if (flags & 8) table.magic = input.next<std::uint32_t>();
  table.error_code = flags & 16 ? input.next<std::uint32_t>() : 0;
  table.count = flags & 32 ? input.next<std::uint64_t>() : input.next<std::uint16_t>();
  table.total = flags & 64 ? input.next<std::uint64_t>() : input.next<std::uint16_t>();
  for (std::size_t i = 0; i < 64; ++i)
    table.sizes[i] = flags & 128 ? input.next<std::uint64_t>() : input.next<std::uint16_t>();
  const auto bytes = std::as_bytes(std::span(&table, 1));
  table.checksum = xxh3_64(std::as_bytes(std::span(table.sizes)), xxh3_64(bytes.first(offsetof(CountTable, checksum))));
  const TableLimits limits{kMostRecords, kMostBytes};
  try {
    check_table(table, TableKind::kHostRecords, 7, limits);
    std::vector<std::uint64_t> sizes = sizes_of(table);
    require(sizes.size() <= kMostRecords);
    for (std::size_t i = kTableSizes; i < sizes.size(); ++i) sizes[i] = input.next<std::uint16_t>();
    check_sizes(table, sizes);
    require_consistent(sizes, table.total);
  } catch (const Error&) {
  }
}

void opening(Reader input) {
  Opening opening = pack_opening({});
  if (input.next<std::uint8_t>() & 1) opening[0] = input.next<std::uint64_t>();
  for (std::size_t i = 1; i < opening.size(); ++i) {
    opening[i] = input.next<std::uint8_t>() & 1 ? input.next<std::uint64_t>() : input.next<std::uint8_t>();
  }
  WireLimits limits;
  limits.max_records = kMostRecords;
  limits.max_bytes = kMostBytes;
  limits.piece_bytes = 1 + input.next<std::uint16_t>();
  try {
    std::vector<std::uint64_t> sizes = parse_opening(opening, limits);
    require(sizes.size() <= kMostRecords);
    for (std::size_t i = kOpeningSizes; i < sizes.size(); ++i) sizes[i] = input.next<std::uint8_t>();
    check_sizes(opening, sizes);
    require_consistent(sizes, opening[2]);
    MessageCutter cutter(sizes, limits.piece_bytes);
    std::uint64_t cut = 0;
    for (auto batch = cutter.next_batch(); !batch.empty(); batch = cutter.next_batch()) {
      for (const Message& message : batch) cut += message.bytes;
    }
    require(cut == opening[2]);
  } catch (const Error& error) {
    require(error.code() == ErrorCode::kCorrupt);
  }
}

void rank_infos(Reader input) {
  const int size = 1 + input.next<std::uint8_t>() % 12;
  std::vector<Bytes> all;
  for (int r = 0; r < size; ++r) {
    NcclRankInfo p;
    const auto flags = input.next<std::uint16_t>();
    p.can_register = flags & 1;
    p.can_init_scalable = flags >> 1 & 1;
    p.can_shrink = flags >> 2 & 1;
    p.can_grow = flags >> 3 & 1;
    p.old_channel = flags & 16 ? input.next<std::uint64_t>() : flags >> 5 & 1;
    p.old_rank = flags & 64 ? input.next<std::int32_t>() : input.next<std::int8_t>();
    p.old_size = flags & 128 ? input.next<std::int32_t>() : 4;
    p.nonce = flags;
    p.device[0] = static_cast<char>(flags & 256 ? input.next<std::uint8_t>() : r + 1);
    if (flags & 512) p.device.fill('x');
    if (flags & 1024) p.settings.fill('y');
    if (flags & 2048) p.protocol = input.next<std::uint32_t>();
    if (flags & 4096) p.nccl_version = input.next<std::int32_t>();
    if (flags & 8192) p.host_id.fill(static_cast<char>(input.next<std::uint8_t>()));
    const auto bytes = std::as_bytes(std::span(&p, 1));
    all.emplace_back(bytes.begin(), bytes.end());
    if (flags & 16384) all.back().resize(input.next<std::uint8_t>() * std::size_t{8});
  }
  try {
    const std::vector<NcclRankInfo> parsed = parse_rank_infos(all);
    check_rank_infos(parsed);
    const FormationPlan plan = plan_formation(parsed);
    for (const int root : plan.roots) require(root >= 0 && root < size);
    require(!plan.roots.empty());
    if (plan.formation == Formation::kShrink) {
      require(plan.lost.size() + parsed.size() == static_cast<std::size_t>(parsed[0].old_size));
      for (const int lost : plan.lost) require(lost >= 0 && lost < parsed[0].old_size);
    }
  } catch (const Error& error) {
    require(error.code() == ErrorCode::kGroupMismatch);
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size == 0) return 0;
  const Reader input(std::span(data, size).subspan(1));
  switch (data[0] % 3) {
    case 0:
      count_table(input);
      break;
    case 1:
      opening(input);
      break;
    default:
      rank_infos(input);
  }
  return 0;
}
