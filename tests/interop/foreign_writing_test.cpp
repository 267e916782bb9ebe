// SPDX-License-Identifier: Apache-2.0

// A delta written in the layout of another system reads back as the same delta, and one that cannot be written leaves
// nothing.

#include <gtest/gtest.h>

#include "interop/interop_scene.hpp"
#include "support/expect_error.hpp"
#include "support/temporary_directory.hpp"

namespace sparsecast::test {
namespace {

const std::vector<TensorSpec> kSpecs = {{"a", DType::kBF16, {5}}, {"b", DType::kF32, {300, 7}}, {"c", DType::kU8, {9}}};

TEST(ForeignWriting, RoundTripsEveryLayoutForAnyShapesAndDensities) {
  SCOPED_TRACE(seed_note());
  Random random(run_seed());
  for (int round = 0; round < 5; ++round) {
    const std::vector<TensorSpec> specs = {{"a", DType::kBF16, {random.between(0, 200000)}},
                                           {"b", DType::kF32, {random.between(1, 40), random.between(1, 40)}},
                                           {"c", DType::kU8, {random.between(0, 3000)}},
                                           {"d", DType::kI64, {}},
                                           {"e", DType::kF16, {random.between(1, 30000)}}};
    InteropScene scene(specs, random.next(), random.chance(0.2) ? 1 : random.log_uniform(1e-5, 0.5));
    const Bytes delta = scene.delta_bytes(ValueCodec::kUlp);
    for (const ForeignFormat format :
         {ForeignFormat::kTrl, ForeignFormat::kSlimeXor, ForeignFormat::kSlimeOverwrite, ForeignFormat::kPackedIndices,
          ForeignFormat::kPackedDeltas, ForeignFormat::kPackedDeltasZstd}) {
      const TemporaryDirectory directory;
      const Checkpoint base = scene.base();
      ForeignWriteOptions options;
      options.format = format;
      options.bucket_bytes = random.between(10, 300000);
      options.checksum = random.chance(0.5) ? "adler32" : "xxh3-128";
      FileSystem& disk = FileSystem::posix();
      write_foreign_step(disk, DeltaFile::over(delta, "delta"), base, directory / "out", options);
      const ForeignStep step = find_foreign_steps(disk, directory / "out").at(0);
      EXPECT_EQ(step.version, 7U);
      Bytes back;
      read_foreign_step(disk, step, base, scene.header(), {}, directory / "out",
                        [&](Bytes&& record) { back.insert(back.end(), record.begin(), record.end()); });
      EXPECT_EQ(back, delta) << to_string(format) << ", round " << round;
    }
  }
}

TEST(ForeignWriting, CarriesPairsOf4BitNumbersWhereTheLayoutNeedNotNameThem) {
  InteropScene scene({{"f", DType::kF4X2, {30, 40}}, {"i", DType::kI4X2, {5000}}}, 3, 0.05);
  const Bytes delta = scene.delta_bytes(ValueCodec::kUlp);
  const Checkpoint base = scene.base();
  FileSystem& disk = FileSystem::posix();
  const TemporaryDirectory directory;
  ForeignWriteOptions options;
  for (const ForeignFormat format : {ForeignFormat::kTrl, ForeignFormat::kSlimeXor, ForeignFormat::kSlimeOverwrite}) {
    const std::string out = directory / std::string(to_string(format));
    options.format = format;
    write_foreign_step(disk, DeltaFile::over(delta, "delta"), base, out, options);
    Bytes back;
    read_foreign_step(disk, find_foreign_steps(disk, out).at(0), base, scene.header(), {}, out,
                      [&](Bytes&& record) { back.insert(back.end(), record.begin(), record.end()); });
    EXPECT_EQ(back, delta) << to_string(format);
  }
  options.format = ForeignFormat::kPackedDeltas;
  expect_error(ErrorCode::kUnsupported,
               [&] { write_foreign_step(disk, DeltaFile::over(delta, "delta"), base, directory / "packed", options); },
               {"tensor 'f'", "F4X2", "U8"});
}

TEST(ForeignWriting, OfADirectoryThatFailsLeavesNothing) {
  InteropScene scene(kSpecs, 5, 0.1);
  const Bytes delta = scene.delta_bytes(ValueCodec::kUlp);
  const TemporaryDirectory directory;
  FileSystem& disk = FileSystem::posix();
  const Checkpoint base = scene.base();
  ForeignWriteOptions options;
  options.format = ForeignFormat::kSlimeXor;
  options.checksum = "blake3";
  const auto write = [&] {
    return write_foreign_step(disk, DeltaFile::over(delta, "delta"), base, directory / "out", options);
  };
  expect_error(ErrorCode::kUnsupported, write, {"blake3"});
  options.checksum = "adler32";
  options.format = ForeignFormat::kPackedIndices;
  write();
  expect_error(ErrorCode::kUsage, write, {"weight_v000007", "exists"});
  EXPECT_EQ(disk.list(directory.path()), std::vector<std::string>{"out"});
  EXPECT_EQ(disk.list(directory / "out"), std::vector<std::string>{"weight_v000007"});
}

}  // namespace
}  // namespace sparsecast::test
