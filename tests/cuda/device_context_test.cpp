// SPDX-License-Identifier: Apache-2.0

// Receivers of `context` blocks on a device, emulated or real, against those of the CPU: the same bytes, the same
// errors in the same words, before anything is written.

#include <gtest/gtest.h>

#include <algorithm>
#include <string>

#include "codec/context_model.hpp"
#include "codec/frame_reader.hpp"
#include "core/word.hpp"
#include "cuda/applier_cases.hpp"
#include "sparsecast/subscriber.hpp"
#include "support/detectors.hpp"
#include "support/expect_error.hpp"
#include "support/forge.hpp"

namespace sparsecast::test {
namespace {

constexpr DType kContextTypes[] = {DType::kBF16, DType::kF16, DType::kF32, DType::kF64, DType::kF8E4M3, DType::kF8E5M2};

/// Weights in which how likely a change is, and how large, depends on the exponent alone.
RandomDelta exponent_step(Random& random, DType dtype, std::uint64_t elements, double most) {
  RandomDelta delta;
  delta.table = std::make_shared<const TensorTable>(std::vector<TensorSpec>{{"weight", dtype, {elements}}});
  delta.options.positions = PositionMode::kContext;
  const std::size_t size = element_size(dtype);
  const ExponentField field = exponent_field(dtype);
  const std::uint64_t exponents =
      std::min<std::uint64_t>(field.mask - 1, random.between(1, random.chance(0.3) ? 50 : 9));
  // f64 keys are cut to a byte at both ends.
  const std::uint64_t lowest =
      dtype == DType::kF64 ? random.between(field.bias - 4, field.bias + 250) : random.below(field.mask - exponents);
  double chance[64];
  std::uint64_t reach[64];
  for (std::uint64_t e = 0; e <= exponents; ++e) {
    chance[e] = random.chance(0.5) ? most : most * random.log_uniform(1e-3, 1.0);
    reach[e] = random.chance(0.5) ? 1 : std::uint64_t{1} << random.below(std::min<std::uint64_t>(field.shift + 2, 40));
  }
  delta.old_state.emplace_back(elements * size);
  delta.new_state.emplace_back(elements * size);
  for (std::uint64_t i = 0; i < elements; ++i) {
    const std::uint64_t e = random.below(exponents + 1);
    const std::uint64_t mantissa = random.next() & ((std::uint64_t{1} << field.shift) - 1);
    const std::uint64_t sign = random.below(2) << (8 * size - 1);
    const std::uint64_t old_bits = sign | (lowest + e) << field.shift | mantissa;
    std::uint64_t new_bits = old_bits;
    if (random.chance(chance[e])) {
      const std::uint64_t distance = 1 + random.below(reach[e]);
      new_bits = random.chance(0.5) ? old_bits + distance : old_bits - distance;
    }
    write_element(delta.old_state[0].data(), size, i, old_bits);
    write_element(delta.new_state[0].data(), size, i, new_bits);
  }
  return delta;
}

std::vector<Bytes> records_of(const RandomDelta& delta) {
  return encode_records(*delta.table, delta.old_state, delta.new_state, delta.options);
}

/// Numbers of `context` blocks, and of those with more than 8 classes.
struct Found {
  int blocks = 0;
  int many_classes = 0;

