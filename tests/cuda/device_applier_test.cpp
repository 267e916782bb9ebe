// SPDX-License-Identifier: Apache-2.0

// The device's decode and apply, emulated or real, against the CPU's on the same frames.

#include <gtest/gtest.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "cuda/applier_cases.hpp"
#include "sparsecast/safetensors.hpp"
#include "support/expect_error.hpp"
#include "support/forge.hpp"
#include "support/forged_bits.hpp"

namespace sparsecast::test {
namespace {

constexpr int kCases = 30;

class DeviceApplierTest : public DeviceCases {
 protected:
  DeviceApplierTest() : DeviceCases(0.75) {}
};
INSTANTIATE_TEST_SUITE_P(Random, DeviceApplierTest, testing::Range(0, 6));

TEST_P(DeviceApplierTest, AppliesAnyStepAndTakesItBack) {
  for_cases(kCases, [](Random& random) {
    RandomDelta delta = random_delta(random, {.max_elements = 100'000, .large_chance = 0.3, .of_hosts = true});
    delta.options.zstd_level = 0;
    expect_applies(delta, random.chance(0.7) ? 0 : random.between(1, 15), random.chance(0.5));
  });
}

TEST_P(DeviceApplierTest, EveryCodecOfEveryWidthAtEveryDensity) {
  for_cases(2, [](Random& random) {
    constexpr DType kDTypes[] = {DType::kF8E4M3, DType::kI8,  DType::kBF16, DType::kI16,
                                 DType::kF32,    DType::kI32, DType::kF64,  DType::kI64};
    RandomDelta delta;
    const DType dtype = random.pick(std::span<const DType>(kDTypes));
    const std::uint64_t elements = kTileElems + random.between(1, 900);
    delta.table = std::make_shared<const TensorTable>(std::vector<TensorSpec>{{"t", dtype, {elements}}});
    delta.old_state = random_state(random, *delta.table);
    const std::size_t size = element_size(dtype);
    const double density = random.log_uniform(1e-3, 1.0);
    const std::uint64_t cluster = random.chance(0.5) ? 1 : random.between(2, 500);
    for (int mode = 0; mode < 5; ++mode) {
      for (int values = 0; values < 3; ++values) {
        SCOPED_TRACE(testing::Message() << "mode " << mode << ", values " << values << ", width " << size);
        delta.options.positions = static_cast<PositionMode>(mode);
        delta.options.values = static_cast<ValueCodec>(values);
        delta.new_state = delta.old_state;
        const std::uint64_t most_shift = random.between(1, 63);
        bool on = false;
        for (std::uint64_t i = 0; i < elements; ++i) {
          if (i % cluster == 0) on = random.chance(density);
          if (!on) continue;
          const std::uint64_t distance = 1 + (random.next() >> random.between(most_shift, 63));
          const std::uint64_t old_bits = read_element(delta.old_state[0].data(), size, i);
          write_element(delta.new_state[0].data(), size, i,
                        random.chance(0.5) ? old_bits + distance : old_bits - distance);
        }
        expect_applies(delta, 0, false);
        expect_applies(delta, 0, true);
        if (HasFatalFailure()) return;
      }
    }
  });
}

TEST_P(DeviceApplierTest, AnySingleByteOfASmallFrameMayBeWrong) {
  Decisions decisions;
  for_cases(3, [&](Random& random) {
    RandomDelta delta = random_delta(random, {.max_tensors = 2, .max_elements = 600, .large_chance = 0});
    delta.options.zstd_level = 0;
    std::vector<Bytes> records = encode_records(*delta.table, delta.old_state, delta.new_state, delta.options);
    records.erase(records.begin() + 1);
    if (records.size() < 3) return;
    const std::size_t step = 1 + records[1].size() / 500;  // Every byte of most.
    for (std::size_t at = random.below(step); at < records[1].size() && !testing::Test::HasFailure(); at += step) {
      SCOPED_TRACE(testing::Message() << "byte " << at);
      std::vector<Bytes> altered = records;
      altered[1][at] ^= static_cast<std::byte>(random.chance(0.5) ? 1U << random.below(8) : random.between(1, 255));
      if (random.chance(0.9)) refresh_checksums(altered);
      expect_same_decision(altered, *delta.table, delta.old_state, decisions);
    }
  });
  RecordProperty("refused", decisions.refused);
  RecordProperty("applied", decisions.applied);
}

TEST_P(DeviceApplierTest, DirectoriesMayBeWrongInAnyWay) {
  Decisions decisions;
  for_cases(4, [&](Random& random) {
    RandomDelta delta = random_delta(random, {.max_tensors = 3, .max_elements = 60'000, .large_chance = 0.5});
    delta.options.zstd_level = 0;
    std::vector<Bytes> records = encode_records(*delta.table, delta.old_state, delta.new_state, delta.options);
    records.erase(records.begin() + 1);
    if (records.size() < 3) return;
    const std::size_t groups = 8 * field<std::uint32_t>(records[1], at::kFrameGroups);
    const std::size_t directory = groups + 16 * std::size_t{field<std::uint32_t>(records[1], at::kFrameBlocks)};
    for (int m = 0; m < 20 && !testing::Test::HasFailure(); ++m) {
      std::vector<Bytes> altered = records;
      for (std::uint64_t n = random.between(1, 2); n > 0; --n) {
        altered[1][at::kFrameBody + random.below(directory)] ^= static_cast<std::byte>(1U << random.below(8));
      }
      std::uint64_t changed = 0;
      for (std::size_t entry = groups; entry < directory; entry += 16) {
        changed += field<std::uint32_t>(altered[1], at::kFrameBody + entry + 4) & 0xFFFFFF;
      }
      set_field(altered[1], at::kFrameChanged, changed);
      refresh_checksums(altered);
      expect_same_decision(altered, *delta.table, delta.old_state, decisions);
    }
  });
  RecordProperty("refused", decisions.refused);
  RecordProperty("applied", decisions.applied);
}

const std::string kGolden = SPARSECAST_TESTDATA_DIR "/golden/";

TensorState load(const std::string& path, const TensorTable& table) {
  const Checkpoint checkpoint = Checkpoint::open(FileSystem::posix(), path);
  TensorState state;
  for (const TensorSpec& spec : table) {
    const Bytes bits = checkpoint.tensor(*checkpoint.table().find(spec.name));
    state.emplace_back(bits.begin(), bits.end());
  }
  return state;
}

TEST(DeviceApplierGolden, GoodVectorsApply) {
  if (!device_present()) GTEST_SKIP() << "no device";
  int applied = 0;
  const Bytes text = read_file(FileSystem::posix(), kGolden + "manifest.json");
  const auto* begin = reinterpret_cast<const char*>(text.data());
  const nlohmann::json manifest = nlohmann::json::parse(begin, begin + text.size());
  for (const nlohmann::json& vector : manifest.at("good")) {
    SCOPED_TRACE(vector.at("name").get<std::string>());
    const DeltaFile file = DeltaFile::open(FileSystem::posix(), kGolden + vector.at("delta").get<std::string>());
    std::vector<Bytes> frames;
    bool compressed = false;
    for (std::size_t f = 0; f < file.frames(); ++f) {
      frames.push_back(file.frame(f));
      compressed = compressed || parse_frame_header(frames.back()).compressed;
    }
    const TensorTable& table = file.table();
    Receiver receiver(table, load(kGolden + vector.at("base").get<std::string>(), table));
    if (compressed) {
      expect_error(ErrorCode::kUnsupported, [&] { receiver.stage(file.header(), frames); }, {"zstd"});
      continue;
    }
    receiver.stage(file.header(), frames);
    receiver.apply();
    const TensorState result = load(kGolden + vector.at("result").get<std::string>(), table);
    EXPECT_EQ(first_difference(table, receiver.state(), result), "");
    EXPECT_EQ(receiver.digest(), file.commit().result_digest);
    ++applied;
  }
  EXPECT_GE(applied, 50);
}

TEST(DeviceApplierGolden, BadVectorsThatOnlyBlocksBetrayAreRefused) {
  if (!device_present()) GTEST_SKIP() << "no device";
  const TensorTable table(std::vector<TensorSpec>{
      {"floats", DType::kBF16, {40}}, {"bytes", DType::kU8, {20'000}}, {"words", DType::kF32, {6}}});
  const TensorState base = load(kGolden + "states/bad.base.safetensors", table);
  int refused = 0;
  for (const std::string& path : FileSystem::posix().list(kGolden + "bad")) {
    const std::string name = path.substr(path.rfind('/') + 1);
    SCOPED_TRACE(name);
    const Bytes bytes = read_file(FileSystem::posix(), kGolden + "bad/" + name);
    try {
      const DeltaFile file = DeltaFile::over(bytes, name);
      if (file.table().hash() != table.hash()) continue;
      try {
        file.report();
      } catch (const Error& expected) {
        std::vector<Bytes> frames;
        for (std::size_t f = 0; f < file.frames(); ++f) frames.push_back(file.frame(f));
        if (std::ranges::any_of(frames, [](const Bytes& f) { return parse_frame_header(f).compressed; })) continue;
        Receiver receiver(table, base);
        try {
          receiver.stage(file.header(), frames);
          ADD_FAILURE() << "accepted";
        } catch (const Error& error) {
          EXPECT_EQ(error.code(), expected.code()) << error.what();
          // The CPU's words, but for the name of the file.
          EXPECT_NE(std::string(expected.what()).find(error.what()), std::string::npos) << error.what() << "\n"
                                                                                        << expected.what();
        }
        EXPECT_EQ(receiver.state(), base);
        ++refused;
      }
    } catch (const Error&) {
      // Refused by header, table or commit, which the device does not see.
    }
  }
  EXPECT_GE(refused, 50);
}

TEST(DeviceApplierShapes, ABlockOfManyTilesAndChangesIsDecoded) {
  if (!device_present()) GTEST_SKIP() << "no device";
  // More changes than an encoder of ours would put into a run: several chunks of every stream.
  const std::uint64_t elements = 3 * kTileElems;
  const TensorTable table({{"t", DType::kBF16, {elements}}});
  const TensorState base = {Bytes(2 * elements, std::byte{0x3C})};
  Random random(5);
  for (const Parameters parameters : {Parameters{0, 0, 0, false}, Parameters{3, 2, 1, false},
                                      Parameters{1, 0, 4, false}, Parameters{2, 0, 0, true}}) {
    std::vector<std::uint64_t> positions;
    std::vector<UlpStep> steps;
    for (std::uint64_t at = random.below(20); at < elements; at += 1 + random.below(random.chance(0.01) ? 500 : 6)) {
      positions.push_back(at);
      steps.push_back({random.chance(0.5), random.chance(0.7) ? random.below(4) : random.below(1000)});
    }
    ReferenceBlock block = packed_ulp_block(positions, steps, parameters);
    block.tiles = 3;
    DeltaHeader header;
    const std::vector<Bytes> records = forge_records(table, header, {ForgedFrame{{{0, {block}}}, {}}}, {});
    Decisions decisions;
    set_thread_order(random.next());
    expect_same_decision(records, table, base, decisions);
    EXPECT_EQ(decisions.applied, 1);
  }
  set_thread_order(0);
}

TEST(DeviceApplierShapes, StridedTensorsApply) {
  if (!device_present()) GTEST_SKIP() << "no device";
  Random random(3);
  const std::vector<std::uint64_t> shape = {7, 130, 33};
  const TensorTable table({{"t", DType::kBF16, shape}});
  const TensorState before = random_state(random, table);
  TensorState after = before;
  change_randomly(random, table, after);
  after[0][4] ^= std::byte{1};
  const std::vector<Bytes> records = encode_records(table, before, after, {});
  // The last dimension first, with room between the rows.
  const std::vector<std::int64_t> strides = {1, 7 + 2, (7 + 2) * 130};
  const auto place = [&](const TensorState& state, std::byte* to) {
    std::uint64_t index = 0;
    for (std::uint64_t i = 0; i < shape[0]; ++i) {
      for (std::uint64_t j = 0; j < shape[1]; ++j) {
        for (std::uint64_t k = 0; k < shape[2]; ++k, ++index) {
          const std::uint64_t at = i + 9 * j + 9 * 130 * k;
          write_element(to, 2, at, read_element(state[0].data(), 2, index));
        }
      }
    }
  };
  const std::size_t bytes = 2 * 9 * 130 * 33;
  SharedBytes live(allocate_shared(bytes));
  std::memset(live.get(), 0x77, bytes);
  Bytes expected(bytes, std::byte{0x77});
  place(before, live.get());
  place(after, expected.data());
  cuda::DeviceApplier applier(table, {ref_to(table[0], live.get(), 0, strides)});
  EXPECT_EQ(sum(applier.digests(0, table.size(), nullptr)), digest_of(table, before));
  const std::vector<Bytes> frames = frames_of(records);
  ASSERT_EQ(frames.size(), 1U);
  SharedBytes record(allocate_shared(frames[0].size()));
  std::memcpy(record.get(), frames[0].data(), frames[0].size());
  const std::vector<DeviceRecord> device_records = {{record.get(), static_cast<std::uint32_t>(frames[0].size())}};
  applier.stage(parse_header(records.front()), device_records, nullptr);
  applier.apply(Direction::kForward, nullptr);
  EXPECT_EQ(sum(applier.digest_changes()), minus(digest_of(table, after), digest_of(table, before)));
  EXPECT_EQ(std::memcmp(live.get(), expected.data(), bytes), 0);
  EXPECT_EQ(sum(applier.digests(0, table.size(), nullptr)), digest_of(table, after));
}

TEST(DeviceApplierErrors, AreTypedAndNameWhatIsWrong) {
  const TensorTable table({{"weights", DType::kBF16, {2, 50}}});
  alignas(16) std::byte memory[512] = {};
  const auto make = [&](void* data, std::vector<std::int64_t> strides) {
    cuda::DeviceApplier applier(table, {ref_to(table[0], data, 0, std::move(strides))});
  };
  expect_error(ErrorCode::kUsage, [&] { make(nullptr, {}); }, {"weights", "null"});
  expect_error(ErrorCode::kUsage, [&] { make(memory + 1, {}); }, {"weights", "aligned"});
  expect_error(ErrorCode::kUsage, [&] { make(memory, {1}); }, {"weights", "dimension"});
  expect_error(ErrorCode::kUsage, [&] { cuda::DeviceApplier applier(table, {}); });
  if (!device_present()) GTEST_SKIP() << "no device";
  cuda::DeviceApplier applier(table, {ref_to(table[0], memory, 0)});
  expect_error(ErrorCode::kUsage, [&] { applier.apply(Direction::kForward, nullptr); }, {"staged"});
  expect_error(ErrorCode::kTableMismatch, [&] { applier.stage({}, {}, nullptr); });
}

#if defined(SPARSECAST_CUDA_EMULATION)
/// One delta of a tensor of 50'000 elements of which it changes every hundredth.
struct SparseStep {
  SparseStep() {
    for (std::size_t i = 0; i < next[0].size(); i += 200) next[0][i] ^= std::byte{1};
    records = encode_records(table, state, next, {});
  }
  TensorTable table{{{"t", DType::kBF16, {50'000}}}};
  TensorState state{Bytes(100'000, std::byte{0x40})};
  TensorState next = state;
  std::vector<Bytes> records;
};

TEST(DeviceApplierEntries, AreKeptUpToTheirBytesAndWrittenWithoutThePayloads) {
  const SparseStep step;
  const auto apply_after_damage = [&](std::uint64_t entry_bytes) {
    Receiver receiver(step.table, step.state, 0, {.entry_bytes = entry_bytes});
    const emulation::HeldMemory before = emulation::held_memory();
    receiver.stage(parse_header(step.records.front()), frames_of(step.records));
    const std::uint64_t held = emulation::held_memory().device - before.device;
    receiver.damage();
    receiver.apply();
    EXPECT_EQ(receiver.state(), step.next);
    return held;
  };
  constexpr std::uint64_t kNeeded = 500 * (4 + 2);
  EXPECT_GE(apply_after_damage(kNeeded), kNeeded);
  emulation::free_memory(4 * kNeeded);
  EXPECT_GE(apply_after_damage(kNeeded), kNeeded);
  emulation::free_memory(4 * kNeeded - 1);
  expect_error(ErrorCode::kCorrupt, [&] { apply_after_damage(kNeeded); }, {"have changed since they were staged"});
  emulation::free_memory(std::size_t{1} << 36);
  expect_error(ErrorCode::kCorrupt, [&] { apply_after_damage(kNeeded - 1); }, {"have changed since they were staged"});
}

TEST(DeviceApplierEntries, WithoutMemoryForThemTheDeltaIsDecodedAgain) {
  const SparseStep step;
  for (int allocations = 0; allocations < 40; ++allocations) {
    Receiver receiver(step.table, step.state, 0, with_entries(true));
    const std::vector<Bytes> frames = frames_of(step.records);
    emulation::fail_allocation_after(allocations);
    bool staged = false;
    try {
      receiver.stage(parse_header(step.records.front()), frames);
      staged = true;
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::kUnsupported);
    }
    emulation::fail_allocation_after(-1);
    if (!staged) receiver.stage(parse_header(step.records.front()), frames);
    receiver.apply();
    EXPECT_EQ(receiver.state(), step.next) << allocations;
  }
}

TEST(DeviceApplierMemory, TheSteadyStateAllocatesNothing) {
  Random random(9);
  const TensorTable table({{"t", DType::kBF16, {50'000}}});
  TensorState state = random_state(random, table);
  Receiver receiver(table, state, 0, {.keep_replaced = cuda::KeepReplaced::kAll, .entry_bytes = 6 * 50'000});
  std::size_t allocations = 0;
  for (const double density : {0.1, 0.01, 0.05}) {
    TensorState next = state;
    for (std::size_t i = 0; i < next[0].size(); i += 2) {
      if (random.chance(density)) next[0][i] ^= std::byte{1};
    }
    const std::vector<Bytes> records = encode_records(table, state, next, {});
    receiver.stage(parse_header(records.front()), frames_of(records));
    receiver.apply();
    EXPECT_EQ(receiver.state(), next);
    if (allocations != 0) {
      EXPECT_EQ(emulation::runtime_counts().allocations, allocations);
    }
    allocations = emulation::runtime_counts().allocations;
    state = next;
  }
}
#endif

}  // namespace
}  // namespace sparsecast::test
