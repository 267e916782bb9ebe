// SPDX-License-Identifier: Apache-2.0
#include "sparsecast/quantize.hpp"

#include <gtest/gtest.h>

#include "sparsecast/safetensors.hpp"
#include "support/expect_error.hpp"
#include "support/quantize.hpp"

namespace sparsecast::test {
namespace {

constexpr DType kSources[] = {DType::kBF16, DType::kF16, DType::kF32};

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

TEST(Quantize, IsTheOraclesForAnyShapeBlockAndSource) {
  SCOPED_TRACE(seed_note());
  for (std::uint64_t n = 0; n < 120; ++n) {
    Random random(case_seed(run_seed(), n));
    const DType dtype = random.pick(std::span<const DType>(kSources));
    const std::array<std::uint64_t, 2> shape{random.between(1, 60), random.between(1, 60)};
    const std::array<std::uint64_t, 2> block{random.between(1, 70), random.between(1, 70)};
    const Bytes elements = random_weights(random, dtype, shape[0] * shape[1]);
    const QuantizedMatrix expected = quantized_by_oracle(dtype, shape, block, elements);
    const Source source(random, dtype, shape, elements);
    const MatrixShard shard{"w", dtype, shape, {0, 0}, shape, source.place.strides, block};
    Bytes fp8(elements.size() / element_size(dtype));
    std::vector<float> scale(block_grid(shard).blocks());
    quantize_blocks(shard, source.at(0, 0), fp8.data(), scale.data(), random.chance(0.3) ? 3 : 1);
    ASSERT_EQ(scale, expected.scale_inv) << "case " << n;
    ASSERT_EQ(fp8, expected.fp8) << "case " << n;
  }
}

TEST(Quantize, ShardsThatCutBlocksGiveTheWholeMatrixsResultFromTheMaximumOfTheirAmaxes) {
  SCOPED_TRACE(seed_note());
  for (std::uint64_t n = 0; n < 60; ++n) {
    Random random(case_seed(run_seed(), n));
    const DType dtype = random.pick(std::span<const DType>(kSources));
    const std::array<std::uint64_t, 2> shape{random.between(2, 50), random.between(2, 50)};
    const std::array<std::uint64_t, 2> block{random.between(2, 20), random.between(2, 20)};
    const Bytes elements = random_weights(random, dtype, shape[0] * shape[1]);
    const QuantizedMatrix expected = quantized_by_oracle(dtype, shape, block, elements);
    const Source source(random, dtype, shape, elements);
    // Four shards around a point: some may be empty.
    const std::array<std::uint64_t, 2> cut{random.below(shape[0] + 1), random.below(shape[1] + 1)};
    std::vector<MatrixShard> shards;
    for (unsigned quarter = 0; quarter < 4; ++quarter) {
      MatrixShard shard{"w", dtype, shape, {}, {}, source.place.strides, block};
      for (unsigned d = 0; d < 2; ++d) {
        const bool second = (quarter >> d & 1) != 0;
        shard.offset[d] = second ? cut[d] : 0;
        shard.extent[d] = second ? shape[d] - cut[d] : cut[d];
      }
      shards.push_back(shard);
    }
    const std::uint64_t grid_columns = (shape[1] + block[1] - 1) / block[1];
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
      std::vector<float> scale(grid.blocks());
      for (std::uint64_t b = 0; b < scale.size(); ++b) scale[b] = amax[in_grid(grid, b)];
      Bytes fp8(shard.extent[0] * shard.extent[1]);
      quantize_with_amax(shard, source.at(shard.offset[0], shard.offset[1]), scale.data(), fp8.data(), scale.data());
      for (std::uint64_t b = 0; b < scale.size(); ++b) ASSERT_EQ(scale[b], expected.scale_inv[in_grid(grid, b)]);
      for (std::uint64_t i = 0; i < fp8.size(); ++i) {
        const std::uint64_t row = shard.offset[0] + i / shard.extent[1];
        const std::uint64_t column = shard.offset[1] + i % shard.extent[1];
        ASSERT_EQ(fp8[i], expected.fp8[row * shape[1] + column]) << "case " << n;
      }
    }
  }
}

TEST(Quantize, IsWhatAnotherImplementationWrote) {
  FileSystem& fs = FileSystem::posix();
  const Checkpoint golden =
      Checkpoint::open(fs, std::string(SPARSECAST_TESTDATA_DIR) + "/quantize/fp8_blocks.safetensors");
  const auto bytes = [&](const std::string& name) {
    const ConstBytes tensor = golden.tensor(golden.table().find(name).value());
    return Bytes(tensor.begin(), tensor.end());
  };
  std::size_t compared = 0;
  for (std::size_t t = 0; t < golden.table().size(); ++t) {
    const TensorSpec& spec = golden.table()[t];
    if (spec.name.find('.') != std::string::npos) continue;
    const MatrixShard shard{spec.name, spec.dtype, {spec.shape[0], spec.shape[1]}, {}, {spec.shape[0], spec.shape[1]},
                            {},        {16, 24}};
    Bytes fp8(spec.elements());
    Bytes scale(block_grid(shard).blocks() * sizeof(float));
    quantize_blocks(shard, golden.tensor(t).data(), fp8.data(), reinterpret_cast<float*>(scale.data()));
    EXPECT_EQ(fp8, bytes(spec.name + ".weight")) << spec.name;
    EXPECT_EQ(scale, bytes(spec.name + ".weight_scale_inv")) << spec.name;
    ++compared;
  }
  EXPECT_EQ(compared, 3U);
}

TEST(Quantize, AShardThatCutsABlockIsRefusedByNameAndEdge) {
  MatrixShard shard{"mlp.gate", DType::kBF16, {300, 300}, {128, 0}, {100, 300}, {}, {128, 128}};
  Bytes source(60'000);
  Bytes fp8(30'000);
  std::vector<float> scale(9);
  const auto quantize = [&] { quantize_blocks(shard, source.data(), fp8.data(), scale.data()); };
  EXPECT_FALSE(block_grid(shard).whole);
  expect_error(ErrorCode::kUsage, quantize, {"mlp.gate", "rows 128 to 228 of 300", "128"});
  shard.extent = {128, 172};
  shard.offset = {128, 128};
  EXPECT_TRUE(block_grid(shard).whole);
  quantize();
  shard.offset = {128, 64};
  expect_error(ErrorCode::kUsage, quantize, {"mlp.gate", "columns 64 to 236"});
}

TEST(Quantize, MisuseIsTyped) {
  Bytes memory(64);
  float scale = 0;
  MatrixShard shard{"w", DType::kBF16, {4, 4}, {0, 0}, {4, 4}, {}, {128, 128}};
  const auto quantize = [&] { quantize_blocks(shard, memory.data(), memory.data() + 32, &scale); };
  quantize();
  shard.dtype = DType::kI32;
  expect_error(ErrorCode::kUnsupported, quantize, {"w", "I32"});
  shard.dtype = DType::kBF16;
  shard.offset = {1, 0};
  expect_error(ErrorCode::kUsage, quantize, {"w", "rows 1 to 5 of a matrix of 4"});
  shard.offset = {0, ~std::uint64_t{0}};
  expect_error(ErrorCode::kUsage, quantize, {"columns"});
  shard.offset = {0, 0};
  shard.strides = {1};
  expect_error(ErrorCode::kUsage, quantize, {"strides"});
  shard.strides = {};
  shard.block = {128, 0};
  expect_error(ErrorCode::kUsage, quantize, {"block"});
  shard.block = {128, 128};
  expect_error(ErrorCode::kUsage, [&] { quantize_blocks(shard, nullptr, memory.data(), &scale); }, {"null"});
  shard.extent = {0, 4};
  quantize_blocks(shard, nullptr, nullptr, nullptr);
  EXPECT_EQ(block_grid(shard).blocks(), 0U);
}

}  // namespace
}  // namespace sparsecast::test