  void count(const std::vector<Bytes>& records, const TensorTable& table) {
    for (const Bytes& record : frames_of(records)) {
      const FrameReader frame(record, parse_header(records.front()), table);
      for (const BlockRef& block : frame.blocks()) {
        if (block.coding.positions != PositionCodec::kContext) continue;
        ++blocks;
        many_classes += (std::to_integer<int>(block.payload[1]) & 15) >= 8 ? 1 : 0;
      }
    }
  }
};

/// A step whose only block has `context` positions.
RandomDelta one_block_step(Random& random, DType dtype, std::uint64_t elements, double most) {
  for (;;) {
    RandomDelta delta = exponent_step(random, dtype, elements, most);
    const std::vector<Bytes> records = records_of(delta);
    if (frames_of(records).empty()) continue;
    const std::vector<Bytes> frames = frames_of(records);
    const FrameReader frame(frames[0], parse_header(records.front()), *delta.table);
    if (frame.blocks().size() == 1 && frame.blocks()[0].coding.positions == PositionCodec::kContext) return delta;
  }
}

class DeviceContext : public DeviceCases {
 protected:
  DeviceContext() : DeviceCases(0.75) {}
};
INSTANTIATE_TEST_SUITE_P(Random, DeviceContext, testing::Range(0, 6));

TEST_P(DeviceContext, AppliesAndTakesBackAnyDTypeAtAnyDensityAndAlignment) {
  Found found;
  for_cases(12, [&](Random& random) {
    const DType dtype = random.pick(std::span<const DType>(kContextTypes));
    const std::uint64_t elements = random.chance(0.5) ? random.between(50, 3'000) : random.between(3'000, 90'000);
    const RandomDelta delta = exponent_step(random, dtype, elements, random.log_uniform(0.01, 1.0));
    SCOPED_TRACE(testing::Message() << to_string(dtype) << ", " << elements << " elements");
    found.count(records_of(delta), *delta.table);
    expect_applies(delta, random.chance(0.6) ? 0 : random.between(1, 15), random.chance(0.5));
  });
  EXPECT_GT(found.blocks, 0);
}

TEST_P(DeviceContext, AppliesBlocksOfMoreThanEightClasses) {
  for_cases(2, [&](Random& random) {
    for (const DType dtype : {DType::kBF16, DType::kF32, DType::kF64, DType::kF8E5M2}) {
      SCOPED_TRACE(testing::Message() << to_string(dtype));
      RandomDelta delta;
      for (Found found; found.many_classes == 0; found.count(records_of(delta), *delta.table)) {
        delta = exponent_step(random, dtype, random.between(20'000, 40'000), 0.2);
      }
      expect_applies(delta, random.below(2), true);
    }
  });
}

TEST_P(DeviceContext, ReadsViews) {
  for_cases(4, [](Random& random) {
    const DType dtype = random.pick(std::span<const DType>(kContextTypes));
    const std::size_t size = element_size(dtype);
    const std::uint64_t rows = random.between(30, 200);
    const std::uint64_t columns = random.between(30, 200);
    RandomDelta delta = one_block_step(random, dtype, rows * columns, 0.3);
    delta.table = std::make_shared<const TensorTable>(std::vector<TensorSpec>{{"weight", dtype, {rows, columns}}});
    const std::vector<Bytes> records = records_of(delta);
    // Columns first, the rows backwards or not, with room between the columns.
    const std::uint64_t pitch = rows + random.below(5);
    const bool backwards = random.chance(0.5);
    const auto place = [&](const TensorState& state) {
      Bytes out(pitch * columns * size, std::byte{0x55});
      for (std::uint64_t i = 0; i < rows * columns; ++i) {
        const std::uint64_t row = backwards ? rows - 1 - i / columns : i / columns;
        write_element(out.data(), size, i % columns * pitch + row, read_element(state[0].data(), size, i));
      }
      return out;
    };
    const Bytes before = place(delta.old_state);
    const SharedBytes live(allocate_shared(before.size()));
    std::ranges::copy(before, live.get());
    const std::vector<std::int64_t> strides = {backwards ? -1 : 1, static_cast<std::int64_t>(pitch)};
    std::byte* const first = live.get() + (backwards ? (rows - 1) * size : 0);
    cuda::DeviceApplier applier(*delta.table, {ref_to((*delta.table)[0], first, 0, strides)});
    std::vector<SharedBytes> storage;
    std::vector<DeviceRecord> device_records;
    for (const Bytes& frame : frames_of(records)) {
      storage.emplace_back(allocate_shared(frame.size()));
      std::ranges::copy(frame, storage.back().get());
      device_records.push_back({storage.back().get(), static_cast<std::uint32_t>(frame.size())});
    }
    const DeltaHeader header = parse_header(records.front());
    const auto is = [&](const Bytes& expected) {
      return std::ranges::equal(expected, std::span(live.get(), expected.size()));
    };
    applier.stage(header, device_records, nullptr);
    applier.apply(Direction::kForward, nullptr);
    applier.digest_changes();
    ASSERT_TRUE(is(place(delta.new_state)));
    applier.roll_back(nullptr);
    applier.digest_changes();
    ASSERT_TRUE(is(before));
    // The error of a view of another base is found on the host as well.
    Bytes other = before;
    const std::uint64_t at = random.below(rows) + random.below(columns) * pitch;
    other[at * size + size - 1] ^= std::byte{0x20};
    std::ranges::copy(other, live.get());
    expect_error(ErrorCode::kWrongBase, [&] { applier.stage(header, device_records, nullptr); }, {"'weight'"});
    ASSERT_TRUE(is(other));
  });
}

/// Returns what the CPU says of the first frame against these weights; nothing if it is right.
std::string words_of_the_cpu(const std::vector<Bytes>& records, const TensorTable& table, const TensorState& state) {
  const std::vector<Bytes> frames = frames_of(records);
  try {
    FrameReader frame(frames[0], parse_header(records.front()), table);
    frame.resolve_context(table, [&](const BlockRef& block) {
      const DType dtype = table[block.tensor].dtype;
      return OldBits{state[block.tensor].data() + block.first_element * element_size(dtype), dtype, nullptr};
    });
    ApplyScratch scratch;
    for (const BlockRef& block : frame.blocks()) validate_block(block, table[block.tensor].dtype, scratch);
    return {};
  } catch (const Error& error) {
    return error.what();
  }
}

std::string words_of_the_device(Receiver& receiver, const std::vector<Bytes>& records) {
  try {
    receiver.stage(parse_header(records.front()), frames_of(records));
    return {};
  } catch (const Error& error) {
    return error.what();
  }
}

TEST_P(DeviceContext, AnyFlippedBitOfTheWeightsIsToldBeforeTheFirstWrite) {
  for_cases(1, [&](Random& random) {
    const DType dtype = kContextTypes[GetParam()];
    const RandomDelta delta = one_block_step(random, dtype, 5'000, 0.5);
    const std::vector<Bytes> records = records_of(delta);
    for (int n = 0; n < 40; ++n) {
      TensorState damaged = delta.old_state;
      // The sign, the exponent or the mantissa of any element.
      damaged[0][random.below(damaged[0].size())] ^= static_cast<std::byte>(1U << random.below(8));
      Receiver receiver(*delta.table, damaged);
      const std::string expected = words_of_the_cpu(records, *delta.table, damaged);
      ASSERT_NE(expected.find("base version"), std::string::npos) << expected;
      ASSERT_EQ(words_of_the_device(receiver, records), expected);
      ASSERT_NE(expected.find("frame 0: tensor 'weight': block at element 0"), std::string::npos);
      ASSERT_EQ(receiver.state(), damaged);
    }
  });
}

TEST_P(DeviceContext, AnyFlippedBitOfASmallBlockIsWhatTheCpuSays) {
  int refused = 0;
  int applied = 0;
  for_cases(1, [&](Random& random) {
    const DType dtype = kContextTypes[GetParam()];
    const RandomDelta delta = one_block_step(random, dtype, 1'500, 0.3);
    const std::vector<Bytes> records = records_of(delta);
    const std::size_t frame = 1 + (static_cast<char>(records[1][2]) == 'T' ? 1 : 0);
    const std::size_t begin = at::kFrameBody + kGroupBytes + kBlockEntryBytes;
    const std::size_t end = at::kFrameBody + field<std::uint32_t>(records[frame], at::kFrameBodyBytes);
    for (std::size_t at = begin; at < end; ++at) {
      SCOPED_TRACE(testing::Message() << to_string(dtype) << ", byte " << at);
      std::vector<Bytes> altered = records;
      altered[frame][at] ^= static_cast<std::byte>(1U << random.below(8));
      refresh_checksums(altered);
      TensorState expected = delta.old_state;
      Receiver receiver(*delta.table, delta.old_state);
      const std::string words = words_of_the_cpu(altered, *delta.table, delta.old_state);
      ASSERT_EQ(words_of_the_device(receiver, altered), words);
      if (words.empty()) {
        ++applied;
        apply_blocks(altered, *delta.table, expected);
        receiver.apply();
      } else {
        ++refused;
      }
      ASSERT_EQ(first_difference(*delta.table, receiver.state(), expected), "");
    }
  });
  EXPECT_GT(refused, 50);
  EXPECT_GT(applied, 0);
}

TEST(DeviceContextSync, ASubscriberFollowsUndoesAndLoadsNanMaskedTensors) {
  if (!device_present()) GTEST_SKIP() << "no device";
  Random random(21);
  const RandomDelta first = exponent_step(random, DType::kBF16, 60'000, 0.05);
  TensorState state = first.old_state;
  PublisherOptions options;
  options.encode.positions = PositionMode::kContext;
  Publisher publisher(first.table, host_snapshot(*first.table, views(state)), options);
  DeviceState live(element_sizes(*first.table), state, 0);
  SubscriberOptions receiving;
  receiving.allow_rollback = true;
  Subscriber subscriber(first.table, {ref_to((*first.table)[0], live[0], 0)}, receiving);
  Found found;
  for (std::uint64_t version = 1; version <= 4; ++version) {
    const TensorState before = state;
    for (std::uint64_t i = 0; i < 60'000; ++i) {
      const std::uint64_t old_bits = read_element(state[0].data(), 2, i);
      if (random.chance((old_bits >> 7 & 3) == 0 ? 0.3 : 0.001)) write_element(state[0].data(), 2, i, old_bits ^ 1);
    }
    const Delta& delta = publisher.publish();
    found.count({delta.header, delta.frames[0], delta.commit}, *first.table);
    subscriber.stage(delta);
    if (version == 3) {
      subscriber.apply_nan_masked([&](std::size_t t, const std::byte* d_tensor, CUstream_st* stream) {
        device_masked_copy({(*first.table)[t].dtype, (*first.table)[t].shape, {}, {}}, d_tensor, live[t], stream);
      });
    } else {
      subscriber.apply();
    }
    ASSERT_EQ(live.bytes(0), state[0]) << version;
    if (version == 2) {
      subscriber.undo_last();
      ASSERT_EQ(live.bytes(0), before[0]);
      subscriber.stage(delta);
      subscriber.apply();
    }
    publisher.commit(version);
    ASSERT_EQ(subscriber.digest(), publisher.digest());
  }
  subscriber.audit();
  EXPECT_GE(found.blocks, 4);
}

#if defined(SPARSECAST_CUDA_EMULATION)
TEST(DeviceContextMemory, WithoutRoomForTheEntriesNothingIsStaged) {
  Random random(22);
  const RandomDelta delta = exponent_step(random, DType::kBF16, 20'000, 0.2);
  const std::vector<Bytes> records = records_of(delta);
  int failures = 0;
  for (int allocations = 0; allocations < 40; ++allocations) {
    Receiver receiver(*delta.table, delta.old_state, 0, with_entries(false));
    const std::vector<Bytes> frames = frames_of(records);
    emulation::fail_allocation_after(allocations);
    const std::string words = words_of_the_device(receiver, records);
    emulation::fail_allocation_after(-1);
    if (!words.empty()) {
      failures += words.find("'context' positions") != std::string::npos ? 1 : 0;
      ASSERT_EQ(receiver.state(), delta.old_state);
      receiver.stage(parse_header(records.front()), frames);
    }
    receiver.apply();
    ASSERT_EQ(receiver.state(), delta.new_state);
  }
  EXPECT_EQ(failures, 3);
}
#endif

}  // namespace
}  // namespace sparsecast::test
