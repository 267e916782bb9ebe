// SPDX-License-Identifier: Apache-2.0

// Faults in transit and on disk: any byte altered, any tail lost. Checksums must notice all of it.

#include <gtest/gtest.h>

#include "sparsecast/subscriber.hpp"
#include "support/damage.hpp"
#include "support/delta_bytes.hpp"

namespace sparsecast::test {
namespace {

struct Victim {
  std::string name;
  RandomDelta delta;
  Bytes file;
};

/// Small files of every kind: sparse and dense, compressed and not, and the empty delta.
std::vector<Victim> victims() {
  std::vector<Victim> all;
  const auto add = [&](const std::string& name, std::vector<TensorSpec> specs, double density, EncodeOptions options) {
    Random random(case_seed(7, all.size()));
    Victim victim;
    victim.name = name;
    victim.delta.table = std::make_shared<const TensorTable>(std::move(specs));
    victim.delta.options = options;
    victim.delta.old_state = random_state(random, *victim.delta.table);
    victim.delta.new_state = victim.delta.old_state;
    for (Bytes& bits : victim.delta.new_state) {
      for (std::byte& byte : bits) {
        if (random.chance(density)) byte ^= std::byte{1};
      }
    }
    victim.file = encode_file(*victim.delta.table, victim.delta.old_state, victim.delta.new_state, options);
    all.push_back(std::move(victim));
  };
  EncodeOptions ulp;
  EncodeOptions raw;
  raw.values = ValueCodec::kRaw;
  raw.positions = PositionMode::kGap16;
  EncodeOptions zstd;
  zstd.values = ValueCodec::kXor;
  zstd.zstd_level = 3;
  EncodeOptions context;
  context.positions = PositionMode::kContext;
  add("context", {{"weights", DType::kBF16, {3, 500}}, {"bias", DType::kF32, {60}}}, 0.2, context);
  add("packed", {{"weights", DType::kBF16, {40, 50}}, {"bias", DType::kF32, {7}}}, 0.02, ulp);
  add("gap16", {{"weights", DType::kF16, {300}}, {"scalar", DType::kF64, {}}}, 0.05, raw);
  add("compressed", {{"weights", DType::kU8, {600}}}, 0.9, zstd);
  add("empty", {{"weights", DType::kBF16, {100}}}, 0.0, ulp);
  return all;
}

void expect_refused(const Victim& victim, ConstBytes file, const std::string& damage) {
  EXPECT_NO_THROW(require_refused(victim.delta, file, damage)) << victim.name;
}

TEST(CorruptionProperty, AnUndamagedFileIsAccepted) {
  for (const Victim& victim : victims()) {
    TensorState live = victim.delta.old_state;
    EXPECT_NO_THROW(receive_file(victim.delta, victim.file, live)) << victim.name;
    EXPECT_EQ(live, victim.delta.new_state) << victim.name;
  }
}

TEST(CorruptionProperty, EverySingleByteCorruptionIsRefused) {
  for (const Victim& victim : victims()) {
    Bytes file = victim.file;
    for (std::size_t at = 0; at < file.size() && !HasFailure(); ++at) {
      const std::byte good = file[at];
      for (unsigned value = 0; value < 256; ++value) {
        if (static_cast<std::byte>(value) == good) continue;
        file[at] = static_cast<std::byte>(value);
        expect_refused(victim, file, "byte " + std::to_string(at) + " set to " + std::to_string(value));
      }
      file[at] = good;
    }
  }
}

TEST(CorruptionProperty, EveryTruncationIsRefused) {
  for (const Victim& victim : victims()) {
    for (std::size_t size = 0; size < victim.file.size(); ++size) {
      expect_refused(victim, ConstBytes(victim.file).first(size), "only " + std::to_string(size) + " bytes");
    }
  }
}

TEST(CorruptionProperty, BytesAfterTheEndAreRefused) {
  for (const Victim& victim : victims()) {
    for (const std::size_t more : {1U, 7U, 8U, 96U}) {
      Bytes file = victim.file;
      file.resize(file.size() + more);
      expect_refused(victim, file, std::to_string(more) + " zero bytes more");
    }
    const Bytes twice = join({victim.file, victim.file});
    expect_refused(victim, twice, "the whole file twice");
  }
}

TEST(CorruptionProperty, RecordsTakenOutRepeatedOrExchangedAreRefused) {
  for (const Victim& victim : victims()) {
    const std::vector<Bytes> records = split(victim.file);
    for (std::size_t i = 0; i < records.size(); ++i) {
      std::vector<Bytes> without = records;
      without.erase(without.begin() + static_cast<std::ptrdiff_t>(i));
      expect_refused(victim, join(without), "record " + std::to_string(i) + " missing");
      std::vector<Bytes> twice = records;
      twice.insert(twice.begin() + static_cast<std::ptrdiff_t>(i), records[i]);
      expect_refused(victim, join(twice), "record " + std::to_string(i) + " twice");
      for (std::size_t j = i + 1; j < records.size(); ++j) {
        std::vector<Bytes> exchanged = records;
        std::swap(exchanged[i], exchanged[j]);
        expect_refused(victim, join(exchanged), "records exchanged");
      }
    }
  }
}

TEST(CorruptionProperty, ASubscriberRefusesEveryCorruptedRecordAndStillTakesTheGoodOne) {
  for (const Victim& victim : victims()) {
    std::vector<Bytes> records = split(victim.file);
    records.erase(records.begin() + 1);
    TensorState live = victim.delta.old_state;
    Subscriber subscriber(victim.delta.table, refs_to(*victim.delta.table, live_views(live)), {});
    for (const Bytes& good : records) {
      for (std::size_t bit = 0; bit < 8 * good.size(); ++bit) {
        Bytes bad = good;
        bad[bit / 8] ^= static_cast<std::byte>(1U << (bit % 8));
        EXPECT_THROW(subscriber.stage(bad), Error) << victim.name << ": bit " << bit;
      }
      subscriber.stage(good);
    }
    EXPECT_EQ(live, victim.delta.old_state);
    subscriber.apply();
    EXPECT_EQ(live, victim.delta.new_state) << victim.name;
  }
}

TEST(CorruptionProperty, AReceiverWithAFlippedExponentBitRefusesContextBlocksOfEveryDType) {
  SCOPED_TRACE(seed_note());
  int refused = 0;
  for (std::uint64_t i = 0; i < 2'000; ++i) {
    Random random(case_seed(run_seed(), i));
    const RandomDelta delta = context_step(random, {2, 30'000, 0.2});
    try {
      refused += check_flipped_exponent(delta, random) ? 1 : 0;
    } catch (const std::exception& error) {
      FAIL() << "case " << i << ": " << error.what();
    }
  }
  EXPECT_GT(refused, 50);
}

}  // namespace
}  // namespace sparsecast::test
