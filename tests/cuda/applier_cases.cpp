// SPDX-License-Identifier: Apache-2.0
#include "cuda/applier_cases.hpp"

#include <algorithm>

#include "support/expect_error.hpp"
#include "support/forge.hpp"

namespace sparsecast::test {

std::vector<Bytes> frames_of(const std::vector<Bytes>& records) {
  std::vector<Bytes> frames(records.begin() + 1, records.end() - 1);
  std::erase_if(frames, [](const Bytes& record) { return static_cast<char>(record[2]) == 'T'; });
  return frames;
}

StateDigest digest_of(const TensorTable& table, const TensorState& state) {
  return sum(digest_tensors(table, refs_to(table, views(state))));
}

StateDigest minus(StateDigest a, const StateDigest& b) { return a -= b; }

cuda::DeviceApplierOptions with_entries(bool kept) {
  return {.keep_replaced = cuda::KeepReplaced::kAll, .entry_bytes = kept ? ~std::uint64_t{0} : 0};
}

void expect_applies(const RandomDelta& delta, std::size_t skew, bool entries) {
  const TensorTable& table = *delta.table;
  const std::vector<Bytes> records = encode_records(table, delta.old_state, delta.new_state, delta.options);
  const DeltaHeader header = parse_header(records.front());
  const StateDigest before = digest_of(table, delta.old_state);
  const StateDigest after = digest_of(table, delta.new_state);
  Receiver receiver(table, delta.old_state, skew, with_entries(entries));
  ASSERT_EQ(receiver.digest(), before);
  receiver.stage(header, frames_of(records));
  ASSERT_EQ(receiver.state(), delta.old_state) << "staging has written";
  ASSERT_EQ(receiver.apply(), minus(after, before));
  ASSERT_EQ(first_difference(table, receiver.state(), delta.new_state), "");
  ASSERT_EQ(receiver.digest(), after);
  ASSERT_EQ(receiver.restore(), minus(before, after));
  ASSERT_EQ(first_difference(table, receiver.state(), delta.old_state), "");
  if (delta.options.values == ValueCodec::kRaw) {
    expect_error(ErrorCode::kUsage, [&] { receiver.apply(Direction::kInverse); }, {"raw"});
    return;
  }
  receiver.apply();
  ASSERT_EQ(receiver.apply(Direction::kInverse), minus(before, after));
  ASSERT_EQ(first_difference(table, receiver.state(), delta.old_state), "");
}

std::optional<ErrorCode> apply_on_cpu(const std::vector<Bytes>& records, const TensorTable& table, TensorState& state) {
  try {
    const DeltaHeader header = parse_header(records.front());
    ApplyScratch scratch;
    std::uint32_t sequence = 0;
    for (const Bytes& record : frames_of(records)) {
      // A body that only claims to be compressed is corrupt for the CPU; the device does not look inside.
      if (field<std::uint32_t>(record, at::kFrameFlags) == 1 && parse_frame_header(record).compressed) {
        return ErrorCode::kUnsupported;
      }
      const FrameReader frame(record, header, table);
      // A delta's rule, not a frame's.
      if (frame.header().sequence != sequence++) layout::corrupt("out of sequence");
      for (const BlockRef& block : frame.blocks()) validate_block(block, table[block.tensor].dtype, scratch);
    }
    apply_blocks(records, table, state);
    return std::nullopt;
  } catch (const Error& error) {
    return error.code();
  }
}

void expect_same_decision(const std::vector<Bytes>& records, const TensorTable& table, const TensorState& base,
                          Decisions& decisions) {
  TensorState expected = base;
  const std::optional<ErrorCode> refused = apply_on_cpu(records, table, expected);
  Receiver receiver(table, base);
  const DeltaHeader header = parse_header(records.front());
  if (refused) {
    ++decisions.refused;
    expect_error(*refused, [&] { receiver.stage(header, frames_of(records)); });
    ASSERT_EQ(receiver.state(), base) << "a refused delta has changed the live state";
    return;
  }
  ++decisions.applied;
  receiver.stage(header, frames_of(records));
  const StateDigest change = receiver.apply();
  ASSERT_EQ(first_difference(table, receiver.state(), expected), "");
  ASSERT_EQ(change, minus(digest_of(table, expected), digest_of(table, base)));
}

}  // namespace sparsecast::test
