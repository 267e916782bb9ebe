// SPDX-License-Identifier: Apache-2.0

// Sizes that the project promises. The data are fixed, so the bounds are exact claims about the encoder.

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "sparsecast/safetensors.hpp"
#include "support/delta_bytes.hpp"
#include "support/expect_error.hpp"
#include "support/random.hpp"

namespace sparsecast::test {
namespace {

EncodeOptions with(PositionMode positions, ValueCodec values) {
  EncodeOptions options;
  options.positions = positions;
  options.values = values;
  options.objective = Objective::link(100e6);  // Fast enough for `auto` without context, too slow for quick blocks.
  return options;
}

/// The recorded steps: the state before the first of them and after each.
struct Trace {
  TensorTable table;
  std::vector<TensorState> states;
  std::uint64_t changed = 0;
};

const Trace& shipped_trace() {
  static const Trace trace = [] {
    FileSystem& fs = FileSystem::posix();
    const std::string directory = SPARSECAST_TESTDATA_DIR "/trace";
    std::vector<std::string> names = fs.list(directory);
    std::erase_if(names, [](const std::string& name) { return !name.ends_with(".safetensors"); });
    std::ranges::sort(names);
    const Checkpoint anchor = Checkpoint::open(fs, directory + "/" + names.at(0));
    Trace loaded{anchor.table(), {{}}, 0};
    for (std::size_t t = 0; t < anchor.table().size(); ++t) loaded.states[0].push_back(anchor.tensor(t));
    for (std::size_t step = 1; step < names.size(); ++step) {
      TensorState next = loaded.states.back();
      SparseStep::open(fs, directory + "/" + names[step], loaded.table).apply(live_views(next));
      // A sparse step may name an element that keeps its bits.
      loaded.changed += count_changes(loaded.table, loaded.states.back(), next);
      loaded.states.push_back(std::move(next));
    }
    return loaded;
  }();
  return trace;
}

/// Bytes of the whole .scd file of each step.
std::vector<std::uint64_t> trace_files(PositionMode positions, ValueCodec values) {
  const Trace& trace = shipped_trace();
  std::vector<std::uint64_t> sizes;
  for (std::size_t v = 1; v < trace.states.size(); ++v) {
    sizes.push_back(encode_file(trace.table, trace.states[v - 1], trace.states[v], with(positions, values)).size());
  }
  return sizes;
}

double trace_bytes_per_change(PositionMode positions, ValueCodec values) {
  std::uint64_t total = 0;
  for (const std::uint64_t bytes : trace_files(positions, values)) total += bytes;
  return static_cast<double>(total) / static_cast<double>(shipped_trace().changed);
}

TEST(Size, PackedUlpTakesAtMost135HundredthsOfAByteAChangeOnTheTraceFilesIncluded) {
  ASSERT_GE(shipped_trace().states.size(), 2U);
  EXPECT_LE(trace_bytes_per_change(PositionMode::kPacked, ValueCodec::kUlp), 1.35);
}

TEST(Size, ContextTakesLessThanThreeQuartersOfPackedOnTheTraceFilesIncluded) {
  EXPECT_LT(trace_bytes_per_change(PositionMode::kContext, ValueCodec::kUlp),
            0.75 * trace_bytes_per_change(PositionMode::kPacked, ValueCodec::kUlp));
}

TEST(Size, Gap16RawTakesItsTwoBytesTheValueAndLittleElseOnTheTrace) {
  const double size = trace_bytes_per_change(PositionMode::kGap16, ValueCodec::kRaw);
  EXPECT_GE(size, 3.9);
  EXPECT_LE(size, 4.4);
}

TEST(Size, Index32RawTakesItsFourBytesTheValueAndLittleElseOnTheTrace) {
  const double size = trace_bytes_per_change(PositionMode::kIndex32, ValueCodec::kRaw);
  EXPECT_GE(size, 5.9);
  EXPECT_LE(size, 6.4);
}

TEST(Size, AutoIsNeverLargerThanPackedOrBitmapOrDenseOnTheTrace) {
  for (const ValueCodec values : {ValueCodec::kRaw, ValueCodec::kXor, ValueCodec::kUlp}) {
    const std::vector<std::uint64_t> automatic = trace_files(PositionMode::kAuto, values);
    const std::vector<std::uint64_t> packed = trace_files(PositionMode::kPacked, values);
    const std::vector<std::uint64_t> bitmap = trace_files(PositionMode::kBitmap, values);
    for (std::size_t step = 0; step < automatic.size(); ++step) {
      EXPECT_LE(automatic[step], packed[step]) << to_string(values) << ", step " << step;
      EXPECT_LE(automatic[step], bitmap[step]) << to_string(values) << ", step " << step;
      EXPECT_LE(automatic[step], shipped_trace().table.bytes()) << to_string(values) << ", step " << step;
    }
  }
}

enum class Spread { kByExponent, kEven, kRows };

/// One bf16 tensor of heavy-tailed weights of which about the share `density` moves by one to three ULP: small weights
/// more often (twice as often a binade), all alike, or in a few rows.
struct SpreadStep {
  TensorTable table{{{"weight", DType::kBF16, {12'000, 256}}}};
  TensorState before{Bytes(table.bytes())};
  TensorState after;

  SpreadStep(Spread spread, double density) {
    Random random(31);
    constexpr std::uint64_t kRow = 256;
    const std::uint64_t elements = table.elements();
    double expected = 0;  // Of the changes by exponent, at a rate of 1 for the smallest weights.
    for (std::uint64_t i = 0; i < elements; ++i) {
      int depth = 0;
      while (depth < 14 && random.chance(0.5)) ++depth;
      write_element(before[0].data(), 2, i, (random.below(2) << 15) | ((122U - depth) << 7) | random.below(128));
      expected += std::ldexp(1, depth - 14);
    }
    after = before;
    const double rate = density * static_cast<double>(elements) / expected;
    bool row = false;
    for (std::uint64_t i = 0; i < elements; ++i) {
      const std::uint64_t old = read_element(before[0].data(), 2, i);
      if (i % kRow == 0) row = random.chance(std::sqrt(density));
      const double chance = spread == Spread::kEven ? density
                            : spread == Spread::kRows
                                ? (row ? std::sqrt(density) : 0)
                                : rate * std::ldexp(1, 122 - 14 - static_cast<int>(old >> 7 & 255));
      if (!random.chance(std::min(1.0, chance))) continue;
      const std::uint64_t distance = random.chance(0.9) ? 1 : random.between(2, 4);
      write_element(after[0].data(), 2, i, random.chance(0.5) ? old + distance : old - distance);
    }
  }
};

TEST(Size, LargeBlocksTakeTwoPercentLessAndNoOtherSizesThereAre) {
  const SpreadStep step(Spread::kByExponent, 0.01);
  EncodeOptions options = with(PositionMode::kPacked, ValueCodec::kUlp);
  const std::size_t small = encode_file(step.table, step.before, step.after, options).size();
  options.block_changes = kLargeBlockChanges;
  const std::size_t large = encode_file(step.table, step.before, step.after, options).size();
  EXPECT_LT(static_cast<double>(large), 0.98 * static_cast<double>(small));
  options.block_changes = 1024;
  expect_error(ErrorCode::kUsage, [&] { encode_file(step.table, step.before, step.after, options); }, {"1024", "4096"});
}

TEST(Size, WhatAutoTakesForSizeIsNeverLargerThanWhatItTakesForSpeedAndOnePercent) {
  EncodeOptions smallest;
  smallest.objective = Objective::size();
  for (const Spread spread : {Spread::kByExponent, Spread::kEven, Spread::kRows}) {
    for (const double density : {0.0001, 0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 0.6}) {
      const SpreadStep step(spread, density);
      const auto size = [&](const EncodeOptions& options) {
        return static_cast<double>(encode_file(step.table, step.before, step.after, options).size());
      };
      const auto what = [&] { return testing::Message() << static_cast<int>(spread) << " at " << density; };
      const double context = size(smallest);
      EXPECT_LE(context, 1.01 * size({})) << what();
      EXPECT_LE(context, 1.01 * size(with(PositionMode::kPacked, ValueCodec::kUlp))) << what();
      if (spread == Spread::kByExponent && density >= 0.001 && density < 0.3) {
        EXPECT_LT(context, 0.9 * size({})) << what();
      }
    }
  }
}

/// A table of one tensor, random bits, and the share `density` of them replaced by other random bits.
void expect_dense_bound(DType dtype, double density) {
  constexpr std::uint64_t kElems = 150'001;
  const std::size_t size = element_size(dtype);
  const TensorTable table({{"weight", dtype, {kElems}}});
  Random random(17);
  TensorState before{Bytes(kElems * size)};
  for (std::uint64_t i = 0; i < kElems; ++i) write_element(before[0].data(), size, i, random.next());
  TensorState after = before;
  for (std::uint64_t i = 0; i < kElems; ++i) {
    const std::uint64_t flip = random.next() >> (64 - 8 * size);
    if (random.chance(density)) {
      write_element(after[0].data(), size, i,
                    read_element(before[0].data(), size, i) ^ std::max<std::uint64_t>(flip, 1));
    }
  }
  for (const ValueCodec values : {ValueCodec::kRaw, ValueCodec::kXor, ValueCodec::kUlp}) {
    std::uint64_t automatic = 0;
    for (const PositionMode mode : {PositionMode::kAuto, PositionMode::kPacked, PositionMode::kGap16,
                                    PositionMode::kIndex32, PositionMode::kBitmap}) {
      const std::uint64_t bytes = encode_file(table, before, after, with(mode, values)).size();
      if (mode == PositionMode::kAuto) automatic = bytes;
      const auto what = [&] {
        return testing::Message() << to_string(dtype) << " " << to_string(mode) << "+" << to_string(values) << " at "
                                  << density;
      };
      EXPECT_LE(bytes, table.bytes() + table.bytes() / 100) << what();
      if (mode != PositionMode::kGap16 && mode != PositionMode::kIndex32) {
        EXPECT_LE(automatic, bytes) << what();
      }
    }
  }
}

TEST(Size, QuickBlocksAreBitmapsWithValuesOfOneWidth) {
  const TensorTable table(
      {{"quarter", DType::kBF16, {std::uint64_t{3} * kTileElems}}, {"fewer", DType::kBF16, {kTileElems}}});
  Random random(31);
  TensorState before{Bytes(table[0].bytes()), Bytes(table[1].bytes())};
  TensorState after = before;
  for (std::size_t t = 0; t < 2; ++t) {
    for (std::uint64_t i = 0; i < table[t].elements(); ++i) {
      if (i % 4 != 0 || (t == 1 && i == 0)) continue;
      write_element(after[t].data(), 2, i, random.between(1, random.chance(0.05) ? 600 : 16));
    }
  }
  EncodeOptions options;  // The default objective is speed.
  const Bytes bytes = encode_file(table, before, after, options);
  const DeltaReport report = DeltaFile::over(bytes, "quick").report();
  // One in twenty is above 16 ULP: fields of 4 bits.
  const double per_change = 4 + 1 + 4 + 0.05 * (4 + 2 * 5);
  EXPECT_NEAR(8.0 * static_cast<double>(report.tensors.at(0).bytes) / (3.0 * kTileElems / 4), per_change, 0.4);
  options.objective = Objective::link(1.28e9);
  EXPECT_EQ(encode_file(table, before, after, options), bytes);
  options.objective = Objective::link(1.27e9);
  EXPECT_LT(encode_file(table, before, after, options).size(), bytes.size());
}

TEST(Size, AFullyChangedRandomTensorTakesAtMostItsDenseBytesAndOnePercent) {
  for (const DType dtype :
       {DType::kF8E4M3, DType::kU8, DType::kBF16, DType::kI16, DType::kF32, DType::kI32, DType::kF64, DType::kI64}) {
    expect_dense_bound(dtype, 1.0);
  }
}

TEST(Size, ATensorWithHalfOfItsElementsAtRandomTakesAtMostItsDenseBytesAndOnePercent) {
  for (const DType dtype : {DType::kF8E4M3, DType::kBF16, DType::kF32, DType::kF64}) expect_dense_bound(dtype, 0.5);
}

TEST(Size, ClusteredRowsCostWhatTheirOwnDensityCosts) {
  constexpr std::uint64_t kRow = 2048;
  constexpr std::uint64_t kRows = 4096;
  const TensorTable table({{"weight", DType::kBF16, {kRows, kRow}}});
  Random random(29);
  TensorState before{Bytes(table.bytes())};
  for (std::uint64_t i = 0; i < kRows * kRow; ++i) write_element(before[0].data(), 2, i, 0x3C00 + random.below(512));
  TensorState after = before;
  std::uint64_t changed = 0;
  for (std::uint64_t row = 0; row < kRows; ++row) {
    if (!random.chance(0.01)) continue;
    for (std::uint64_t i = row * kRow; i < (row + 1) * kRow; ++i) {
      if (!random.chance(0.2)) continue;
      const std::uint64_t distance = random.chance(0.9) ? 1 : random.between(2, 4);
      const std::uint64_t old = read_element(before[0].data(), 2, i);
      write_element(after[0].data(), 2, i, random.chance(0.5) ? old + distance : old - distance);
      ++changed;
    }
  }
  const Bytes file = encode_file(table, before, after, with(PositionMode::kAuto, ValueCodec::kUlp));
  const DeltaReport report = DeltaFile::over(file, "clustered").report();
  ASSERT_EQ(report.changed, changed);
  const DeltaReport::Tensor& tensor = report.tensors.at(0);
  // Positions and values alone: without the directory's entries of 16 bytes.
  const auto payload = static_cast<double>(tensor.bytes - 16 * tensor.blocks);
  // Measured 0.693, and 5 % of room.
  EXPECT_LE(payload / static_cast<double>(changed), 0.728) << "payload bytes per change";
}

}  // namespace
}  // namespace sparsecast::test
