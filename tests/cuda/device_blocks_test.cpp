// SPDX-License-Identifier: Apache-2.0

// Steps that are chosen, not drawn: where blocks, sections and frames begin and end, and what a delta needs of memory.

#include <gtest/gtest.h>

#include <functional>

#include "cuda/common/device_memory.hpp"
#include "cuda/differential.hpp"
#include "support/expect_error.hpp"

namespace sparsecast::test {
namespace {

using Flip = std::function<void(std::uint64_t)>;

/// One tensor; `change` calls its argument for the elements to change, each by one in its lowest bits.
RandomDelta one_tensor(DType dtype, std::uint64_t elements, const std::function<void(const Flip&)>& change) {
  RandomDelta delta;
  delta.table = std::make_shared<const TensorTable>(std::vector<TensorSpec>{{"t", dtype, {elements}}});
  delta.old_state = {Bytes(delta.table->bytes(), std::byte{0x40})};
  delta.new_state = delta.old_state;
  const std::size_t size = element_size(dtype);
  change([&](std::uint64_t i) {
    write_element(delta.new_state[0].data(), size, i, read_element(delta.old_state[0].data(), size, i) + 1);
  });
  return delta;
}

class DeviceBlocks : public testing::TestWithParam<std::uint64_t> {
 protected:
  void SetUp() override {
    if (!device_present()) GTEST_SKIP() << "no device";
  }
  DeviceBlocks() { set_thread_order(GetParam()); }
  ~DeviceBlocks() override { set_thread_order(0); }
  Random random_{GetParam()};
};
INSTANTIATE_TEST_SUITE_P(Order, DeviceBlocks, testing::Values(0, 1));

TEST_P(DeviceBlocks, TileCountsAroundTheBlockSizeCutAsTheCpuDoes) {
  constexpr std::uint64_t kTiles = 24;
  for (int round = 0; round < 12; ++round) {
    SCOPED_TRACE(round);
    RandomDelta delta = one_tensor(DType::kBF16, kTiles * kTileElems - 5, [&](const Flip& flip) {
      constexpr std::uint32_t kCounts[] = {0,   0,   1,   2,   255,  256,  257,  510,  511,
                                           512, 513, 514, 900, 1023, 1024, 1025, 4096, 4097};
      for (std::uint64_t tile = 0; tile < kTiles; ++tile) {
        const std::uint32_t count = random_.pick(std::span<const std::uint32_t>(kCounts));
        const std::uint64_t stride = random_.between(1, count > 1025 ? 3 : 15);
        for (std::uint64_t i = 0; i < count; ++i) flip(tile * kTileElems + i * stride);
      }
    });
    // All distances are one ULP: what a thread sees too early would change the plan.
    delta.options.positions = static_cast<PositionMode>(round % 5);
    // Every second time there is no room for the entries of most tiles, which are compared again: some of them dense,
    // some in a run with tiles that have theirs.
    expect_compare_agrees(delta, random_, {.entries = round % 2 == 0 ? std::uint64_t{0} : random_.between(1, 6'000)});
  }
}

TEST_P(DeviceBlocks, SectionsBoundBlocks) {
  // Sparse enough that only the ends of sections end blocks; a tail of one tile and a bit in the third section.
  const std::uint64_t elements = 2 * std::uint64_t{kSectionElems} + kTileElems + 3;
  const RandomDelta delta = one_tensor(DType::kU8, elements, [&](const Flip& flip) {
    for (std::uint64_t i = 0; i < elements; i += 1 + random_.below(60'000)) flip(i);
    const std::uint64_t section = kSectionElems;
    for (const std::uint64_t at : {section - 1, section, 2 * section - 1, elements - 1}) flip(at);
  });
  for (int mode = 0; mode < 5; ++mode) {
    RandomDelta coded = delta;
    coded.options.positions = static_cast<PositionMode>(mode);
    expect_compare_agrees(coded, random_);
  }
}

TEST_P(DeviceBlocks, EveryCodecOfEveryWidthAtEveryDensity) {
  for (const DType dtype :
       {DType::kF8E4M3, DType::kI8, DType::kI4X2, DType::kF4X2, DType::kF8E8M0, DType::kBF16, DType::kI16, DType::kF32,
        DType::kI32, DType::kF64, DType::kI64, DType::kU16, DType::kU32, DType::kC64, DType::kF6E2M3}) {
    const double density = random_.log_uniform(1e-3, 1.0);
    SCOPED_TRACE(density);
    const std::uint64_t elements = kTileElems + random_.between(1, 900);
    RandomDelta delta = one_tensor(dtype, elements, [](const Flip&) {});
    const std::size_t size = element_size(dtype);
    for (std::uint64_t i = 0; i < elements; ++i) {
      if (!random_.chance(density)) continue;
      const std::uint64_t old_bits = read_element(delta.old_state[0].data(), size, i);
      const std::uint64_t distance = 1 + (random_.next() >> random_.between(1, 63));
      const std::uint64_t new_bits = random_.chance(0.5) ? old_bits + distance : old_bits - distance;
      write_element(delta.new_state[0].data(), size, i, new_bits);
    }
    for (int mode = 0; mode < 5; ++mode) {
      for (int values = 0; values < 3; ++values) {
        delta.options.positions = static_cast<PositionMode>(mode);
        delta.options.values = static_cast<ValueCodec>(values);
        SCOPED_TRACE(testing::Message() << "mode " << mode << ", values " << values << ", width " << size);
        expect_compare_agrees(delta, random_);
        if (HasFailure()) return;
      }
    }
  }
}

TEST_P(DeviceBlocks, FramesAreCutAtTheCapacity) {
  // Every element of 4 MB changes, so that there are some five frames of many blocks and tensors.
  RandomDelta delta;
  std::vector<TensorSpec> specs;
  for (int t = 0; t < 6; ++t) specs.push_back({std::string(1, static_cast<char>('a' + t)), DType::kF64, {86'000}});
  delta.table = std::make_shared<const TensorTable>(std::move(specs));
  for (std::size_t t = 0; t < 6; ++t) {
    Bytes& bits = delta.old_state.emplace_back((*delta.table)[t].bytes());
    Bytes& changed = delta.new_state.emplace_back(bits.size());
    for (std::size_t i = 0; i < bits.size(); ++i) {
      bits[i] = static_cast<std::byte>(random_.next());
      changed[i] = bits[i] ^ static_cast<std::byte>(1 + random_.below(255));
    }
  }
  delta.options.frame_capacity = kMinFrameCapacity;
  for (const ValueCodec values : {ValueCodec::kRaw, ValueCodec::kUlp}) {
    delta.options.values = values;
    expect_compare_agrees(delta, random_);
    expect_compare_agrees(delta, random_, {.chunk_bytes = 1, .arena_bytes = 1, .frame_bytes = 1});
  }
}

TEST_P(DeviceBlocks, NothingToSayIsNoFrame) {
  expect_compare_agrees(one_tensor(DType::kBF16, 40'000, [](const Flip&) {}), random_);
  RandomDelta empty;
  empty.table = std::make_shared<const TensorTable>();
  expect_compare_agrees(empty, random_);
  RandomDelta no_elements = one_tensor(DType::kF32, 0, [](const Flip&) {});
  expect_compare_agrees(no_elements, random_);
}

/// A compare encoder over bf16 tensors of these sizes, which change from delta to delta.
struct Stream {
  explicit Stream(const std::vector<std::uint64_t>& sizes, const cuda::DeviceEncoderOptions& device = {},
                  const EncodeOptions& encode_options = {})
      : table(specs_of(sizes)),
        live(element_sizes(table), state_of(sizes), 0),
        snapshot(element_sizes(table), state_of(sizes), 0),
        options(encode_options),
        encoder(cuda::DeviceEncoder::compare(table, tensors(), true, options, device)) {}

  static std::vector<TensorSpec> specs_of(const std::vector<std::uint64_t>& sizes) {
    std::vector<TensorSpec> specs;
    for (const std::uint64_t size : sizes) specs.push_back({std::to_string(specs.size()), DType::kBF16, {size}});
    return specs;
  }
  static TensorState state_of(const std::vector<std::uint64_t>& sizes) {
    TensorState state;
    for (const std::uint64_t size : sizes) state.emplace_back(2 * size, std::byte{0x40});
    return state;
  }
  static TensorState state_of(const DeviceState& device, std::size_t tensors) {
    TensorState state;
    for (std::size_t t = 0; t < tensors; ++t) state.push_back(device.bytes(t));
    return state;
  }
  std::vector<cuda::CompareTensor> tensors() {
    std::vector<cuda::CompareTensor> out;
    for (std::size_t t = 0; t < table.size(); ++t) out.push_back({live[t], snapshot[t]});
    return out;
  }
  void change(Random& random, double density) {
    for (std::size_t t = 0; t < table.size(); ++t) {
      for (std::size_t i = 0; i < table[t].bytes(); i += 2) {
        if (random.chance(density)) live[t][i] ^= std::byte{1};
      }
    }
  }
  /// Sends one delta and compares it with the CPU's; an emulated device counts the host's waits and, where nothing else
  /// grows, its allocations.
  void sync(std::size_t expected_waits, std::size_t expected_allocations = 0) {
    ++deltas;
    const TensorState now = state_of(live, table.size());
    const TensorState before = state_of(snapshot, table.size());
    const auto detector = make_compare_detector(table, views(now), views(before));
    const ExpectedFrames expected = encode_on_cpu(table, *detector, options);
#if defined(SPARSECAST_CUDA_EMULATION)
    const emulation::RuntimeCounts counts = emulation::runtime_counts();
#endif
    encoder.start(nullptr);
    const cuda::DeviceFrames frames = encoder.finish(test_header(table, options));
#if defined(SPARSECAST_CUDA_EMULATION)
    EXPECT_EQ(emulation::runtime_counts().queries - counts.queries, expected_waits);
    if (expected_waits == 1) {
      EXPECT_EQ(emulation::runtime_counts().allocations - counts.allocations, expected_allocations);
    }
#else
    static_cast<void>(expected_waits), static_cast<void>(expected_allocations);
#endif
    expect_same_frames(frames, expected);
    EXPECT_EQ(state_of(snapshot, table.size()), now);
  }

  TensorTable table;
  DeviceState live;
  DeviceState snapshot;
  EncodeOptions options;
  cuda::DeviceEncoder encoder;
  std::size_t deltas = 0;
};

TEST_P(DeviceBlocks, TheSteadyStateAllocatesNothingAndWaitsOnce) {
  for (const PositionMode positions : {PositionMode::kAuto, PositionMode::kContext}) {
    Stream stream({300'000}, {.chunk_bytes = 100'000, .entries = 75'000, .frame_bytes = 600'000},
                  {.positions = positions});
    for (const double density : {0.05, 0.01, 0.05, 0.001}) {
      stream.change(random_, density);
      stream.sync(1);
    }
  }
}

TEST_P(DeviceBlocks, RoomForTheEntriesOfADeltaIsThereForTheNext) {
  Stream stream({100'000}, {.frame_bytes = 200'000});
  stream.change(random_, 0.1);
  stream.sync(1, 2);  // Of positions and words, behind the delta: some tiles were compared again.
  stream.change(random_, 0.08);
  stream.sync(1);
  stream.change(random_, 0.9);
  stream.sync(1);  // More than a quarter: none of them is kept.
}

TEST_P(DeviceBlocks, DeltasThatGrowByAThirdFindTheRoomOfOneGrowth) {
  Stream frames({200'000}, {.frame_bytes = 1});
  frames.change(random_, 0.01);
  frames.sync(2);  // Once more for the frames.
  Stream entries({200'000}, {.entries = 10, .frame_bytes = 400'000});
  entries.change(random_, 0.01);
  entries.sync(1, 2);  // Of positions and words.
  for (const double density : {0.0115, 0.013}) {
    for (Stream* const stream : {&frames, &entries}) {
      stream->change(random_, density);
      stream->sync(1);
    }
  }
}

TEST_P(DeviceBlocks, AFullArenaLeavesNoPartialStateAndGrows) {
  // A chunk for each tensor; the arena holds two at worst, and the first of raw values is nearly that.
  Stream stream({40'000, 40'000, 20'000}, {.chunk_bytes = 1, .arena_bytes = 1, .frame_bytes = 1},
                {.values = ValueCodec::kRaw});
  stream.change(random_, 0.9);
  stream.sync(3);  // Once more for the arena, and for the frames.
  stream.change(random_, 0.001);
  stream.sync(1);
}

TEST_P(DeviceBlocks, OverlappedOrNotAndLaunchedAsAGraphOrNot) {
  for (const bool overlap : {false, true}) {
    for (const bool graph : {false, true}) {
      // A chunk for each tensor.
      Stream stream({60'000, 70'000, 3, 50'000},
                    {.chunk_bytes = 1, .overlap = overlap, .graph = graph, .frame_bytes = 1'000'000});
      // The third is dense where the others are sparse, so that entries have to grow, and the graph is captured again.
      for (const double density : {0.001, 0.002, 0.05, 0.01, 0.001}) {
        stream.change(random_, density);
#if defined(SPARSECAST_CUDA_EMULATION)
        const emulation::RuntimeCounts before = emulation::runtime_counts();
#endif
        stream.sync(1, density == 0.05 ? 4 : 0);
#if defined(SPARSECAST_CUDA_EMULATION)
        // The graph, and the headers of the frames.
        const std::size_t launches = emulation::runtime_counts().since(before).launches;
        EXPECT_EQ(launches == 2, graph && density != 0.01 && stream.deltas > 1) << stream.deltas;
#endif
      }
    }
  }
}

TEST(DeviceEncoderErrors, AreTypedAndNameWhatIsWrong) {
  const TensorTable table({{"weights", DType::kBF16, {100}}, {"scale", DType::kF32, {1}}});
  alignas(16) std::byte memory[512] = {};
  const EncodeOptions options;
  const auto compare = [&](const void* a, void* b) {
    static_cast<void>(cuda::DeviceEncoder::compare(table, {{a, b}, {memory, memory}}, true, options));
  };
  expect_error(ErrorCode::kUsage, [&] { compare(nullptr, memory); }, {"weights", "null"});
  expect_error(ErrorCode::kUsage, [&] { compare(memory + 1, memory); }, {"weights", "aligned"});
  expect_error(ErrorCode::kUsage, [&] { static_cast<void>(cuda::DeviceEncoder::compare(table, {}, true, options)); });
  expect_error(ErrorCode::kUsage,
               [&] {
                 static_cast<void>(cuda::DeviceEncoder::fused_cast(
                     table, {{nullptr, memory}, {reinterpret_cast<const float*>(memory), memory}}, options));
               },
               {"scale", "bf16"});
  expect_error(ErrorCode::kUsage,
               [&] {
                 static_cast<void>(cuda::DeviceEncoder::mask(table, {{memory, nullptr}, {memory, nullptr}}, options));
               },
               {"raw"});
  EncodeOptions zstd;
  zstd.zstd_level = 1;
  expect_error(ErrorCode::kUnsupported, [&] {
    static_cast<void>(cuda::DeviceEncoder::compare(table, {{memory, memory}, {memory, memory}}, true, zstd));
  });
  EncodeOptions large;
  large.block_changes = kLargeBlockChanges;
  expect_error(
      ErrorCode::kUnsupported,
      [&] {
        static_cast<void>(cuda::DeviceEncoder::compare(table, {{memory, memory}, {memory, memory}}, true, large));
      },
      {"512"});
}

#if defined(SPARSECAST_CUDA_EMULATION)
TEST(DeviceEncoderErrors, NeitherWaitingNorAFailedCallLeavesAnErrorForTheNextWhoAsks) {
  emulation::be_busy(3);
  cuda::HostWait(std::chrono::seconds(10)).wait(nullptr, "finish");
  EXPECT_EQ(cudaGetLastError(), cudaSuccess);
  emulation::be_busy(1'000'000'000);
  expect_error(ErrorCode::kTimeout, [] { cuda::HostWait(std::chrono::milliseconds(1)).wait(nullptr, "finish"); },
               {"finish"});
  emulation::be_busy(0);
  EXPECT_EQ(cudaGetLastError(), cudaSuccess);
  emulation::fail_allocation_after(0);
  expect_error(ErrorCode::kUnsupported, [] { static_cast<void>(cuda::DeviceMemory(1)); });
  emulation::fail_allocation_after(-1);
  EXPECT_EQ(cudaGetLastError(), cudaSuccess);
}

TEST(DeviceEncoderErrors, AFailedAllocationIsUnsupportedAndLeaksNothing) {
  const std::size_t live = emulation::runtime_counts().live_allocations;
  for (int successes = 0; successes < 40; ++successes) {
    emulation::fail_allocation_after(successes);
    try {
      const Stream stream({1000});
      EXPECT_GT(successes, 10);
      successes = 40;
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::kUnsupported) << error.what();
    }
    EXPECT_EQ(emulation::runtime_counts().live_allocations, live);
  }
  emulation::fail_allocation_after(-1);
}
#endif

}  // namespace
}  // namespace sparsecast::test
