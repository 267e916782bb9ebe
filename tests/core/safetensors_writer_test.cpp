// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include "support/expect_error.hpp"
#include "support/fault_fs.hpp"
#include "support/safetensors_bytes.hpp"

namespace sparsecast::test {
namespace {

const std::vector<TensorSpec> kSpecs = {{"b", DType::kU8, {3}}, {"a", DType::kBF16, {2}}, {"e", DType::kF32, {0}}};

std::span<const std::byte> bytes_of(const std::string& text) { return std::as_bytes(std::span(text)); }

void write_all(FileSystem& fs) {
  SafetensorsWriter writer(fs, "m.safetensors", kSpecs, {{"format", "pt"}});
  writer.append(bytes_of("bb"));
  writer.append(bytes_of("baaa"));
  writer.append(bytes_of("a"));
  writer.finish();
}

TEST(SafetensorsWriter, WritesAFileThatReadsBack) {
  FaultFileSystem fs;
  write_all(fs);
  const Checkpoint checkpoint = Checkpoint::open(fs, "m.safetensors");
  ASSERT_EQ(checkpoint.table().size(), 3U);
  EXPECT_EQ(checkpoint.table()[0], kSpecs[1]);
  EXPECT_EQ(checkpoint.tensor(0)[0], std::byte{'a'});
  EXPECT_EQ(checkpoint.tensor(1)[2], std::byte{'b'});
  EXPECT_EQ(checkpoint.files()[0].header.metadata.at("format"), "pt");
  EXPECT_EQ(checkpoint.files()[0].header.data_begin % 8, 0U);
}

TEST(SafetensorsWriter, RefusesMoreOrFewerBytesThanAnnounced) {
  FaultFileSystem fs;
  {
    SafetensorsWriter writer(fs, "m.safetensors", kSpecs);
    expect_error(ErrorCode::kUsage, [&] { writer.append(bytes_of("bbbaaaax")); });
    writer.append(bytes_of("bbbaaa"));
    expect_error(ErrorCode::kUsage, [&] { writer.finish(); });
    expect_error(ErrorCode::kUsage, [&] { writer.append(bytes_of("ax")); });
  }
  EXPECT_TRUE(fs.files().empty());
}

TEST(SafetensorsWriter, RefusesTensorsThatNoFileCanHold) {
  FaultFileSystem fs;
  for (const std::string& name : {std::string("__metadata__"), std::string(), std::string("\xFF"), std::string("b")}) {
    const std::vector<TensorSpec> specs = {{"b", DType::kU8, {1}}, {name, DType::kU8, {1}}};
    expect_error(ErrorCode::kUsage, [&] { SafetensorsWriter(fs, "m.safetensors", specs); });
  }
  EXPECT_TRUE(fs.files().empty());
}

TEST(SafetensorsWriter, LeavesNothingUnderTheNameAfterAnyFailureOrCrash) {
  FaultFileSystem clean;
  write_all(clean);
  const auto whole = clean.content("m.safetensors");
  for (std::uint64_t at = 0; at < clean.operations(); ++at) {
    SCOPED_TRACE("operation " + std::to_string(at));
    FaultFileSystem failing;
    failing.fail_at(at);
    expect_error(ErrorCode::kIo, [&] { write_all(failing); });
    EXPECT_TRUE(!failing.content("m.safetensors") || failing.content("m.safetensors") == whole);

    FaultFileSystem crashing;
    crashing.crash_at(at);
    EXPECT_THROW(write_all(crashing), CrashException);
    for (std::uint64_t seed = 0; seed < 50; ++seed) {
      const auto content = crashing.crash_state(seed)->content("m.safetensors");
      EXPECT_TRUE(!content || content == whole);
    }
  }
}

}  // namespace
}  // namespace sparsecast::test
