// SPDX-License-Identifier: Apache-2.0

// NaN-masked tensors on the device, emulated or real, against the CPU's.

#include <gtest/gtest.h>

#include "codec/nan_masked.hpp"
#include "cuda/apply/device_applier.hpp"
#include "cuda/differential.hpp"
#include "support/expect_error.hpp"
#include "support/forge.hpp"
#include "support/nan_masked.hpp"

namespace sparsecast::test {
namespace {

constexpr DType kFloats[] = {DType::kBF16, DType::kF16, DType::kF32, DType::kF64, DType::kF8E4M3, DType::kF8E5M2};

/// Device memory with `bytes` of it, beginning `skew` bytes behind a 16-byte boundary.
struct DeviceBytes {
  DeviceBytes(const Bytes& bytes, std::size_t skew)
      : storage(allocate_shared(bytes.size() + skew)), at(storage.get() + skew), size(bytes.size()) {
    if (!bytes.empty()) std::memcpy(at, bytes.data(), bytes.size());
  }
  Bytes read() const { return read_device(at, size, nullptr); }
  SharedBytes storage;
  std::byte* at;
  std::size_t size;
};

/// Live tensors, each a view of larger memory, and an applier over them.
struct Engine {
  Engine(const TensorTable& of, const TensorState& state, Random& random, bool strided) : table(of) {
    std::vector<TensorRef> tensors;
    for (std::size_t t = 0; t < table.size(); ++t) {
      const std::size_t size = element_size(table[t].dtype);
      const bool view = strided && table[t].shape.size() <= 8;
      places.push_back(view ? random_placement(random, table[t].shape)
                            : Placement{{table[t].elements()}, {1}, table[t].elements()});
      Bytes memory(places[t].elements * size, std::byte{0x55});
      scatter(places[t], size, state[t], memory.data());
      live.emplace_back(memory, random.chance(0.5) ? 0 : size);
      tensors.push_back(ref_to(table[t], live[t].at, 0, view ? places[t].strides : std::vector<std::int64_t>{}));
    }
    applier.emplace(table, tensors);
  }
  void stage(const std::vector<Bytes>& records) {
    frames.clear();
    std::vector<DeviceRecord> device_records;
    for (const Bytes& record : records) {
      if (peek_record(record).kind != RecordKind::kFrame) continue;
      frames.emplace_back(record, 0);
      device_records.push_back({frames.back().at, static_cast<std::uint32_t>(record.size())});
    }
    applier->stage(parse_header(records.front()), device_records, nullptr);
  }
  Bytes state(std::size_t t) const { return gather(places[t], element_size(table[t].dtype), live[t].read().data()); }

