// SPDX-License-Identifier: Apache-2.0

// Records on a transport: in any order, twice, missing, of other deltas, of other streams.

#include <gtest/gtest.h>

#include "sparsecast/subscriber.hpp"
#include "support/expect_error.hpp"
#include "support/forge.hpp"
#include "support/random_delta.hpp"

namespace sparsecast::test {
namespace {

/// One version step of several frames: a tensor of random bytes larger than a frame may be, changed throughout.
class RecordOrderProperty : public ::testing::TestWithParam<ValueCodec> {
 protected:
  RecordOrderProperty() : random_(run_seed()) {
    table_ = std::make_shared<const TensorTable>(
        std::vector<TensorSpec>{{"a", DType::kF32, {600'000}}, {"b", DType::kU8, {1'500'000}}});
    for (int version = 0; version < 3; ++version) {
      TensorState& state = states_.emplace_back();
      for (const TensorSpec& spec : *table_) {
        Bytes& bits = state.emplace_back(spec.bytes());
        for (std::size_t i = 0; i < bits.size(); i += 8)
          write_element(bits.data(), std::min<std::size_t>(8, bits.size() - i), i / 8, random_.next());
      }
    }
    options_.values = GetParam();
    options_.frame_capacity = kMinFrameCapacity;
    for (std::uint64_t version = 0; version < 2; ++version) {
      deltas_.push_back(
          encode_records(*table_, states_[version], states_[version + 1], options_, {version, version + 1}));
      deltas_.back().erase(deltas_.back().begin() + 1);
    }
    live_ = states_[0];
  }

  Subscriber subscriber(SubscriberOptions options = {}) {
    return Subscriber(table_, refs_to(*table_, live_views(live_)), options);
  }
  const Bytes& header(std::size_t delta) const { return deltas_[delta].front(); }
  const Bytes& frame(std::size_t delta, std::size_t i) const { return deltas_[delta][1 + i]; }
  const Bytes& commit(std::size_t delta) const { return deltas_[delta].back(); }
  std::size_t frames(std::size_t delta) const { return deltas_[delta].size() - 2; }

  void expect_untouched(const Subscriber& subscriber) {
    EXPECT_TRUE(live_ == states_[0]) << "the live state has changed";
    EXPECT_EQ(subscriber.version(), 0U);
    EXPECT_FALSE(subscriber.dirty());
  }
  void expect_takes(Subscriber& subscriber, std::size_t delta) {
    for (const Bytes& record : deltas_[delta]) subscriber.stage(record);
    ASSERT_TRUE(subscriber.ready());
    EXPECT_EQ(subscriber.apply().version, delta + 1);
    EXPECT_TRUE(live_ == states_[delta + 1]);
  }

  Random random_;
  std::shared_ptr<const TensorTable> table_;
  std::vector<TensorState> states_;
  EncodeOptions options_;
  std::vector<std::vector<Bytes>> deltas_;  ///< Without their table records.
  TensorState live_;
};

TEST_P(RecordOrderProperty, FramesArriveInAnyOrderAndRepeated) {
  SCOPED_TRACE(seed_note());
  ASSERT_GE(frames(0), 3U);
  for (int round = 0; round < 5; ++round) {
    live_ = states_[0];
    Subscriber receiver = subscriber();
    receiver.stage(header(0));
    std::vector<const Bytes*> records{&commit(0), &commit(0)};
    for (std::size_t i = 0; i < frames(0); ++i) records.insert(records.end(), {&frame(0, i), &frame(0, i)});
    for (std::size_t i = records.size(); i > 1; --i) std::swap(records[i - 1], records[random_.below(i)]);
    for (const Bytes* record : records) receiver.stage(*record);
    EXPECT_TRUE(receiver.ready());
    receiver.apply();
    EXPECT_TRUE(live_ == states_[1]);
  }
}

TEST_P(RecordOrderProperty, AnythingMissingKeepsTheDeltaIncomplete) {
  for (std::size_t missing = 1; missing < deltas_[0].size(); ++missing) {
    Subscriber receiver = subscriber();
    for (std::size_t i = 0; i < deltas_[0].size(); ++i) {
      if (i != missing) receiver.stage(deltas_[0][i]);
    }
    EXPECT_FALSE(receiver.ready());
    expect_error(ErrorCode::kIncomplete, [&] { receiver.apply(); });
    expect_untouched(receiver);
    receiver.stage(deltas_[0][missing]);
    EXPECT_TRUE(receiver.ready()) << "the missing record completes it";
  }
}

TEST_P(RecordOrderProperty, RecordsBeforeTheirHeaderAreRefused) {
  Subscriber receiver = subscriber();
  expect_error(ErrorCode::kIncomplete, [&] { receiver.stage(frame(0, 0)); });
  expect_error(ErrorCode::kIncomplete, [&] { receiver.stage(commit(0)); });
  expect_untouched(receiver);
  expect_takes(receiver, 0);
}

TEST_P(RecordOrderProperty, RecordsOfAnotherDeltaAreRefusedAndTheStagedOneStands) {
  Subscriber receiver = subscriber();
  receiver.stage(header(0));
  expect_error(ErrorCode::kForeignStream, [&] { receiver.stage(frame(1, 0)); });
  expect_error(ErrorCode::kForeignStream, [&] { receiver.stage(commit(1)); });
  expect_untouched(receiver);
  for (std::size_t i = 1; i < deltas_[0].size(); ++i) receiver.stage(deltas_[0][i]);
  receiver.apply();
  EXPECT_TRUE(live_ == states_[1]);
}

TEST_P(RecordOrderProperty, ARepeatedDeltaIsStaleAndASkippedOneAGap) {
  Subscriber receiver = subscriber();
  expect_error(ErrorCode::kVersionGap, [&] { receiver.stage(header(1)); });
  expect_takes(receiver, 0);
  expect_error(ErrorCode::kStaleVersion, [&] { receiver.stage(header(0)); });
  expect_takes(receiver, 1);
  expect_error(ErrorCode::kStaleVersion, [&] { receiver.stage(header(1)); });
  EXPECT_TRUE(live_ == states_[2]);
}

TEST_P(RecordOrderProperty, AnotherBaseStreamOrTableIsRefused) {
  live_[1][17] ^= std::byte{1};
  {
    Subscriber receiver = subscriber();
    expect_error(ErrorCode::kWrongBase, [&] { receiver.stage(header(0)); });
  }
  live_ = states_[0];
  SubscriberOptions other;
  other.stream = {1, 2};
  Subscriber receiver = subscriber(other);
  expect_error(ErrorCode::kForeignStream, [&] { receiver.stage(header(0)); });
  expect_untouched(receiver);

  SubscriberOptions same_stream;
  same_stream.stream = table_->hash();
  Bytes elsewhere(4);
  const auto other_table = std::make_shared<const TensorTable>(std::vector<TensorSpec>{{"a", DType::kF32, {1}}});
  Subscriber stranger(other_table, refs_to(*other_table, std::vector<MutableBytes>{elsewhere}), same_stream);
  expect_error(ErrorCode::kTableMismatch, [&] { stranger.stage(header(0)); });
}

TEST_P(RecordOrderProperty, TwoDifferentFramesOfOneNumberAreRefused) {
  std::vector<Bytes> forged = deltas_[0];
  set_field(forged[2], at::kFrameSequence, 0U);
  refresh_checksums(forged);
  Subscriber receiver = subscriber();
  receiver.stage(forged[0]);
  receiver.stage(forged[1]);
  expect_error(ErrorCode::kCorrupt, [&] { receiver.stage(forged[2]); });
  expect_untouched(receiver);
}

TEST_P(RecordOrderProperty, AFrameThatTheCommitDoesNotPromiseIsRefusedWheneverItArrives) {
  std::vector<Bytes> forged = deltas_[0];
  const Bytes extra = forged[frames(0)];
  forged.erase(forged.begin() + static_cast<std::ptrdiff_t>(frames(0)));
  refresh_checksums(forged);
  for (const bool late : {false, true}) {
    Subscriber receiver = subscriber();
    receiver.stage(forged[0]);
    if (!late) receiver.stage(extra);
    expect_error(ErrorCode::kCorrupt, [&] {
      for (std::size_t i = 1; i < forged.size(); ++i) receiver.stage(forged[i]);
      receiver.stage(extra);
    });
    expect_untouched(receiver);
  }
}

TEST_P(RecordOrderProperty, ASecondCommitThatSaysSomethingElseIsRefused) {
  std::vector<Bytes> forged = deltas_[0];
  set_field(forged.back(), at::kCommitDigest, std::uint64_t{1});
  refresh_checksums(forged);
  Subscriber receiver = subscriber();
  for (const Bytes& record : deltas_[0]) receiver.stage(record);
  expect_error(ErrorCode::kCorrupt, [&] { receiver.stage(forged.back()); });
  expect_untouched(receiver);
}

TEST_P(RecordOrderProperty, FramesThatOverlapEachOtherAreRefused) {
  std::vector<Bytes> forged = deltas_[0];
  Bytes again = forged[1];
  set_field(again, at::kFrameSequence, static_cast<std::uint32_t>(frames(0)));
  forged.insert(forged.end() - 1, again);
  refresh_checksums(forged);
  Subscriber receiver = subscriber();
  expect_error(ErrorCode::kCorrupt, [&] {
    for (const Bytes& record : forged) receiver.stage(record);
  });
  expect_error(ErrorCode::kIncomplete, [&] { receiver.apply(); });
  expect_untouched(receiver);
}

INSTANTIATE_TEST_SUITE_P(AllCodecs, RecordOrderProperty,
                         ::testing::Values(ValueCodec::kRaw, ValueCodec::kXor, ValueCodec::kUlp),
                         [](const auto& parameter) { return std::string(to_string(parameter.param)); });

}  // namespace
}  // namespace sparsecast::test
