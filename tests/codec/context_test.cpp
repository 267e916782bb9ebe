// SPDX-License-Identifier: Apache-2.0

// The position codec `context`: its vector kernels against plain loops, receivers of another base, and what cannot be
// done without the base.

#include <gtest/gtest.h>
#include <hwy/targets.h>

#include <algorithm>
#include <bit>
#include <cmath>

#include "codec/context_kernels.hpp"
#include "sparsecast/publisher.hpp"
#include "sparsecast/subscriber.hpp"
#include "support/delta_bytes.hpp"
#include "support/detectors.hpp"
#include "support/expect_error.hpp"
#include "support/forge.hpp"
#include "support/random_delta.hpp"
#include "support/simd_targets.hpp"

namespace sparsecast::test {
namespace {

constexpr DType kFloating[] = {DType::kBF16, DType::kF16, DType::kF32, DType::kF64, DType::kF8E4M3, DType::kF8E5M2};

EncodeOptions context_options() {
  EncodeOptions options;
  options.positions = PositionMode::kContext;
  return options;
}

Bytes random_words(Random& random, std::size_t bytes) {
  Bytes words(bytes);
  for (std::byte& byte : words) byte = static_cast<std::byte>(random.next());
  return words;
}

TEST(ContextKernels, KeysAreTheExponentFields) {
  SCOPED_TRACE(seed_note());
  Random random(run_seed());
  for_each_target([&] {
    for (const DType dtype : kFloating) {
      const std::size_t size = element_size(dtype);
      for (std::uint32_t count = 0; count < 200; ++count) {
        const Bytes words = random_words(random, count * size + 1);
        std::vector<std::uint8_t> keys(count);
        cpu::read_keys(words.data() + 1, count, dtype, keys.data());
        for (std::uint32_t i = 0; i < count; ++i) {
          const std::uint64_t word = read_element(words.data() + 1, size, i);
          ASSERT_EQ(keys[i], key_of(word, exponent_field(dtype))) << to_string(dtype) << " " << i << " of " << count;
        }
      }
    }
  });
}

TEST(ContextKernels, KeysOfF64AreCutToAByte) {
  const ExponentField field = exponent_field(DType::kF64);
  EXPECT_EQ(key_of(std::bit_cast<std::uint64_t>(0.0), field), 0U);
  EXPECT_EQ(key_of(std::bit_cast<std::uint64_t>(1.0), field), 1023U - 832);
  EXPECT_EQ(key_of(std::bit_cast<std::uint64_t>(-1e300), field), 255U);
}

TEST(ContextKernels, TheSumTakesABytesTailAsZeros) {
  Random random(7);
  for_each_target([&] {
    for (std::size_t count = 0; count < 300; ++count) {
      const Bytes bytes = random_words(random, count);
      std::uint32_t expected = 0;
      for (std::size_t i = 0; i < count; ++i) expected += static_cast<std::uint32_t>(bytes[i]) << (8 * (i % 4));
      ASSERT_EQ(cpu::sum_words(bytes.data(), count), expected) << count;
    }
  });
}

TEST(ContextKernels, RanksAndPlacesAreThoseOfPlainLoops) {
  SCOPED_TRACE(seed_note());
  Random random(run_seed());
  for_each_target([&] {
    for (int n = 0; n < 300; ++n) {
      const auto span = static_cast<std::uint32_t>(random.between(1, n % 10 == 0 ? kTileElems : 1'500));
      const auto lowest = static_cast<std::uint32_t>(random.below(250));
      const auto spread = static_cast<std::uint32_t>(random.between(1, 256 - lowest));
      std::vector<std::uint8_t> keys(span);
      for (std::uint8_t& key : keys) key = static_cast<std::uint8_t>(lowest + random.below(spread));
      ContextClasses classes;
      classes.hi = static_cast<std::uint32_t>(random.below(256));
      classes.count = static_cast<std::uint32_t>(random.between(1, kMostClasses));
      classes.width = static_cast<std::uint32_t>(random.between(1, 2));
      const double density = random.chance(0.2) ? 1.0 : 0.05;
      std::vector<std::uint32_t> positions;
      std::vector<std::uint32_t> expected_ranks;
      std::uint32_t seen[kMostClasses] = {};
      for (std::uint32_t i = 0; i < span; ++i) {
        const std::uint32_t c = class_of(keys[i], classes);
        if (random.chance(density)) {
          positions.push_back(i);
          expected_ranks.push_back(seen[c]);
        }
        ++seen[c];
      }
      const auto count = static_cast<std::uint32_t>(positions.size());
      std::vector<std::uint8_t> found_classes(count);
      std::vector<std::uint32_t> ranks(count);
      cpu::rank_changes(keys.data(), span, classes, positions.data(), count, found_classes.data(), ranks.data());
      ASSERT_EQ(ranks, expected_ranks);

      cpu::RankWalk walk;
      std::vector<std::uint32_t> by_class;
      std::vector<std::uint32_t> expected_numbers(count);
      for (std::uint32_t c = 0; c < kMostClasses; ++c) {
        walk.next[c] = static_cast<std::uint32_t>(by_class.size());
        for (std::uint32_t i = 0; i < count; ++i) {
          if (found_classes[i] != c) continue;
          ASSERT_EQ(c, class_of(keys[positions[i]], classes));
          expected_numbers[i] = static_cast<std::uint32_t>(by_class.size());
          by_class.push_back(ranks[i]);
        }
        walk.end[c] = static_cast<std::uint32_t>(by_class.size());
      }
      walk.ranks = by_class.data();
      std::vector<std::uint32_t> places(count);
      std::vector<std::uint32_t> numbers(count);
      ASSERT_EQ(cpu::place_ranks(keys.data(), span, classes, walk, places.data(), numbers.data()), count);
      ASSERT_EQ(places, positions);
      ASSERT_EQ(numbers, expected_numbers);
    }
  });
}

/// Normal weights of standard deviation 0.02 and a step that changes the small ones more often, as optimizers do.
struct Step {
  std::shared_ptr<const TensorTable> table;
  TensorState before;
  TensorState after;
};

Step optimizer_step(Random& random, std::uint64_t elements) {
  Step step;
  step.table = std::make_shared<const TensorTable>(std::vector<TensorSpec>{{"weight", DType::kBF16, {elements}}});
  step.before.emplace_back(elements * 2);
  for (std::uint64_t i = 0; i < elements; ++i) {
    float sum = 0;
    for (int n = 0; n < 4; ++n) sum += static_cast<float>(random.below(20'001)) / 10'000.0F - 1.0F;
    write_element(step.before[0].data(), 2, i, std::bit_cast<std::uint32_t>(0.02F * sum) >> 16);
  }
  step.after = step.before;
  for (std::uint64_t i = 0; i < elements; ++i) {
    const std::uint64_t old = read_element(step.before[0].data(), 2, i);
    const auto exponent = static_cast<int>(old >> 7 & 255);
    if (random.chance(std::ldexp(0.002, 122 - std::max(exponent, 113)))) {
      write_element(step.after[0].data(), 2, i, random.chance(0.5) ? old + 1 : old - 1);
    }
  }
  return step;
}

std::vector<Bytes> context_records(const Step& step, std::uint64_t base_version = 0) {
  return split(encode_file(*step.table, step.before, step.after, context_options(), {base_version, base_version + 1}));
}

TEST(Context, AStepOfAnOptimizerTakesAThirdLessThanPacked) {
  Random random(3);
  const Step step = optimizer_step(random, 600'000);
  const Bytes packed = encode_file(*step.table, step.before, step.after, {});
  const Bytes context = encode_file(*step.table, step.before, step.after, context_options());
  EXPECT_LT(static_cast<double>(context.size()), 0.75 * static_cast<double>(packed.size()));
  EXPECT_GT(DeltaFile::over(context, "context").report().blocks_by_codec[5], 0U);
}

TEST(Context, IsNeverLargerThanAuto) {
  SCOPED_TRACE(seed_note());
  for (std::uint64_t n = 0; n < 200; ++n) {
    Random random(case_seed(run_seed(), n));
    const RandomDelta delta = random_delta(random, {3, 60'000, 0.3});
    const Bytes automatic = encode_file(*delta.table, delta.old_state, delta.new_state, {});
    const Bytes context = encode_file(*delta.table, delta.old_state, delta.new_state, context_options());
    EXPECT_LE(context.size(), automatic.size()) << "case " << n;
  }
}

TEST(Context, BlocksOfAutoTakeItsPlaceWhereChangesComeInBursts) {
  Random random(14);
  const TensorTable table({{"weight", DType::kBF16, {120 * std::uint64_t{kTileElems}}}});
  TensorState before{Bytes(table.bytes())};
  for (std::uint64_t i = 0; i < table.elements(); ++i) {
    write_element(before[0].data(), 2, i, (random.between(110, 122) << 7) | random.below(128));
  }
  TensorState after = before;
  for (std::uint64_t i = 0; i < table.elements(); ++i) {
    const std::uint64_t tile = i / kTileElems;
    if (!random.chance(tile % 40 == 20 ? 0.2 : 0.0003)) continue;
    write_element(after[0].data(), 2, i, read_element(before[0].data(), 2, i) + 1);
  }
  const Bytes automatic = encode_file(table, before, after, {});
  const Bytes context = encode_file(table, before, after, context_options());
  EXPECT_LE(context.size(), automatic.size());
  EXPECT_GT(DeltaFile::over(context, "bursts").report().blocks_by_codec[2], 1U) << "packed";
}

TEST(Context, AutoTakesItWhereTheObjectiveAsksForIt) {
  Random random(4);
  const Step step = optimizer_step(random, 60'000);
  const auto bytes = [&](std::optional<Objective> objective, PositionMode mode = PositionMode::kAuto) {
    EncodeOptions options;
    options.positions = mode;
    options.objective = objective;
    return encode_file(*step.table, step.before, step.after, options);
  };
  const Bytes context = bytes(std::nullopt, PositionMode::kContext);
  const Bytes plain = bytes(std::nullopt);
  EXPECT_EQ(parse_header(split(plain)[0]).positions, PositionMode::kAuto);
  EXPECT_EQ(bytes(Objective::size()), context);
  EXPECT_EQ(bytes(Objective::link(kContextLinkBytesPerSecond - 1)), context);
  EXPECT_EQ(bytes(Objective::link(kContextLinkBytesPerSecond)), plain);
  EXPECT_EQ(bytes(Objective::speed()), plain);
  EXPECT_EQ(bytes(Objective::speed(), PositionMode::kContext), context) << "it decides for auto alone";
  EXPECT_EQ(parse_header(split(bytes(Objective::size(), PositionMode::kPacked))[0]).positions, PositionMode::kPacked);
  expect_error(ErrorCode::kUsage, [&] { bytes(Objective::link(-1)); }, {"below 0"});
  expect_error(ErrorCode::kUsage, [&] { bytes(Objective::link(std::nan(""))); });
}

TEST(Context, AutoLeavesItWhereItCannotBe) {
  EncodeOptions options;
  options.objective = Objective::size();
  Random random(4);
  const Step step = optimizer_step(random, 30'000);
  for (const ValueCodec values : {ValueCodec::kRaw, ValueCodec::kXor}) {
    options.values = values;
    const Bytes file = encode_file(*step.table, step.before, step.after, options);
    EXPECT_EQ(DeltaFile::over(file, "other values").header().positions, PositionMode::kAuto);
  }
  options.values = ValueCodec::kUlp;
  const TensorTable integers({{"ids", DType::kI16, {30'000}}});
  const Bytes file = encode_file(integers, step.before, step.after, options);
  EXPECT_EQ(DeltaFile::over(file, "integers").header().positions, PositionMode::kAuto);

  TensorState cast = step.before;
  const std::vector<float> masters(30'000, 1.0F);
  PublisherOptions publishing;
  publishing.encode = options;
  Publisher fused(step.table, host_fused_cast(*step.table, {masters}, live_views(cast)), publishing);
  EXPECT_EQ(fused.publish().info.positions, PositionMode::kAuto);
  TensorState live = step.before;
  Publisher snapshot(step.table, host_snapshot(*step.table, views(live)), publishing);
  live = step.after;
  EXPECT_EQ(snapshot.publish().info.positions, PositionMode::kContext);
}

TEST(Context, ADerivedDeltaIsSmallestWhereItHasItsBase) {
  Random random(12);
  const Step step = optimizer_step(random, 30'000);
  TensorState last = step.after;
  for (std::uint64_t i = 0; i < 30'000; i += 70) last[0][2 * i] ^= std::byte{1};
  const Bytes forward = encode_file(*step.table, step.before, step.after, {}, {0, 1});
  const Bytes after = encode_file(*step.table, step.after, last, {}, {1, 2});
  EncodeOptions options;
  options.objective = Objective::size();
  const auto joined = [&](std::optional<std::span<const ConstBytes>> base) {
    Bytes out;
    compose(
        DeltaFile::over(forward, "forward"), DeltaFile::over(after, "after"), options,
        [&](Bytes&& record) { out.insert(out.end(), record.begin(), record.end()); }, base);
    return out;
  };
  const std::vector<ConstBytes> base = views(step.before);
  EXPECT_EQ(joined(std::span(base)), encode_file(*step.table, step.before, last, context_options(), {0, 2}));
  EXPECT_EQ(joined(std::nullopt), encode_file(*step.table, step.before, last, {}, {0, 2}));
}

TEST(Context, ObjectivesHaveNames) {
  EXPECT_EQ(objective_from_name("speed"), Objective::speed());
  EXPECT_EQ(objective_from_name("size"), Objective::size());
  EXPECT_EQ(objective_from_name("100Mb/s"), Objective::link(12.5e6));
  EXPECT_EQ(objective_from_name("1Gb/s"), Objective::link(125e6));
  EXPECT_EQ(objective_from_name("2.5MB/s"), Objective::link(2.5e6));
  EXPECT_EQ(objective_from_name("1e-1GB/s"), Objective::link(1e8));
  for (const char* name : {"", "fast", "0Mb/s", "-1Gb/s", "1", "1 Gb/s", "1gb/s", "Gb/s", "infGB/s", "nanMb/s"}) {
    EXPECT_FALSE(objective_from_name(name)) << name;
  }
}

TEST(Context, AReceiverWithAnyFlippedBitIsToldBeforeTheFirstWrite) {
  Random random(5);
  const Step step = optimizer_step(random, 40'000);
  const std::vector<Bytes> records = context_records(step);
  for (int n = 0; n < 300; ++n) {
    TensorState live = step.before;
    live[0][random.below(live[0].size())] ^= static_cast<std::byte>(1U << random.below(8));
    const TensorState damaged = live;
    Subscriber subscriber(step.table, refs_to(*step.table, live_views(live)), {});
    // The subscriber took the damaged bits for its base: the digest of the header would tell. Blocks tell as well.
    ApplyScratch scratch;
    const FrameReader frame(records[2], parse_header(records[0]), *step.table);
    for (const BlockRef& block : frame.blocks()) {
      ASSERT_EQ(block.coding.positions, PositionCodec::kContext);
      const ApplyTarget target = target_in(live[0].data(), nullptr, DType::kBF16, block);
      expect_error(ErrorCode::kWrongBase, [&] { apply_block(block, target, Direction::kForward, scratch); },
                   {"base version"});
    }
    expect_error(ErrorCode::kWrongBase, [&] {
      for (const Bytes& record : records) subscriber.stage(record);
      subscriber.apply();
    });
    ASSERT_EQ(live, damaged);
  }
}

TEST(Context, AWeightThatIsDamagedAfterTheBaseWasTakenIsFoundWhenStaging) {
  Random random(6);
  const Step step = optimizer_step(random, 40'000);
  TensorState live = step.before;
  Subscriber subscriber(step.table, refs_to(*step.table, live_views(live)), {});
  live[0][777] ^= std::byte{4};
  const TensorState damaged = live;
  expect_error(ErrorCode::kWrongBase,
               [&] {
                 for (const Bytes& record : context_records(step)) subscriber.stage(record);
               },
               {"frame 0", "weight", "element 0"});
  EXPECT_EQ(live, damaged);
}

TEST(Context, APublishersSnapshotSurvivesAnAbortAndFollowsACommit) {
  Random random(8);
  const Step step = optimizer_step(random, 50'000);
  TensorState live = step.before;
  PublisherOptions options;
  options.encode = context_options();
  Publisher publisher(step.table, host_snapshot(*step.table, views(live)), options);
  TensorState received = step.before;
  Subscriber subscriber(step.table, refs_to(*step.table, live_views(received)), {});
  live = step.after;
  publisher.publish();
  publisher.abort(1);
  live[0][9] ^= std::byte{1};
  for (int n = 0; n < 2; ++n) {
    const Delta& delta = publisher.publish();
    subscriber.stage(delta);
    subscriber.apply();
    publisher.commit(delta.info.version);
    EXPECT_EQ(received, live);
    live[0][1'000] ^= std::byte{2};
  }
}

TEST(Context, UndoOfASubscriberGivesTheBaseBack) {
  Random random(9);
  const Step step = optimizer_step(random, 50'000);
  TensorState live = step.before;
  SubscriberOptions options;
  options.allow_rollback = true;
  Subscriber subscriber(step.table, refs_to(*step.table, live_views(live)), options);
  for (const Bytes& record : context_records(step)) {
    if (peek_record(record).kind != RecordKind::kTable) subscriber.stage(record);
  }
  subscriber.apply();
  EXPECT_EQ(live, step.after);
  subscriber.undo_last();
  EXPECT_EQ(live, step.before);
}

TEST(Context, WhatNeedsTheBaseSaysSo) {
  Random random(10);
  const Step step = optimizer_step(random, 30'000);
  const Bytes forward = encode_file(*step.table, step.before, step.after, context_options(), {0, 1});
  const Bytes back = encode_file(*step.table, step.after, step.before, {}, {1, 2});
  const DeltaFile first = DeltaFile::over(forward, "forward.scd");
  const DeltaFile second = DeltaFile::over(back, "back.scd");
  const RecordSink nowhere = [](Bytes&&) {};
  expect_error(ErrorCode::kUsage, [&] { compose(first, second, {}, nowhere); }, {"forward.scd", "version 0"});
  expect_error(ErrorCode::kUsage, [&] { invert(first, {}, nowhere); }, {"forward.scd", "version 0"});
  EXPECT_EQ(first.report().changed, first.commit().changed) << "what it says is counted without";

  EncodeOptions raw = context_options();
  raw.values = ValueCodec::kRaw;
  expect_error(ErrorCode::kUsage, [&] { encode_file(*step.table, step.before, step.after, raw); }, {"'ulp'", "'raw'"});
  TensorState cast = step.before;
  const std::vector<float> masters(30'000);
  PublisherOptions options;
  options.encode = context_options();
  expect_error(ErrorCode::kUnsupported,
               [&] { Publisher(step.table, host_fused_cast(*step.table, {masters}, live_views(cast)), options); });
}

TEST(Context, OnlyDeltasOfThatPositionModeHaveItsBlocks) {
  Random random(11);
  const Step step = optimizer_step(random, 20'000);
  std::vector<Bytes> records = context_records(step);
  EXPECT_EQ(field<std::uint16_t>(records[0], 10), 0U);
  Bytes newer = records[0];
  set_field(newer, 10, std::uint16_t{1});
  expect_error(ErrorCode::kUnsupported, [&] { parse_header(newer); }, {"1.1", "1.0"});

  DeltaHeader header = parse_header(records[0]);
  header.positions = PositionMode::kAuto;
  Bytes plain = pack_header(header);
  Bytes frame = records[2];
  set_field(frame, 8, header.delta_id);
  std::vector<Bytes> forged{plain, frame};
  refresh_checksums(forged);
  expect_error(ErrorCode::kCorrupt, [&] { FrameReader(forged[1], parse_header(forged[0]), *step.table); },
               {"impossible coding"});
}

}  // namespace
}  // namespace sparsecast::test
