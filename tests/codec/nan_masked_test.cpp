// SPDX-License-Identifier: Apache-2.0
#include "codec/nan_masked.hpp"

#include <gtest/gtest.h>

#include "support/expect_error.hpp"
#include "support/forge.hpp"
#include "support/nan_masked.hpp"

namespace sparsecast::test {
namespace {

/// The frames of a delta, taken apart.
struct Received {
  explicit Received(const RandomDelta& delta)
      : records(encode_records(*delta.table, delta.old_state, delta.new_state, delta.options)),
        header(parse_header(records.front())) {
    for (const Bytes& record : records) {
      if (peek_record(record).kind == RecordKind::kFrame) {
        readers.push_back(std::make_unique<FrameReader>(record, header, *delta.table));
        frames.push_back(readers.back().get());
      }
    }
  }
  std::vector<Bytes> records;
  DeltaHeader header;
  std::vector<std::unique_ptr<FrameReader>> readers;
  std::vector<const FrameReader*> frames;
};

std::vector<StateDigest> changes_of(const RandomDelta& delta) {
  std::vector<StateDigest> changes = digest_tensors(*delta.table, refs_to(*delta.table, views(delta.new_state)));
  const std::vector<StateDigest> before = digest_tensors(*delta.table, refs_to(*delta.table, views(delta.old_state)));
  for (std::size_t t = 0; t < changes.size(); ++t) changes[t] -= before[t];
  return changes;
}

class NanMaskedProperty : public testing::TestWithParam<ValueCodec> {};
INSTANTIATE_TEST_SUITE_P(Values, NanMaskedProperty,
                         testing::Values(ValueCodec::kRaw, ValueCodec::kXor, ValueCodec::kUlp));

TEST_P(NanMaskedProperty, ExpandingAndMaskedCopyingIsApplying) {
  SCOPED_TRACE(seed_note());
  for (std::uint64_t n = 0; n < 150 && !HasFailure(); ++n) {
    Random random(case_seed(run_seed(), n));
    RandomDelta delta = random_delta(random);
    delta.options.values = GetParam();
    const bool back = GetParam() != ValueCodec::kRaw && random.chance(0.4);
    keep_to_numbers(delta, back);
    const TensorTable& table = *delta.table;
    const Received received(delta);
    const TensorState& base = back ? delta.new_state : delta.old_state;
    const TensorState& result = back ? delta.old_state : delta.new_state;
    // Live tensors as views of larger memory, or as they are.
    std::vector<Placement> places;
    TensorState memory;
    std::vector<TensorRef> live;
    const bool strided = random.chance(0.5);
    for (std::size_t t = 0; t < table.size(); ++t) {
      places.push_back(random_placement(random, table[t].shape));
      if (!strided || table[t].shape.size() > 8) {
        places[t] = {{table[t].elements()}, {1}, table[t].elements()};
      }
      memory.emplace_back(places[t].elements * element_size(table[t].dtype), std::byte{0x55});
      scatter(places[t], element_size(table[t].dtype), base[t], memory[t].data());
      const bool plain = places[t].shape != table[t].shape;
      live.push_back(
          ref_to(table[t], memory[t].data(), kHostMemory, plain ? std::vector<std::int64_t>{} : places[t].strides));
    }
    const NanMaskedDelta masked(table, received.frames, live, back ? Direction::kInverse : Direction::kForward,
                                random.chance(0.2) ? 3 : 1);
    std::vector<StateDigest> changes = changes_of(delta);
    for (StateDigest& change : changes) {
      if (back) change = StateDigest{} -= change;
    }
    ASSERT_EQ(masked.digest_changes(), changes);
    for (std::size_t t = 0; t < table.size(); ++t) {
      const std::size_t size = element_size(table[t].dtype);
      const bool touched = std::ranges::find(masked.tensors(), t) != masked.tensors().end();
      if (!touched) {
        ASSERT_EQ(base[t], result[t]);
        continue;
      }
      Bytes out(table[t].bytes() + 1, std::byte{0x77});
      masked.expand(t, MutableBytes(out).first(table[t].bytes()));
      ASSERT_EQ(out.back(), std::byte{0x77});
      masked_copy({table[t].dtype, places[t].shape, {}, places[t].strides}, out.data(), memory[t].data());
      ASSERT_EQ(gather(places[t], size, memory[t].data()), result[t]) << "case " << n << ", tensor " << t;
    }
  }
}

RandomDelta one_tensor(DType dtype, std::uint64_t elements, std::uint64_t fill) {
  RandomDelta delta;
  delta.table = std::make_shared<const TensorTable>(
      std::vector<TensorSpec>{{"quiet", DType::kI32, {5}}, {"weights", dtype, {elements}}});
  delta.old_state = {Bytes(20), Bytes(elements * element_size(dtype))};
  for (std::uint64_t i = 0; i < elements; ++i) write_element(delta.old_state[1].data(), element_size(dtype), i, fill);
  delta.new_state = delta.old_state;
  return delta;
}

TEST_P(NanMaskedProperty, ARealNanIsRefusedByNameBeforeAnythingIsWritten) {
  for (const DType dtype : {DType::kBF16, DType::kF16, DType::kF32, DType::kF64, DType::kF8E4M3, DType::kF8E5M2}) {
    RandomDelta delta = one_tensor(dtype, 40'000, 0x31);
    delta.options.values = GetParam();
    const std::size_t size = element_size(dtype);
    for (std::uint64_t i = 0; i < 40'000; i += 90) write_element(delta.new_state[1].data(), size, i, 0x32);
    write_element(delta.new_state[1].data(), size, 33'333, ~std::uint64_t{0});
    const Received received(delta);
    const TensorState live = delta.old_state;
    expect_error(
        ErrorCode::kUnsupported,
        [&] { NanMaskedDelta(*delta.table, received.frames, refs_to(*delta.table, views(live)), Direction::kForward); },
        {"weights", "33333", "NaN"});
    EXPECT_EQ(live, delta.old_state);
  }
}

TEST_P(NanMaskedProperty, ANanThatStaysOrVanishesIsCarried) {
  // Every other element changes, so that blocks are dense and name the NaNs too, whose bits a loader must not see lost.
  RandomDelta delta = one_tensor(DType::kBF16, 20'000, 0x3F80);
  delta.options.values = GetParam();
  delta.options.positions = PositionMode::kAuto;
  for (std::uint64_t i = 0; i < 20'000; ++i) {
    if (i % 100 == 7) write_element(delta.old_state[1].data(), 2, i, 0x7FD5 + i % 3);
  }
  delta.new_state = delta.old_state;
  for (std::uint64_t i = 0; i < 20'000; ++i) {
    if (i % 100 != 7) write_element(delta.new_state[1].data(), 2, i, 0x3F80 ^ (i * 77 % 0x1000));
  }
  write_element(delta.new_state[1].data(), 2, 107, 0x3F81);
  const Received received(delta);
  TensorState live = delta.old_state;
  const NanMaskedDelta masked(*delta.table, received.frames, refs_to(*delta.table, views(live)), Direction::kForward);
  EXPECT_EQ(masked.tensors(), std::vector<std::size_t>{1});
  Bytes out(40'000);
  masked.expand(1, out);
  masked_copy({DType::kBF16, {20'000}, {}, {}}, out.data(), live[1].data());
  EXPECT_EQ(live, delta.new_state);
}

TEST(NanMasked, ErrorsNameTheTensor) {
  RandomDelta delta = one_tensor(DType::kBF16, 100, 0x3F80);
  delta.new_state[1][4] ^= std::byte{1};
  const Received floats(delta);
  const auto make = [&](const Received& received, std::vector<TensorRef> live, Direction direction) {
    return NanMaskedDelta(*delta.table, received.frames, std::move(live), direction);
  };
  std::vector<TensorRef> live = refs_to(*delta.table, views(delta.old_state));
  expect_error(ErrorCode::kUsage, [&] { make(floats, {}, Direction::kForward); }, {"0 live tensors"});
  live[1].strides = {1, 1};
  expect_error(ErrorCode::kUsage, [&] { make(floats, live, Direction::kForward); }, {"weights", "stride"});
  live[1] = {};
  expect_error(ErrorCode::kUsage, [&] { make(floats, live, Direction::kForward); }, {"weights", "live"});

  delta.options.values = ValueCodec::kRaw;
  const Received raw(delta);
  expect_error(ErrorCode::kUsage,
               [&] { make(raw, refs_to(*delta.table, views(delta.old_state)), Direction::kInverse); }, {"raw"});
  const NanMaskedDelta unknown = make(raw, live, Direction::kForward);
  Bytes out(200);
  unknown.expand(1, out);
  masked_copy({DType::kBF16, {100}, {}, {}}, out.data(), delta.old_state[1].data());
  EXPECT_EQ(delta.old_state, delta.new_state);
  expect_error(ErrorCode::kUsage, [&] { unknown.expand(1, MutableBytes(out).first(199)); }, {"weights", "199"});
  expect_error(ErrorCode::kUsage, [&] { unknown.expand(2, out); }, {"2"});

  delta.new_state[0][3] ^= std::byte{1};
  const Received integers(delta);
  expect_error(ErrorCode::kUnsupported,
               [&] { make(integers, refs_to(*delta.table, views(delta.old_state)), Direction::kForward); },
               {"quiet", "I32", "NaN"});
}

}  // namespace
}  // namespace sparsecast::test
