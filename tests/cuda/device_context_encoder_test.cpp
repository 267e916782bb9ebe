// SPDX-License-Identifier: Apache-2.0

// The encoder of `context` blocks on the device, emulated or real, against the CPU's, byte for byte.

#include <gtest/gtest.h>

#include <cmath>
#include <functional>

#include "codec/context_model.hpp"
#include "cuda/common/device_memory.hpp"
#include "cuda/differential.hpp"
#include "sparsecast/publisher.hpp"
#include "sparsecast/subscriber.hpp"
#include "support/delta_bytes.hpp"
#include "support/detectors.hpp"
#include "support/expect_error.hpp"

namespace sparsecast::test {
namespace {

constexpr DType kFloating[] = {DType::kBF16, DType::kF16, DType::kF32, DType::kF64, DType::kF8E4M3, DType::kF8E5M2};

EncodeOptions context_options() {
  EncodeOptions options;
  options.positions = PositionMode::kContext;
  return options;
}

cuda::DeviceEncoderOptions random_memory(Random& random) {
  cuda::DeviceEncoderOptions device;
  if (random.chance(0.5)) device.chunk_bytes = random.between(1, 600'000);
  if (random.chance(0.5)) device.arena_bytes = random.between(1, 100'000);
  if (random.chance(0.5)) device.entries = random.between(1, 3'000);
  return device;
}

/// One tensor whose elements change as `share(element, key)` says, the more the smaller they are by more ULP.
RandomDelta one_tensor(Random& random, DType dtype, std::uint64_t elements,
                       const std::function<double(std::uint64_t, std::uint32_t)>& share) {
  RandomDelta delta;
  delta.options = context_options();
  delta.table = std::make_shared<const TensorTable>(std::vector<TensorSpec>{{"weight", dtype, {elements}}});
  delta.old_state = {Bytes(delta.table->bytes())};
  const std::size_t size = element_size(dtype);
  const ExponentField field = exponent_field(dtype);
  // Exponents of a normal distribution: each half as often as the next one up.
  const std::uint64_t top = field.mask / 2;
  const std::uint64_t lowest = top < 14 ? top : 14;
  for (std::uint64_t i = 0; i < elements; ++i) {
    std::uint64_t down = 0;
    while (down < lowest && random.chance(0.5)) ++down;
    const std::uint64_t below = random.next() & ((std::uint64_t{1} << field.shift) - 1);
    const std::uint64_t sign = random.below(2) << (8 * size - 1);
    write_element(delta.old_state[0].data(), size, i, sign | (top - down) << field.shift | below);
  }
  delta.new_state = delta.old_state;
  for (std::uint64_t i = 0; i < elements; ++i) {
    const std::uint64_t old_bits = read_element(delta.old_state[0].data(), size, i);
    const std::uint32_t key = key_of(old_bits, field);
    if (!random.chance(share(i, key))) continue;
    const auto down = static_cast<std::uint32_t>(top - (key + field.bias));
    std::uint64_t distance = 1;
    if (down > 4) distance += random.below(std::uint64_t{1} << std::min(down - 4, 6U));
    if (random.chance(0.002)) distance += random.next() >> random.between(1, 63);
    write_element(delta.new_state[0].data(), size, i, random.chance(0.5) ? old_bits + distance : old_bits - distance);
  }
  return delta;
}

/// Twice the share with each exponent down; about `density` in all.
std::function<double(std::uint64_t, std::uint32_t)> smaller_ones_more(DType dtype, double density) {
  const ExponentField field = exponent_field(dtype);
  const auto top = static_cast<int>(field.mask / 2 - field.bias);
  return [top, density](std::uint64_t, std::uint32_t key) {
    return std::min(1.0, std::ldexp(density, top - static_cast<int>(key)) / 5);
  };
}

std::uint64_t context_blocks(const RandomDelta& delta) {
  const Bytes file = encode_file(*delta.table, delta.old_state, delta.new_state, delta.options);
  return DeltaFile::over(file, "delta").report().blocks_by_codec[static_cast<std::size_t>(PositionCodec::kContext)];
}

class DeviceContextEncoder : public DeviceCases {
 protected:
  DeviceContextEncoder() : DeviceCases(0.5) {}
};
INSTANTIATE_TEST_SUITE_P(Random, DeviceContextEncoder, testing::Range(0, 4));

TEST_P(DeviceContextEncoder, AgreesWithTheCpuOnAnyStep) {
  for_cases(15, [](Random& random) {
    RandomDelta delta = random_delta(random, {.max_elements = 60'000, .large_chance = 0.5});
    delta.options = context_options();
    if (random.chance(0.2)) delta.options.frame_capacity = kMinFrameCapacity;
    if (random.chance(0.3)) {
      expect_cast_agrees(delta, random, random_memory(random));
    } else {
      expect_compare_agrees(delta, random, random_memory(random));
    }
  });
}

TEST_P(DeviceContextEncoder, EveryWidthAtEveryDensity) {
  for_cases(6, [this](Random& random) {
    for (const DType dtype : kFloating) {
      const double density = random.log_uniform(1e-4, 0.6);
      const std::uint64_t elements = random.between(1, 5) * kTileElems + random.between(0, 700);
      const RandomDelta delta = one_tensor(random, dtype, elements, smaller_ones_more(dtype, density));
      SCOPED_TRACE(testing::Message() << to_string(dtype) << ", density " << density);
      expect_compare_agrees(delta, random, random_memory(random));
      if (HasFailure()) return;
    }
  });
}

TEST_P(DeviceContextEncoder, TileCountsAroundTheBlockSizeCutAsTheCpuDoes) {
  for_cases(4, [](Random& random) {
    constexpr std::uint64_t kTiles = 14;
    constexpr std::uint32_t kCounts[] = {0,    0,    1,    200,  511,  512,  513,   1024,  1500,
                                         2048, 3000, 4095, 4096, 4097, 6000, 16383, 16384, 16384};
    std::uint32_t left[kTiles];
    std::uint32_t below[kTiles];
    for (std::uint64_t t = 0; t < kTiles; ++t) {
      left[t] = random.pick(std::span<const std::uint32_t>(kCounts));
      // The smallest elements that are enough, or any.
      below[t] = 256;
      for (std::uint32_t many = kTileElems / 2; many > left[t] && below[t] > 120; many /= 2) {
        below[t] = below[t] == 256 ? 127 : below[t] - 1;
      }
    }
    const RandomDelta delta =
        one_tensor(random, DType::kBF16, kTiles * kTileElems - 5, [&](std::uint64_t i, std::uint32_t key) {
          const std::uint64_t t = i / kTileElems;
          if (left[t] == 0 || key >= below[t]) return 0.0;
          --left[t];
          return 1.0;
        });
    EXPECT_GT(context_blocks(delta), 0U);
    // Where there is no room for entries tiles are compared again: some dense, some in one block with others.
    const std::uint64_t entries = random.chance(0.5) ? 0 : random.between(1, 6'000);
    expect_compare_agrees(delta, random, {.entries = entries});
    expect_cast_agrees(delta, random, {.entries = entries});
  });
}

TEST_P(DeviceContextEncoder, BlocksOfAutoTakeItsPlaceInBursts) {
  Random random(case_seed(run_seed(), static_cast<std::uint64_t>(GetParam())));
  const RandomDelta delta =
      one_tensor(random, DType::kBF16, 60 * std::uint64_t{kTileElems}, [](std::uint64_t i, std::uint32_t key) {
        if (i / kTileElems < 20) return key < 123 ? 0.2 : 0.001;
        return i / kTileElems % 20 == 10 ? 0.2 : 0.0003;
      });
  const Bytes file = encode_file(*delta.table, delta.old_state, delta.new_state, delta.options);
  const DeltaReport report = DeltaFile::over(file, "bursts").report();
  EXPECT_GT(report.blocks_by_codec[static_cast<std::size_t>(PositionCodec::kContext)], 0U);
  EXPECT_GT(report.blocks_by_codec[static_cast<std::size_t>(PositionCodec::kPacked)], 0U);
  expect_compare_agrees(delta, random);
}

TEST_P(DeviceContextEncoder, SectionsBoundBlocks) {
  Random random(case_seed(run_seed(), static_cast<std::uint64_t>(GetParam())));
  const std::uint64_t elements = kSectionElems + 3 * kTileElems + 7;
  const RandomDelta delta = one_tensor(random, DType::kF8E4M3, elements, [](std::uint64_t i, std::uint32_t key) {
    return i == kSectionElems - 1 || i == kSectionElems ? 1.0 : key < 5 ? 0.003 : 0.0001;
  });
  expect_compare_agrees(delta, random, {.chunk_bytes = GetParam() % 2 == 0 ? kDefaultChunkBytes : 1});
}

TEST_P(DeviceContextEncoder, ManyTensorsOfAllDtypesShareChunks) {
  Random random(case_seed(run_seed(), static_cast<std::uint64_t>(GetParam())));
  std::vector<TensorSpec> specs;
  RandomDelta delta;
  for (const DType dtype : {DType::kBF16, DType::kI16, DType::kF32, DType::kF8E5M2, DType::kF64, DType::kBF16}) {
    RandomDelta one;
    const std::uint64_t elements = random.between(20'000, 40'000);
    if (is_floating(dtype)) {
      one = one_tensor(random, dtype, elements, smaller_ones_more(dtype, 0.02));
    } else {
      one.old_state = {Bytes(elements * element_size(dtype), std::byte{3})};
      one.new_state = one.old_state;
      for (std::uint64_t i = 0; i < elements; i += random.between(1, 100)) {
        one.new_state[0][i * element_size(dtype)] = std::byte{4};
      }
    }
    specs.push_back({std::string(1, static_cast<char>('a' + specs.size())), dtype, {elements}});
    delta.old_state.push_back(std::move(one.old_state[0]));
    delta.new_state.push_back(std::move(one.new_state[0]));
  }
  delta.table = std::make_shared<const TensorTable>(std::move(specs));
  delta.options = context_options();
  EXPECT_GT(context_blocks(delta), 0U);
  for (const std::uint64_t chunk_bytes : {std::uint64_t{1}, std::uint64_t{300'000}, kDefaultChunkBytes}) {
    expect_compare_agrees(delta, random, {.chunk_bytes = chunk_bytes});
  }
}

RandomDelta small_change_more(Random& random, std::uint64_t elements) {
  return one_tensor(random, DType::kBF16, elements,
                    [](std::uint64_t, std::uint32_t key) { return key < 123 ? 0.15 : 0.002; });
}

ExpectedFrames frames_of_the_cpu(const RandomDelta& delta) {
  EXPECT_GT(context_blocks(delta), 0U);
  const auto detector = make_compare_detector(*delta.table, views(delta.new_state), views(delta.old_state));
  return encode_on_cpu(*delta.table, *detector, delta.options);
}

TEST_P(DeviceContextEncoder, SnapshotsInHostMemory) {
  Random random(case_seed(run_seed(), static_cast<std::uint64_t>(GetParam())));
  const RandomDelta delta = small_change_more(random, 90'000);
  DeviceState current(element_sizes(*delta.table), delta.new_state, 0);
  for (const std::uint64_t entries : {0, 200}) {
    const cuda::PinnedMemory snapshot(delta.table->bytes());
    std::ranges::copy(delta.old_state[0], snapshot.as());
    auto encoder = cuda::DeviceEncoder::compare_pinned(*delta.table, {{current[0], snapshot.as()}}, true, delta.options,
                                                       {.chunk_bytes = 1, .entries = entries});
    encoder.start(nullptr);
    expect_same_frames(encoder.finish(test_header(*delta.table, delta.options)), frames_of_the_cpu(delta));
    EXPECT_TRUE(std::ranges::equal(delta.new_state[0], std::span(snapshot.as(), delta.table->bytes())));
  }
}

TEST_P(DeviceContextEncoder, CastSnapshots) {
  Random random(case_seed(run_seed(), static_cast<std::uint64_t>(GetParam())));
  const RandomDelta delta = small_change_more(random, 70'000);
  Bytes masters(2 * delta.table->bytes());
  for (std::uint64_t i = 0; i < 70'000; ++i) {
    // The noise is too small to change what is rounded.
    write_element(masters.data(), 4, i, read_element(delta.new_state[0].data(), 2, i) << 16 | random.below(0x7FFF));
  }
  DeviceState current({4}, {masters}, 0);
  for (const std::uint64_t entries : {0, 200}) {
    DeviceState snapshot(element_sizes(*delta.table), delta.old_state, 0);
    auto encoder = cuda::DeviceEncoder::compare(*delta.table, {{current[0], snapshot[0], {}, {}, true}}, true,
                                                delta.options, {.entries = entries});
    encoder.start(nullptr);
    expect_same_frames(encoder.finish(test_header(*delta.table, delta.options)), frames_of_the_cpu(delta));
    EXPECT_EQ(snapshot.bytes(0), delta.new_state[0]);
  }
}

/// A publisher on a device whose objective asks for `context`, beside one of the host, with a subscriber on the host.
void expect_publishes_as_the_host(Random& random, bool pinned) {
  RandomDelta delta = small_change_more(random, 120'000);
  const auto& table = delta.table;
  PublisherOptions options;
  options.encode.objective = Objective::size();
  DeviceState live(element_sizes(*table), delta.old_state, 0);
  const DeviceOptions device{.chunk_bytes = 1};
  Publisher publisher(
      table, pinned ? pinned_snapshot(table, {live[0]}, device) : device_snapshot(table, {live[0]}, device), options);
  TensorState host_live = delta.old_state;
  Publisher on_host(table, host_snapshot(*table, views(host_live)), options);
  TensorState engine = delta.old_state;
  Subscriber subscriber(table, refs_to(*table, live_views(engine)), {});
  TensorState held = delta.old_state;
  for (int step = 0; step < 5; ++step) {
    SCOPED_TRACE(testing::Message() << "step " << step);
    for (std::uint64_t i = 0; i < table->elements(); ++i) {
      const std::uint64_t old_bits = read_element(host_live[0].data(), 2, i);
      if (step != 0 && !random.chance((old_bits >> 7 & 255) < 123 ? 0.1 : 0.001)) continue;
      write_element(host_live[0].data(), 2, i,
                    step == 0 ? read_element(delta.new_state[0].data(), 2, i) : old_bits + 1);
    }
    std::ranges::copy(host_live[0], live[0]);
    const Delta& found = publisher.publish();
    const Delta& expected = on_host.publish();
    EXPECT_EQ(found.info.positions, PositionMode::kContext);
    EXPECT_EQ(found.header, expected.header);
    EXPECT_EQ(found.frames, expected.frames);
    EXPECT_EQ(found.commit, expected.commit);
    const std::uint64_t version = found.info.version;
    if (step == 1 || step == 2) {
      publisher.abort(version);
      on_host.abort(version);
      EXPECT_EQ(publisher.digest(), on_host.digest());
      continue;
    }
    subscriber.stage(found);
    subscriber.apply();
    EXPECT_EQ(engine, host_live);
    publisher.commit(version);
    on_host.commit(version);
  }
}

TEST_P(DeviceContextEncoder, PublishesCommitsAndAborts) {
  Random random(case_seed(run_seed(), static_cast<std::uint64_t>(GetParam())));
  expect_publishes_as_the_host(random, GetParam() % 2 == 0);
}

TEST(DeviceContextErrors, ContextIsOnlyWhereAllOldWordsAreKept) {
  if (!device_present()) GTEST_SKIP() << "no device";
  const auto table = std::make_shared<const TensorTable>(std::vector<TensorSpec>{{"weight", DType::kBF16, {20'000}}});
  DeviceState masters({4}, {Bytes(80'000)}, 0);
  DeviceState weights({2}, {Bytes(40'000)}, 0);
  const auto publisher = [&](PublisherOptions options, bool cast) {
    auto detector = cast ? device_fused_cast(table, {reinterpret_cast<const float*>(masters[0])}, {weights[0]})
                         : std::unique_ptr<Detector>(device_mask(table, {weights[0]}));
    return Publisher(table, std::move(detector), options);
  };
  PublisherOptions options;
  options.encode.objective = Objective::size();
  EXPECT_EQ(publisher(options, true).publish().info.positions, PositionMode::kAuto);
  options.encode.positions = PositionMode::kContext;
  expect_error(ErrorCode::kUnsupported, [&] { publisher(options, true); }, {"fused cast", "'context'"});
  options.encode.values = ValueCodec::kRaw;
  expect_error(ErrorCode::kUsage, [&] { publisher(options, false); }, {"'context'", "'ulp'"});
}

}  // namespace
}  // namespace sparsecast::test
