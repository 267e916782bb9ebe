// SPDX-License-Identifier: Apache-2.0
#include "sparsecast/quantize.hpp"

#include <gtest/gtest.h>

#include <cfenv>

#if defined(__SSE2__)
#include <xmmintrin.h>
#endif

#include "sparsecast/safetensors.hpp"
#include "support/expect_error.hpp"
#include "support/quantize.hpp"

namespace sparsecast::test {
namespace {

constexpr DType kSources[] = {DType::kBF16, DType::kF16, DType::kF32};

/// Makes this thread take denormals for zeros, as torch.set_flush_denormal(True) does; where the machine has no such
/// mode, nothing.
void flush_denormals() {
#if defined(__SSE2__)
  _mm_setcsr(_mm_getcsr() | 0x8040U);
#endif
}

bool denormals_are_flushed() {
#if defined(__SSE2__)
  return (_mm_getcsr() & 0x8040U) == 0x8040U;
#else
  return true;
#endif
}

/// A matrix in memory with gaps, or transposed, or neither.
struct Source {
  Source(Random& random, DType dtype, const std::array<std::uint64_t, 2>& shape, const Bytes& elements)
      : place(random_placement(random, {shape[0], shape[1]})), size(element_size(dtype)), skew(random.below(3)) {
    memory.resize(skew + place.elements * size);
    scatter(place, size, elements, memory.data() + skew);
  }
  const std::byte* at(std::uint64_t row, std::uint64_t column) const {
    return memory.data() + skew +
           (static_cast<std::int64_t>(row) * place.strides[0] + static_cast<std::int64_t>(column) * place.strides[1]) *
               static_cast<std::int64_t>(size);
  }
  Placement place;
  std::size_t size;
  std::size_t skew;
  Bytes memory;
};

/// A shape that a format allows.
std::array<std::uint64_t, 2> random_shape(Random& random, const QuantFormat& format, std::uint64_t most) {
  const bool eights = format.element != QuantElement::kE4M3;
  return {random.between(1, most), eights ? 8 * random.between(1, most) : random.between(1, most)};
}

TEST(Quantize, IsTheOraclesForAnyShapeFormatAndSource) {
  SCOPED_TRACE(seed_note());
  for (std::uint64_t n = 0; n < 400; ++n) {
    Random random(case_seed(run_seed(), n));
    const DType dtype = random.pick(std::span<const DType>(kSources));
    const QuantFormat format = random_format(random, 70);
    const std::array<std::uint64_t, 2> shape = random_shape(random, format, 50);
    const Bytes elements = random_weights(random, dtype, shape[0] * shape[1]);
    const Source source(random, dtype, shape, elements);
    const MatrixShard shard{"w", dtype, shape, {0, 0}, shape, source.place.strides, format};
    QuantizedMemory memory(shard);
    const float tensor =
        std::ldexp(static_cast<float>(random.between(1, 1000)), static_cast<int>(random.below(40)) - 30);
    const bool anew = random.chance(0.5);
    memory.global_scale = tensor;
    quantize(shard, source.at(0, 0), memory.out(), {nullptr, anew ? &tensor : nullptr}, random.chance(0.3) ? 3 : 1);
    if (anew && format.scale == QuantScale::kE4M3) {
      const auto most = static_cast<float>(448.0L * most_of(format.element));
      EXPECT_EQ(memory.global_scale, static_cast<float>(static_cast<long double>(most) / tensor));
    } else {
      EXPECT_EQ(memory.global_scale, tensor);
    }
    const QuantizedMatrix expected = quantized_by_oracle(dtype, shape, format, memory.global_scale, elements);
    ASSERT_EQ(scale_bits(format.scale, memory.scales), expected.scales) << "case " << n;
    ASSERT_EQ(unpacked(format.element, memory.elements), expected.codes) << "case " << n;
  }
}

TEST(Quantize, DoesNotDependOnTheFloatingPointEnvironmentOfTheCaller) {
  SCOPED_TRACE(seed_note());
  std::fenv_t callers;
  std::fegetenv(&callers);
  for (std::uint64_t n = 0; n < 200; ++n) {
    Random random(case_seed(run_seed(), n));
    const DType dtype = random.pick(std::span<const DType>(kSources));
    const QuantFormat format = random_format(random, 70);
    const std::array<std::uint64_t, 2> shape = random_shape(random, format, 50);
    Bytes elements = random_weights(random, dtype, shape[0] * shape[1]);
    if (random.chance(0.2)) std::fill(elements.begin(), elements.end(), std::byte{0});
    const MatrixShard shard{"w", dtype, shape, {0, 0}, shape, {}, format};
    const int threads = random.chance(0.5) ? 3 : 1;
    const float tensor =
        std::ldexp(static_cast<float>(random.between(1, 1000)), static_cast<int>(random.below(40)) - 30);
    QuantizedMemory expected(shard);
    quantize(shard, elements.data(), expected.out(), {nullptr, &tensor}, threads);
    for (const int rounding : {FE_TONEAREST, FE_DOWNWARD, FE_UPWARD, FE_TOWARDZERO}) {
      QuantizedMemory found(shard);
      std::fesetround(rounding);
      flush_denormals();
      quantize(shard, elements.data(), found.out(), {nullptr, &tensor}, threads);
      const bool kept = std::fegetround() == rounding && denormals_are_flushed();
      std::fesetenv(&callers);
      EXPECT_TRUE(kept) << "the caller's environment came back";
      ASSERT_EQ(found.scales, expected.scales) << "case " << n;
      ASSERT_EQ(found.elements, expected.elements) << "case " << n;
      ASSERT_EQ(std::bit_cast<std::uint32_t>(found.global_scale), std::bit_cast<std::uint32_t>(expected.global_scale));
    }
  }
}

TEST(Quantize, ShardsThatCutBlocksGiveTheWholeMatrixsResultFromTheMaximumOfTheirAmaxes) {
  SCOPED_TRACE(seed_note());
  for (std::uint64_t n = 0; n < 150; ++n) {
    Random random(case_seed(run_seed(), n));
    const DType dtype = random.pick(std::span<const DType>(kSources));
    const QuantFormat format = random_format(random, 20);
    const std::array<std::uint64_t, 2> shape = random_shape(random, format, 50);
    const Bytes elements = random_weights(random, dtype, shape[0] * shape[1]);
    const auto global = static_cast<float>(random.between(1, 100'000));
    const QuantizedMatrix expected = quantized_by_oracle(dtype, shape, format, global, elements);
    const Source source(random, dtype, shape, elements);
    // Four shards around a point: some may be empty.
    const std::uint64_t step = format.element == QuantElement::kE4M3 ? 1 : 8;
    const std::array<std::uint64_t, 2> cut{random.below(shape[0] + 1), random.below(shape[1] / step + 1) * step};
    std::vector<MatrixShard> shards;
    for (unsigned quarter = 0; quarter < 4; ++quarter) {
      MatrixShard shard{"w", dtype, shape, {}, {}, source.place.strides, format};
      for (unsigned d = 0; d < 2; ++d) {
        const bool second = (quarter >> d & 1) != 0;
        shard.offset[d] = second ? cut[d] : 0;
        shard.extent[d] = second ? shape[d] - cut[d] : cut[d];
      }
      shards.push_back(shard);
    }
    const std::uint64_t grid_columns = block_grid({"w", dtype, shape, {}, shape, {}, format}).extent[1];
    std::vector<float> amax(expected.amax.size(), 0.0F);
    const auto in_grid = [&](const BlockGrid& grid, std::uint64_t b) {
      return (grid.offset[0] + b / grid.extent[1]) * grid_columns + grid.offset[1] + b % grid.extent[1];
    };
    for (const MatrixShard& shard : shards) {
      const BlockGrid grid = block_grid(shard);
      std::vector<float> own(grid.blocks());
      block_amax(shard, source.at(shard.offset[0], shard.offset[1]), own.data());
      for (std::uint64_t b = 0; b < own.size(); ++b) amax[in_grid(grid, b)] = std::max(amax[in_grid(grid, b)], own[b]);
    }
    ASSERT_EQ(amax, expected.amax) << "case " << n;
    for (const MatrixShard& shard : shards) {
      const BlockGrid grid = block_grid(shard);
      std::vector<float> given(grid.blocks());
      for (std::uint64_t b = 0; b < given.size(); ++b) given[b] = amax[in_grid(grid, b)];
      QuantizedMemory memory(shard);
      memory.global_scale = global;
      quantize(shard, source.at(shard.offset[0], shard.offset[1]), memory.out(), {given.data(), nullptr});
      const std::vector<std::uint32_t> scales = scale_bits(format.scale, memory.scales);
      for (std::uint64_t b = 0; b < scales.size(); ++b) ASSERT_EQ(scales[b], expected.scales[in_grid(grid, b)]);
      const std::vector<std::uint8_t> codes = unpacked(format.element, memory.elements);
      for (std::uint64_t i = 0; i < codes.size(); ++i) {
        const std::uint64_t row = shard.offset[0] + i / shard.extent[1];
        const std::uint64_t column = shard.offset[1] + i % shard.extent[1];
        ASSERT_EQ(codes[i], expected.codes[row * shape[1] + column]) << "case " << n;
      }
    }
  }
}

Checkpoint open_golden(const std::string& name) {
  return Checkpoint::open(FileSystem::posix(), std::string(SPARSECAST_TESTDATA_DIR) + "/quantize/" + name);
}

Bytes bytes_of(const Checkpoint& golden, const std::string& name) {
  return golden.tensor(golden.table().find(name).value());
}

TEST(Quantize, IsWhatTorchWrote) {
  const Checkpoint golden = open_golden("fp8_blocks.safetensors");
  std::size_t compared = 0;
  for (std::size_t t = 0; t < golden.table().size(); ++t) {
    const TensorSpec& spec = golden.table()[t];
    if (spec.name.find('.') != std::string::npos) continue;
    const MatrixShard shard{spec.name, spec.dtype, {spec.shape[0], spec.shape[1]}, {}, {spec.shape[0], spec.shape[1]},
                            {},        {{16, 24}}};
    QuantizedMemory memory(shard);
    quantize(shard, golden.tensor(t).data(), memory.out());
    EXPECT_EQ(memory.elements, bytes_of(golden, spec.name + ".weight")) << spec.name;
    EXPECT_EQ(memory.scales, bytes_of(golden, spec.name + ".weight_scale_inv")) << spec.name;
    ++compared;
  }
  EXPECT_EQ(compared, 3U);
}

TEST(Quantize, IsWhatCompressedTensorsWrote) {
  constexpr auto kNearest = ScaleRounding::kNearest;
  constexpr auto kRound = ScaleRounding::kPowerRound;
  const Checkpoint golden = open_golden("compressed_tensors.safetensors");
  const Bytes weight = bytes_of(golden, "weight");
  const TensorSpec& spec = golden.table()[golden.table().find("weight").value()];
  const std::array<std::uint64_t, 2> shape{spec.shape[0], spec.shape[1]};
  for (const auto& [name, elements, format] :
       {std::tuple{"fp8_channels", "weight", QuantFormat{{1, kWhole}, QuantElement::kE4M3, QuantScale::kF32, kNearest}},
        std::tuple{"mxfp8", "weight", QuantFormat{{1, 32}, QuantElement::kE4M3, QuantScale::kE8M0, kRound}},
        std::tuple{"mxfp4", "weight_packed", QuantFormat{{1, 32}, QuantElement::kE2M1, QuantScale::kE8M0, kRound}},
        std::tuple{"nvfp4", "weight_packed", QuantFormat{{1, 16}, QuantElement::kE2M1, QuantScale::kE4M3, kNearest}},
        std::tuple{"int4_128", "weight_packed",
                   QuantFormat{{1, 128}, QuantElement::kInt4, QuantScale::kBF16, kNearest}},
        std::tuple{"int4_32", "weight_packed",
                   QuantFormat{{1, 32}, QuantElement::kInt4, QuantScale::kBF16, kNearest}}}) {
    const std::string prefix = std::string(name) + ".";
    const MatrixShard shard{name, spec.dtype, shape, {}, shape, {}, format};
    MatrixShard whole = shard;
    whole.format = {.block = {kWhole, kWhole}};
    float amax = 0;
    block_amax(whole, weight.data(), &amax);
    QuantizedMemory memory(shard);
    quantize(shard, weight.data(), memory.out(), {nullptr, &amax});
    EXPECT_EQ(memory.elements, bytes_of(golden, prefix + elements)) << name;
    EXPECT_EQ(memory.scales, bytes_of(golden, prefix + "weight_scale")) << name;
    if (format.scale != QuantScale::kE4M3) continue;
    const Bytes global = bytes_of(golden, prefix + "weight_global_scale");
    EXPECT_EQ(std::bit_cast<std::uint32_t>(memory.global_scale), read_element(global.data(), 4, 0));
  }
}

TEST(Quantize, AnElementThatIsNotFiniteBreaksItsBlockOfFourBitsAndNoOther) {
  for (const auto& [element, scale, rounding, nan] :
       {std::tuple{QuantElement::kE2M1, QuantScale::kE8M0, ScaleRounding::kPowerFloor, 0xFFU},
        std::tuple{QuantElement::kE2M1, QuantScale::kE4M3, ScaleRounding::kNearest, 0x7FU},
        std::tuple{QuantElement::kInt4, QuantScale::kBF16, ScaleRounding::kNearest, 0x7FC0U}}) {
    const std::uint8_t zero = element == QuantElement::kInt4 ? 8 : 0;
    for (const std::uint64_t broken : {0x7F80U, 0xFF80U, 0x7FC0U, 0xFF81U}) {
      Bytes source(std::size_t{96} * 2);
      for (std::uint64_t i = 0; i < 96; ++i) write_element(source.data(), 2, i, i == 40 ? broken : 0x3F80U);
      const MatrixShard shard{"w", DType::kBF16, {1, 96}, {}, {1, 96}, {}, {{1, 32}, element, scale, rounding}};
      std::vector<float> amax(3);
      block_amax(shard, source.data(), amax.data());
      EXPECT_EQ(amax, (std::vector<float>{1.0F, std::numeric_limits<float>::infinity(), 1.0F}));
      QuantizedMemory memory(shard);
      quantize(shard, source.data(), memory.out());
      const std::vector<std::uint32_t> scales = scale_bits(scale, memory.scales);
      EXPECT_EQ(scales[1], nan);
      EXPECT_EQ(scales[0], scales[2]);
      EXPECT_NE(scales[0], nan);
      const std::vector<std::uint8_t> codes = unpacked(element, memory.elements);
      for (std::uint64_t i = 0; i < 96; ++i) EXPECT_EQ(codes[i] == zero, i >= 32 && i < 64) << i;
    }
  }
}

TEST(Quantize, AShardThatCutsABlockIsRefusedByNameAndEdge) {
  MatrixShard shard{"mlp.gate", DType::kBF16, {300, 300}, {128, 0}, {100, 300}, {}, {}};
  Bytes source(60'000);
  Bytes fp8(30'000);
  std::vector<float> scale(9);
  const auto quantize_all = [&] { quantize(shard, source.data(), {fp8.data(), scale.data()}); };
  EXPECT_FALSE(block_grid(shard).whole);
  expect_error(ErrorCode::kUsage, quantize_all, {"mlp.gate", "rows 128 to 228 of 300", "128"});
  shard.extent = {128, 172};
  shard.offset = {128, 128};
  EXPECT_TRUE(block_grid(shard).whole);
  quantize_all();
  shard.offset = {128, 64};
  expect_error(ErrorCode::kUsage, quantize_all, {"mlp.gate", "columns 64 to 236"});
}

TEST(Quantize, MisuseIsTyped) {
  Bytes memory(64);
  float scale = 0;
  MatrixShard shard{"w", DType::kBF16, {4, 4}, {0, 0}, {4, 4}, {}, {}};
  const auto quantize_all = [&] { quantize(shard, memory.data(), {memory.data() + 32, &scale}); };
  quantize_all();
  shard.dtype = DType::kI32;
  expect_error(ErrorCode::kUnsupported, quantize_all, {"w", "I32"});
  shard.dtype = DType::kBF16;
  shard.offset = {1, 0};
  expect_error(ErrorCode::kUsage, quantize_all, {"w", "rows 1 to 5 of a matrix of 4"});
  shard.offset = {0, ~std::uint64_t{0}};
  expect_error(ErrorCode::kUsage, quantize_all, {"columns"});
  shard.offset = {0, 0};
  shard.strides = {1};
  expect_error(ErrorCode::kUsage, quantize_all, {"strides"});
  shard.strides = {};
  shard.format.block = {128, 0};
  expect_error(ErrorCode::kUsage, quantize_all, {"block"});
  shard.format.block = {128, 128};
  expect_error(ErrorCode::kUsage, [&] { quantize(shard, nullptr, {memory.data(), &scale}); }, {"null"});
  shard.extent = {0, 4};
  quantize(shard, nullptr, {});
  EXPECT_EQ(block_grid(shard).blocks(), 0U);
}

TEST(Quantize, FormatsThatDoNotExistAreRefused) {
  MatrixShard shard{"mlp.up", DType::kBF16, {4, 64}, {0, 0}, {4, 64}, {}, {}};
  const auto refused = [&](ErrorCode code, const std::string& word) {
    expect_error(code, [&] { block_grid(shard); }, {"mlp.up", word});
  };
  shard.format = {{1, 32}, QuantElement::kE4M3, QuantScale::kE8M0, ScaleRounding::kNearest};
  refused(ErrorCode::kUnsupported, "E8M0");
  shard.format = {{1, 16}, QuantElement::kE2M1, QuantScale::kE4M3, ScaleRounding::kPowerUp};
  refused(ErrorCode::kUnsupported, "E4M3");
  for (const std::array<std::uint64_t, 2>& block : {std::array<std::uint64_t, 2>{2, 32}, {1, 24}, {1, 4}, {1, 512}}) {
    shard.format = {block, QuantElement::kInt4, QuantScale::kBF16, ScaleRounding::kNearest};
    refused(ErrorCode::kUsage, "blocks of");
  }
  shard.format = {{1, 32}, QuantElement::kInt4, QuantScale::kBF16, ScaleRounding::kNearest};
  block_grid(shard);
  shard.offset[1] = 4;
  shard.extent[1] = 56;
  refused(ErrorCode::kUsage, "4 columns before a shard");
  shard.offset[1] = 0;
  shard.extent[1] = 60;
  refused(ErrorCode::kUsage, "60 columns of a shard");
  shard.shape[1] = 60;
  refused(ErrorCode::kUsage, "60 columns: 4-bit elements need a multiple of 8");
  shard.shape[1] = 64;
  shard.format = {{1, 16}, QuantElement::kE2M1, QuantScale::kE4M3, ScaleRounding::kNearest};
  shard.extent[1] = 64;
  Bytes memory(1024);
  expect_error(ErrorCode::kUsage,
               [&] {
                 quantize(shard, memory.data(), {memory.data() + 512, memory.data() + 768});
               },
               {"mlp.up", "null"});
}

}  // namespace
}  // namespace sparsecast::test
