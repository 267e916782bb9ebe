// SPDX-License-Identifier: Apache-2.0

// Patches out of deltas, and payloads out of patches, against what is true element by element.

#include "sparsecast/tensor_patch.hpp"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "interop/formats/patch_store.hpp"
#include "interop/formats/tensor_checksum.hpp"
#include "interop/interop_scene.hpp"
#include "sparsecast/interop.hpp"
#include "support/detectors.hpp"
#include "support/expect_error.hpp"

namespace sparsecast::test {
namespace {

const std::vector<TensorSpec> kSpecs = {{"a", DType::kBF16, {300, 500}}, {"b", DType::kF32, {70000}},
                                        {"c", DType::kU8, {4099}},       {"d", DType::kI64, {5, 7}},
                                        {"e", DType::kF8E4M3, {2, 333}}, {"f", DType::kBF16, {0, 3}}};

/// One patch with bytes of its own.
struct Kept {
  std::size_t tensor;
  Bytes indices;
  Bytes values;
  friend bool operator==(const Kept&, const Kept&) = default;
};

PatchSink keep_in(std::vector<Kept>& kept) {
  return [&kept](const TensorPatch& patch) {
    kept.push_back(
        {patch.tensor, {patch.indices.begin(), patch.indices.end()}, {patch.values.begin(), patch.values.end()}});
  };
}

std::vector<Kept> true_patches(const InteropScene& scene) {
  std::vector<Kept> all;
  for (std::size_t t = 0; t < scene.table.size(); ++t) {
    Kept kept{t, {}, {}};
    const std::size_t size = element_size(scene.table[t].dtype);
    for (std::uint64_t e = 0; e < scene.table[t].elements(); ++e) {
      const std::byte* value = scene.after[t].data() + e * size;
      if (std::memcmp(scene.before[t].data() + e * size, value, size) == 0) continue;
      const Bytes index = packed_words<std::uint32_t>({static_cast<std::uint32_t>(e)});
      kept.indices.insert(kept.indices.end(), index.begin(), index.end());
      kept.values.insert(kept.values.end(), value, value + size);
    }
    if (!kept.values.empty()) all.push_back(std::move(kept));
  }
  return all;
}

class PatchesOfDensity : public testing::TestWithParam<double> {};

TEST_P(PatchesOfDensity, AreTheElementsThatDifferWhateverTheValueCodec) {
  SCOPED_TRACE(seed_note());
  const InteropScene scene(kSpecs, run_seed(), GetParam());
  for (const ValueCodec codec : {ValueCodec::kRaw, ValueCodec::kXor, ValueCodec::kUlp}) {
    const Bytes file = scene.delta_bytes(codec);
    std::vector<Kept> kept;
    for_each_patch(DeltaFile::over(file, "delta"), views(scene.before), keep_in(kept));
    EXPECT_EQ(kept, true_patches(scene)) << to_string(codec);
  }
}

TEST_P(PatchesOfDensity, OfAPublishersDeltaTakeTheLiveWeights) {
  SCOPED_TRACE(seed_note());
  InteropScene scene(kSpecs, run_seed(), GetParam());
  const auto table = std::make_shared<const TensorTable>(scene.table);
  TensorState live = scene.before;
  Publisher publisher(table, host_snapshot(*table, views(live)), PublisherOptions{});
  for (std::size_t t = 0; t < live.size(); ++t)
    std::copy(scene.after[t].begin(), scene.after[t].end(), live[t].begin());
  std::vector<Kept> kept;
  for_each_patch(publisher.publish(), *table, views(live), keep_in(kept));
  // A dense block names every element of its own; what differs must be there.
  for (const Kept& patch : true_patches(scene)) {
    const auto found =
        std::find_if(kept.begin(), kept.end(), [&](const Kept& other) { return other.tensor == patch.tensor; });
    ASSERT_NE(found, kept.end());
    if (GetParam() < 0.1) {
      EXPECT_EQ(*found, patch);
    }
    TensorState state = scene.before;
    const std::size_t size = element_size(scene.table[patch.tensor].dtype);
    for (std::size_t i = 0; i < found->values.size() / size; ++i) {
      write_element(state[patch.tensor].data(), size, read_element(found->indices.data(), 4, i),
                    read_element(found->values.data(), size, i));
    }
    EXPECT_EQ(state[patch.tensor], scene.after[patch.tensor]);
  }
}

INSTANTIATE_TEST_SUITE_P(Densities, PatchesOfDensity, testing::Values(0.0, 0.00002, 0.01, 0.4, 1.0));

TEST(TensorPatches, RefuseABaseFromWhichTheDeltaDoesNotReachItsDigest) {
  const InteropScene scene(kSpecs, 1, 0.01);
  const Bytes file = scene.delta_bytes(ValueCodec::kXor);
  TensorState other = scene.before;
  for (Bytes& tensor : other) {
    for (std::byte& byte : tensor) byte = ~byte;
  }
  expect_error(ErrorCode::kDigestMismatch,
               [&] { for_each_patch(DeltaFile::over(file, "delta"), views(other), [](const TensorPatch&) {}); });
}

TEST(PatchStore, GivesBackInTheOrderOfTheTableWhatWasAddedInAnyAlsoByWayOfAFile) {
  FaultFileSystem fs;
  WorkDirectory scratch(fs, "out");
  const TensorTable table({{"a", DType::kBF16, {10}}, {"b", DType::kU8, {20}}});
  PatchStore store(table, scratch);
  const Bytes indices = packed_words<std::uint32_t>({3, 19});
  const Bytes values = packed_words<std::uint8_t>({7, 8});
  store.add({1, indices, values, 2});
  const Bytes first = packed_words<std::uint32_t>({9});
  const Bytes word = packed_words<std::uint16_t>({0x3F80});
  store.add({0, first, word, 1});
  const TensorPatches patches = store.patches();
  ASSERT_EQ(patches.heads.size(), 2U);
  Bytes room;
  EXPECT_EQ(patches.heads[0].tensor, 0U);
  EXPECT_EQ(text_of(patches.read(0, room).values), text_of(word));
  EXPECT_EQ(text_of(patches.read(1, room).indices), text_of(indices));
  EXPECT_EQ(text_of(patches.read(1, room).values), text_of(values));

  Spool spool(scratch, 4);
  EXPECT_EQ(spool.append(indices), 0U);
  EXPECT_EQ(spool.append(values), 8U);
  EXPECT_EQ(spool.append(word), 10U);  // Not in the file.
  Bytes all(spool.size());
  spool.read(0, all);
  EXPECT_EQ(text_of(all), text_of(indices) + text_of(values) + text_of(word));
  EXPECT_FALSE(fs.files().empty());
}

TEST(PatchStore, RefusesIndicesThatDoNotAscendOrAreNotInTheTensorAndSecondPatches) {
  FaultFileSystem fs;
  WorkDirectory scratch(fs, "out");
  const TensorTable table({{"a", DType::kU8, {10}}});
  const Bytes values = packed_words<std::uint8_t>({7, 8});
  for (const std::vector<std::uint32_t>& bad :
       {std::vector<std::uint32_t>{3, 3}, {4, 2}, {4, 10}, {4, 0xFFFFFFFF}, {0x80000000, 0x80000001}}) {
    const Bytes indices = packed_words(bad);
    PatchStore store(table, scratch);
    expect_error(ErrorCode::kCorrupt, [&] { store.add({0, indices, values, 2}); }, {"tensor 'a'", "index"});
  }
  PatchStore store(table, scratch);
  const Bytes good = packed_words<std::uint32_t>({0, 9});
  store.add({0, good, values, 2});
  expect_error(ErrorCode::kCorrupt, [&] { store.add({0, good, values, 2}); }, {"two patches"});
}

TEST(WorkDirectory, IsGoneWithAllThatIsInIt) {
  FaultFileSystem fs;
  {
    WorkDirectory scratch(fs, "out");
    EXPECT_TRUE(fs.files().empty());
    fs.open(scratch.path("a"), OpenMode::kCreate)->sync();
    fs.open(scratch.path("a"), OpenMode::kCreate)->sync();
    EXPECT_EQ(fs.files().size(), 2U);
  }
  EXPECT_TRUE(fs.files().empty());
}

TEST(TensorChecksums, AreThoseOfTheirDefinitionsInAnyPieces) {
  TensorChecksum adler("adler32");
  for (const char* piece : {"Wiki", "", "pedia"}) adler.update(bytes_of(piece));
  EXPECT_EQ(adler.hex(), "11e60398");
  TensorChecksum empty("xxh3-128");
  EXPECT_EQ(empty.hex(), "99aa06d3014798d86001c324468d497f");
  const Bytes long_run(100000, std::byte{0xFF});
  TensorChecksum whole("adler32");
  whole.update(long_run);
  TensorChecksum cut("adler32");
  cut.update(ConstBytes(long_run).first(5553));
  cut.update(ConstBytes(long_run).subspan(5553));
  EXPECT_EQ(whole.hex(), cut.hex());
  expect_error(ErrorCode::kUnsupported, [] { TensorChecksum blake("blake3"); }, {"blake3"});
}

TEST(TorchHash, IsTheExclusiveOrOfTheElementsWidened) {
  EXPECT_EQ(torch_hash(DType::kU8, packed_words<std::uint8_t>({1, 2, 255, 7})), 251U);
  EXPECT_EQ(torch_hash(DType::kI32, packed_words<std::int32_t>({-1, 5, -7})), 3U);
  EXPECT_EQ(torch_hash(DType::kBF16, packed_words<std::uint16_t>({0x7F81})), 0x7FF8200000000000U);
  EXPECT_EQ(torch_hash(DType::kBF16, packed_words<std::uint16_t>({0xFFC3})), 0xFFF8600000000000U);
  EXPECT_EQ(torch_hash(DType::kF16, packed_words<std::uint16_t>({0x7D55})), 0x7FFD540000000000U);
  EXPECT_EQ(torch_hash(DType::kF16, packed_words<std::uint16_t>({0x3E00})), std::bit_cast<std::uint64_t>(1.5));
  EXPECT_EQ(torch_hash(DType::kF16, packed_words<std::uint16_t>({0x8001})), std::bit_cast<std::uint64_t>(-0x1p-24));
  EXPECT_EQ(torch_hash(DType::kF32, {}), 0U);
  expect_error(ErrorCode::kUnsupported, [] { torch_hash(DType::kF8E4M3, packed_words<std::uint8_t>({1})); });
  // 0xBFF8... << 1 has 65 bits: 2^64 + 0x7FF0..., and 5 ^ 0.
  EXPECT_EQ(packed_checksum(packed_words<std::uint8_t>({5}), DType::kBF16, packed_words<std::uint16_t>({0xBFC0})),
            "27665612510936956933");
}

TEST(PackedFlushes, HoldTheGoldenBytesOfTheLayout) {
  const TensorTable table({{"a", DType::kBF16, {200000}}, {"b", DType::kBF16, {4, 5}}, {"c", DType::kF32, {}}});
  std::vector<PackedFlush> flushes;
  PackedFlusher flusher(table, PackedEncoding::kDeltas, 1 << 20,
                        [&](PackedFlush&& f) { flushes.push_back(std::move(f)); });
  const Bytes a = packed_words<std::uint32_t>({2, 3, 65540});  // Gaps 2, 0, 65536: four bytes each.
  const Bytes b = packed_words<std::uint32_t>({0, 19});        // Gaps 0, 18: two bytes each.
  const Bytes c = packed_words<std::uint32_t>({0});
  const Bytes values = packed_words<std::uint16_t>({0x1111, 0x2222, 0x3333});
  const Bytes one = packed_words<std::uint32_t>({0x3F800000});
  flusher.add({0, a, values, 3});
  flusher.add({1, b, ConstBytes(values).first(4), 2});
  flusher.add({2, c, one, 1});
  flusher.finish();
  ASSERT_EQ(flushes.size(), 2U);
  EXPECT_EQ(text_of(flushes[0].positions),
            text_of(packed_words<std::uint32_t>({2, 0, 65536})) + text_of(packed_words<std::uint16_t>({0, 18})));
  EXPECT_EQ(text_of(flushes[0].values), text_of(packed_words<std::uint16_t>({0x1111, 0x2222, 0x3333, 0x1111, 0x2222})));
  EXPECT_EQ(
      flushes[0].params_json(table),
      R"([{"name":"a","dtype":"bfloat16","shape":[200000],"pos_start":0,"pos_end":12,"pos_width":4,"val_start":0,"val_end":3},)"
      R"({"name":"b","dtype":"bfloat16","shape":[4,5],"pos_start":12,"pos_end":16,"pos_width":2,"val_start":3,"val_end":5}])");
  EXPECT_EQ(
      flushes[1].params_json(table),
      R"([{"name":"c","dtype":"float32","shape":[],"pos_start":0,"pos_end":2,"pos_width":2,"val_start":0,"val_end":1}])");
  expect_error(ErrorCode::kUnsupported, [&] { flushes[0].verl_spec(table); }, {"indices"});
}

TEST(PackedFlushes, AreCutWhereTheyWouldGrowTooLarge) {
  const TensorTable table({{"a", DType::kBF16, {9}}, {"b", DType::kBF16, {9}}, {"c", DType::kBF16, {9}}});
  std::vector<std::size_t> params;
  PackedFlusher flusher(table, PackedEncoding::kIndices, 12,
                        [&](PackedFlush&& f) { params.push_back(f.params.size()); });
  const Bytes indices = packed_words<std::uint32_t>({1});
  const Bytes values = packed_words<std::uint16_t>({1});
  for (std::size_t t = 0; t < 3; ++t) flusher.add({t, indices, values, 1});
  flusher.finish();
  EXPECT_EQ(params, (std::vector<std::size_t>{2, 1}));
}

TEST(VllmUpdates, SayNamesDtypesShapesAndCountsAndRefuseWhatTheReceiverWould) {
  const TensorTable table({{"a", DType::kBF16, {3, 4}}, {"b", DType::kI32, {2}}, {"c", DType::kF8E4M3, {2}}});
  const Bytes indices = packed_words<std::uint32_t>({1});
  VllmUpdate update(table);
  EXPECT_TRUE(update.empty());
  const Bytes one = packed_words<std::uint16_t>({0x3F80});
  update.add({0, indices, one, 1});
  const Bytes nan = packed_words<std::uint16_t>({0xFFC1});
  expect_error(ErrorCode::kUnsupported, [&] { update.add({0, indices, nan, 1}); }, {"tensor 'a'", "element 1", "NaN"});
  const Bytes word = packed_words<std::uint32_t>({5});
  expect_error(ErrorCode::kUnsupported, [&] { update.add({1, indices, word, 1}); }, {"tensor 'b'", "I32"});
  const Bytes small_nan = packed_words<std::uint8_t>({0x7F});
  expect_error(ErrorCode::kUnsupported, [&] { update.add({2, indices, small_nan, 1}); }, {"tensor 'c'"});
  EXPECT_EQ(update.json(), R"({"names":["a"],"dtype_names":["bfloat16"],"shapes":[[3,4]],"num_updates_list":[1]})");
}

}  // namespace
}  // namespace sparsecast::test