  const TensorTable& table;
  std::vector<Placement> places;
  std::vector<DeviceBytes> live;
  std::optional<cuda::DeviceApplier> applier;
  std::vector<DeviceBytes> frames;
};

class DeviceNanMasked : public testing::TestWithParam<ValueCodec> {
 protected:
  void SetUp() override {
    if (!device_present()) GTEST_SKIP() << "no device";
  }
  ~DeviceNanMasked() override { set_thread_order(0); }
};
INSTANTIATE_TEST_SUITE_P(Values, DeviceNanMasked,
                         testing::Values(ValueCodec::kRaw, ValueCodec::kXor, ValueCodec::kUlp));

TEST_P(DeviceNanMasked, ExpandsAsTheCpuAndCopyingItIsApplying) {
  SCOPED_TRACE(seed_note());
  for (std::uint64_t n = 0; n < 25 && !HasFailure(); ++n) {
    Random random(case_seed(run_seed(), n));
    set_thread_order(random.chance(0.7) ? random.next() : 0);
    RandomDelta delta = random_delta(random, {.max_elements = 20'000, .large_chance = 0.2});
    delta.options.values = GetParam();
    delta.options.zstd_level = 0;
    const bool back = GetParam() != ValueCodec::kRaw && random.chance(0.4);
    const Direction direction = back ? Direction::kInverse : Direction::kForward;
    keep_to_numbers(delta, back);
    const TensorTable& table = *delta.table;
    const std::vector<Bytes> records = encode_records(table, delta.old_state, delta.new_state, delta.options);
    const DeltaHeader header = parse_header(records.front());
    const TensorState& base = back ? delta.new_state : delta.old_state;
    const TensorState& result = back ? delta.old_state : delta.new_state;

    std::vector<std::unique_ptr<FrameReader>> readers;
    std::vector<const FrameReader*> frames;
    std::vector<TensorRef> live;
    for (const Bytes& record : records) {
      if (peek_record(record).kind != RecordKind::kFrame) continue;
      readers.push_back(std::make_unique<FrameReader>(record, header, table));
      frames.push_back(readers.back().get());
    }
    for (std::size_t t = 0; t < base.size(); ++t) live.push_back(ref_to(table[t], base[t].data()));
    const NanMaskedDelta expected(table, frames, live, direction);

    Engine engine(table, base, random, random.chance(0.5));
    engine.stage(records);
    ASSERT_EQ(engine.applier->prepare_expansion(direction, nullptr), sum(expected.digest_changes()));
    ASSERT_EQ(engine.applier->expansion_tensors(), expected.tensors());
    for (std::size_t t = 0; t < table.size(); ++t) {
      ASSERT_EQ(engine.state(t), base[t]) << "checking has written";
      if (!is_nan_fillable(table[t].dtype)) continue;
      const std::size_t size = element_size(table[t].dtype);
      Bytes on_cpu(table[t].bytes());
      expected.expand(t, on_cpu);
      const DeviceBytes out(Bytes(table[t].bytes(), std::byte{0x77}), random.chance(0.5) ? 0 : size);
      engine.applier->expand(t, out.at, nullptr);
      ASSERT_EQ(out.read(), on_cpu) << "case " << n << ", tensor " << t;
      device_masked_copy({table[t].dtype, engine.places[t].shape, {}, engine.places[t].strides}, out.at,
                         engine.live[t].at, nullptr);
      ASSERT_EQ(engine.state(t), result[t]) << "case " << n << ", tensor " << t;
    }
    ASSERT_EQ(sum(engine.applier->digests(0, table.size(), nullptr)),
              sum(digest_tensors(table, refs_to(table, views(result)))));
  }
}

TEST_P(DeviceNanMasked, ARealNanIsRefusedByNameBeforeAnythingIsWritten) {
  Random random(11);
  for (const DType dtype : kFloats) {
    const std::size_t size = element_size(dtype);
    const TensorTable table({{"quiet", DType::kI32, {5}}, {"weights", dtype, {40'000}}});
    const TensorState before = {Bytes(20), Bytes(40'000 * size, std::byte{0x31})};
    TensorState after = before;
    for (std::uint64_t i = 0; i < 40'000; i += 90) write_element(after[1].data(), size, i, 0x32);
    for (const std::uint64_t i : {33'333, 39'000}) write_element(after[1].data(), size, i, ~std::uint64_t{0});
    EncodeOptions options;
    options.values = GetParam();
    Engine engine(table, before, random, false);
    engine.stage(encode_records(table, before, after, options));
    set_thread_order(random.next());
    expect_error(ErrorCode::kUnsupported, [&] { engine.applier->prepare_expansion(Direction::kForward, nullptr); },
                 {"weights", "33333", "NaN"});
    EXPECT_EQ(engine.state(1), before[1]);
    DeviceBytes out(Bytes(40'000 * size), 0);
    expect_error(ErrorCode::kUsage, [&] { engine.applier->expand(1, out.at, nullptr); }, {"prepared"});
  }
}

TEST_P(DeviceNanMasked, IntegersAreRefusedByNameAndMisuseIsTyped) {
  Random random(12);
  const TensorTable table({{"counts", DType::kI32, {50}}, {"weights", DType::kBF16, {50}}});
  const TensorState before = {Bytes(200), Bytes(100)};
  TensorState after = before;
  after[1][2] = std::byte{1};
  EncodeOptions options;
  options.values = GetParam();
  const std::vector<Bytes> floats = encode_records(table, before, after, options);
  after[0][8] = std::byte{1};
  const std::vector<Bytes> integers = encode_records(table, before, after, options);
  Engine engine(table, before, random, false);
  DeviceBytes out(Bytes(202), 0);
  const auto prepare = [&](Direction direction = Direction::kForward) {
    engine.applier->prepare_expansion(direction, nullptr);
  };
  expect_error(ErrorCode::kUsage, [&] { prepare(); }, {"staged"});
  engine.stage(integers);
  expect_error(ErrorCode::kUnsupported, [&] { prepare(); }, {"counts", "I32"});
  engine.stage(floats);
  if (GetParam() == ValueCodec::kRaw) expect_error(ErrorCode::kUsage, [&] { prepare(Direction::kInverse); }, {"raw"});
  prepare();
  EXPECT_EQ(engine.applier->expansion_tensors(), std::vector<std::size_t>{1});
  expect_error(ErrorCode::kUnsupported, [&] { engine.applier->expand(0, out.at, nullptr); }, {"counts"});
  expect_error(ErrorCode::kUsage, [&] { engine.applier->expand(2, out.at, nullptr); }, {"2"});
  expect_error(ErrorCode::kUsage, [&] { engine.applier->expand(1, out.at + 1, nullptr); }, {"weights", "aligned"});
  engine.applier->apply(Direction::kForward, nullptr);
  engine.applier->digest_changes();
  expect_error(ErrorCode::kUsage, [&] { engine.applier->expand(1, out.at, nullptr); }, {"prepared"});
}

class DeviceMaskedCopy : public testing::Test {
 protected:
  void SetUp() override {
    if (!device_present()) GTEST_SKIP() << "no device";
  }
  ~DeviceMaskedCopy() override { set_thread_order(0); }
};

TEST_F(DeviceMaskedCopy, CopiesEveryNumberAndKeepsTheRestForEveryPattern) {
  for (const DType dtype : {DType::kBF16, DType::kF16, DType::kF8E4M3, DType::kF8E5M2}) {
    const std::size_t size = element_size(dtype);
    const std::uint64_t patterns = std::uint64_t{1} << 8 * size;
    Bytes source(patterns * size);
    for (std::uint64_t i = 0; i < patterns; ++i) write_element(source.data(), size, i, i);
    Bytes expected(patterns * size, std::byte{0x5A});
    const DeviceBytes from(source, 0);
    const DeviceBytes to(expected, 0);
    device_masked_copy({dtype, {patterns}, {}, {}}, from.at, to.at, nullptr);
    masked_copy({dtype, {patterns}, {}, {}}, source.data(), expected.data());
    ASSERT_EQ(to.read(), expected);
  }
}

TEST_F(DeviceMaskedCopy, IsTheCpusBetweenAnyViewsAtAnyAlignment) {
  Random random(run_seed());
  SCOPED_TRACE(seed_note());
  for (int round = 0; round < 150; ++round) {
    set_thread_order(random.chance(0.7) ? random.next() : 0);
    const DType dtype = random.pick(std::span<const DType>(kFloats));
    const std::size_t size = element_size(dtype);
    std::vector<std::uint64_t> shape(random.below(4));
    for (std::uint64_t& extent : shape) extent = random.chance(0.03) ? 0 : random.between(1, 40);
    Placement from = random_placement(random, shape);
    Placement to = random_placement(random, shape);
    if (random.chance(0.4)) from.strides = to.strides = {};
    const double numbers = random.pick(std::span<const double>({0.0, 0.01, 0.5, 1.0}));
    Bytes source(from.elements * size);
    for (std::uint64_t i = 0; i < from.elements; ++i) {
      write_element(source.data(), size, i, random.chance(numbers) ? i % 0x30 : ~std::uint64_t{0});
    }
    Bytes destination(to.elements * size, std::byte{0x33});
    const DeviceBytes d_source(source, random.below(3) * size);
    const DeviceBytes d_destination(destination, random.below(3) * size);
    const MaskedCopyLayout layout{dtype, shape, from.strides, to.strides};
    masked_copy(layout, source.data(), destination.data());
    device_masked_copy(layout, d_source.at, d_destination.at, nullptr);
    ASSERT_EQ(d_destination.read(), destination) << "round " << round;
  }
}

TEST_F(DeviceMaskedCopy, FillsAsTheCpuAtAnyAlignment) {
  for (const DType dtype : kFloats) {
    const std::size_t size = element_size(dtype);
    for (std::uint64_t elements : {0, 1, 15, 16, 17, 5000}) {
      for (std::size_t skew : {std::size_t{0}, size}) {
        const DeviceBytes out(Bytes(elements * size), skew);
        device_nan_fill(dtype, out.at, elements, nullptr);
        Bytes expected(elements * size);
        nan_fill(dtype, expected);
        ASSERT_EQ(out.read(), expected);
      }
    }
  }
}

TEST_F(DeviceMaskedCopy, ErrorsAreTyped) {
  const DeviceBytes memory(Bytes(64), 0);
  expect_error(ErrorCode::kUnsupported, [&] { device_nan_fill(DType::kI64, memory.at, 1, nullptr); }, {"I64"});
  expect_error(ErrorCode::kUsage, [&] { device_nan_fill(DType::kF32, memory.at + 2, 1, nullptr); }, {"aligned"});
  expect_error(ErrorCode::kUsage, [&] { device_nan_fill(DType::kF32, nullptr, 1, nullptr); }, {"null"});
  expect_error(ErrorCode::kUsage,
               [&] {
                 device_masked_copy({DType::kBF16, {4}, {}, {}}, memory.at + 1, memory.at + 32, nullptr);
               },
               {"aligned"});
  expect_error(ErrorCode::kUsage,
               [&] {
                 device_masked_copy({DType::kBF16, {4}, {1, 1}, {}}, memory.at, memory.at, nullptr);
               },
               {"strides"});
}

}  // namespace
}  // namespace sparsecast::test
