// SPDX-License-Identifier: Apache-2.0

// Fuzzes tables and frame bodies under valid checksums: a subscriber refuses them and keeps its live state, or applies
// them, reaches the promised digest, and can undo them.
//
// An input is a delta file without trustworthy checksums: a header, a table, then one frame record (its first 64 bytes
// and a body). The harness computes the checksums again, so that the decoders behind them are reached. A table that is
// invalid or large is replaced by a fixed one. Golden deltas are the seeds.

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <optional>

#include "sparsecast/subscriber.hpp"
#include "support/delta_bytes.hpp"
#include "support/forge.hpp"

namespace {

using namespace sparsecast;
using namespace sparsecast::test;

constexpr std::size_t kHeaderBytes = 128;
constexpr std::uint64_t kMostStateBytes = 32 << 10;

TensorTable fixed_table() {
  return TensorTable(std::vector<TensorSpec>{{"a", DType::kBF16, {2, 150}},
                                             {"b", DType::kF32, {300}},
                                             {"c", DType::kU8, {17'000}},
                                             {"d", DType::kF64, {}},
                                             {"e", DType::kF8E4M3, {0}},
                                             {"f", DType::kI64, {50}},
                                             {"g", DType::kF4X2, {300}},
                                             {"h", DType::kF8E8M0, {300}},
                                             {"i", DType::kU16, {300}},
                                             {"j", DType::kU32, {300}},
                                             {"k", DType::kC64, {300}},
                                             {"l", DType::kF6E3M2, {300}}});
}

/// Returns the sum of the changes of the entries of an uncompressed body: the rules after this check are the
/// interesting ones.
std::uint64_t changes_of(ConstBytes body, std::uint64_t groups, std::uint64_t blocks) {
  std::uint64_t changed = 0;
  const std::uint64_t end = std::min<std::uint64_t>(8 * groups + 16 * blocks, body.size());
  for (std::uint64_t entry = 8 * groups; entry < end; entry += 16) {
    changed += field<std::uint32_t>(body, entry + 4) & 0xFFFFFF;
  }
  return changed;
}

/// The table record at the front of `bytes`, checksummed so that its body is parsed; moves `bytes` behind it.
std::optional<TensorTable> take_table(ConstBytes& bytes) {
  if (bytes.size() < at::kTableBody || std::memcmp(bytes.data(), "SCT1", 4) != 0) return std::nullopt;
  const std::size_t stored =
      std::min<std::size_t>(field<std::uint32_t>(bytes, at::kTableStored), bytes.size() - at::kTableBody);
  const std::size_t size = std::min((at::kTableBody + stored + 7) / 8 * 8, bytes.size());
  const ConstBytes body = bytes.subspan(at::kTableBody, stored);
  bytes = bytes.subspan(size);
  try {
    TensorTable table = TensorTable::parse(body);
    if (table.bytes() <= kMostStateBytes) return table;
  } catch (const Error&) {
    // Not a table; the fixed one serves.
  }
  return std::nullopt;
}

/// A state that depends on every byte's place.
TensorState base_state(const TensorTable& table) {
  TensorState state;
  for (const TensorSpec& spec : table) {
    Bytes& bits = state.emplace_back(spec.bytes());
    for (std::size_t i = 0; i < bits.size(); ++i) bits[i] = static_cast<std::byte>((i * 0x9E3779B1U) >> 13);
  }
  return state;
}

void require(bool holds) {
  if (!holds) std::abort();
}

/// Stages the records; true when the delta is complete.
bool staged(Subscriber& subscriber, const std::vector<Bytes>& records) {
  try {
    for (const Bytes& record : records) subscriber.stage(record);
  } catch (const Error&) {
    return false;
  }
  return subscriber.ready();
}

void check(const std::shared_ptr<const TensorTable>& table, std::vector<Bytes> records) {
  const TensorState base = base_state(*table);
  TensorState live = base;
  SubscriberOptions options;
  options.stream = table->hash();
  Subscriber subscriber(table, refs_to(*table, live_views(live)), options);
  const bool complete = staged(subscriber, records);
  require(live == base);
  if (!complete) return;

  // A digest that cannot be right: every write must be undone.
  try {
    subscriber.apply();
    std::abort();
  } catch (const Error& error) {
    require(error.code() == ErrorCode::kDigestMismatch);
  }
  require(live == base && !subscriber.dirty() && subscriber.version() == 0);

  // The digest of what the blocks really do: applied, verified, and rolled back.
  TensorState expected = base;
  apply_blocks(records, *table, expected);
  set_field(records.back(), at::kCommitDigest, sum(digest_tensors(*table, refs_to(*table, views(expected)))).value);
  refresh_checksums(records);
  require(staged(subscriber, records));
  subscriber.apply();
  require(live == expected);
  subscriber.audit();
  subscriber.undo_last();
  require(live == base);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  ConstBytes bytes{reinterpret_cast<const std::byte*>(data), size};
  if (size < kHeaderBytes + at::kFrameBody) return -1;
  const auto values = static_cast<ValueCodec>(field<std::uint8_t>(bytes, 97) % 3);
  const bool context = field<std::uint8_t>(bytes, 96) == static_cast<std::uint8_t>(PositionMode::kContext);
  bytes = bytes.subspan(kHeaderBytes);
  std::optional<TensorTable> given = take_table(bytes);
  const auto table = std::make_shared<const TensorTable>(given ? std::move(*given) : fixed_table());
  if (bytes.size() < at::kFrameBody) return -1;

  DeltaHeader header;
  header.stream = table->hash();
  header.version = 1;
  const TensorState base = base_state(*table);
  header.base_digest = sum(digest_tensors(*table, refs_to(*table, views(base))));
  header.values = values;
  if (context && values == ValueCodec::kUlp) header.positions = PositionMode::kContext;
  std::vector<Bytes> records = forge_records(*table, header, {}, {{1, 2}});
  records.erase(records.begin() + 1);
  const std::size_t stored =
      std::min<std::size_t>(field<std::uint32_t>(bytes, at::kFrameStored), bytes.size() - at::kFrameBody);
  const ConstBytes body = bytes.subspan(at::kFrameBody, stored);
  const auto groups = field<std::uint32_t>(bytes, at::kFrameGroups);
  const auto blocks = field<std::uint32_t>(bytes, at::kFrameBlocks);
  const bool compressed = field<std::uint32_t>(bytes, at::kFrameFlags) == 1;
  const auto body_bytes =
      compressed ? field<std::uint32_t>(bytes, at::kFrameBodyBytes) : static_cast<std::uint32_t>(stored);
  const std::uint64_t changed =
      compressed ? field<std::uint64_t>(bytes, at::kFrameChanged) : changes_of(body, groups, blocks);
  records.insert(records.begin() + 1, wrap_body(body, 0, groups, blocks, changed, 1, compressed, body_bytes));
  refresh_checksums(records);
  check(table, std::move(records));
  return 0;
}
