// SPDX-License-Identifier: Apache-2.0

// testdata/golden: good deltas decode and encode to the same bytes for ever, bad ones are refused for ever.

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <set>
#include <tuple>

#include "reference/reference_encoder.hpp"
#include "sparsecast/safetensors.hpp"
#include "sparsecast/subscriber.hpp"
#include "support/delta_bytes.hpp"
#include "support/expect_error.hpp"

namespace sparsecast::test {
namespace {

const std::string kDirectory = SPARSECAST_TESTDATA_DIR "/golden/";

Bytes read_file(const std::string& path) { return sparsecast::read_file(FileSystem::posix(), kDirectory + path); }

nlohmann::json manifest() {
  const Bytes text = read_file("manifest.json");
  return nlohmann::json::parse(reinterpret_cast<const char*>(text.data()),
                               reinterpret_cast<const char*>(text.data()) + text.size());
}

/// The tensors of a checkpoint file, in the order of `table`.
TensorState load(const std::string& path, const TensorTable& table) {
  const Checkpoint checkpoint = Checkpoint::open(FileSystem::posix(), kDirectory + path);
  TensorState state;
  for (const TensorSpec& spec : table) {
    const auto found = checkpoint.table().find(spec.name);
    if (!found || checkpoint.table()[*found] != spec) throw std::runtime_error(path + " lacks tensor " + spec.name);
    const Bytes bits = checkpoint.tensor(*found);
    state.emplace_back(bits.begin(), bits.end());
  }
  return state;
}

/// Stages everything and applies it.
void receive(const DeltaFile& delta, const TensorTable& table, TensorState& live) {
  SubscriberOptions options;
  options.stream = delta.header().stream;
  options.version = delta.header().base_version;
  Subscriber subscriber(std::make_shared<const TensorTable>(table), refs_to(table, live_views(live)), options);
  subscriber.stage(delta.header_record());
  for (std::size_t i = 0; i < delta.frames(); ++i) subscriber.stage(delta.frame(i));
  subscriber.stage(delta.commit_record());
  subscriber.apply();
}

bool has_zstd_frames(const DeltaFile& delta) {
  for (std::size_t i = 0; i < delta.frames(); ++i) {
    if (parse_frame_header(delta.frame(i)).compressed) return true;
  }
  return false;
}

/// Calls body(vector, delta, base, result) for every good vector.
template <class Body>
void for_good(const Body& body) {
  const nlohmann::json good = manifest().at("good");
  ASSERT_GE(good.size(), 50U);
  for (const nlohmann::json& vector : good) {
    SCOPED_TRACE(vector.at("name").get<std::string>());
    const Bytes bytes = read_file(vector.at("delta"));
    const DeltaFile delta = DeltaFile::over(bytes, vector.at("delta"));
    body(vector, delta, load(vector.at("base"), delta.table()), load(vector.at("result"), delta.table()));
  }
}

TEST(Golden, EveryGoodVectorDecodesBitForBit) {
  for_good([](const nlohmann::json& vector, const DeltaFile& delta, TensorState base, const TensorState& result) {
    EXPECT_EQ(to_hex(delta.header().base_digest.value), vector.at("base_digest"));
    EXPECT_EQ(to_hex(delta.commit().result_digest.value), vector.at("result_digest"));
    EXPECT_EQ(delta.report().changed, vector.at("changed"));
    EXPECT_EQ(reference_digest(delta.table(), views(base)), delta.header().base_digest);
    receive(delta, delta.table(), base);
    EXPECT_EQ(first_difference(delta.table(), base, result), "");
    EXPECT_EQ(reference_digest(delta.table(), views(base)), delta.commit().result_digest);
  });
}

TEST(Golden, EveryCanonicalVectorIsEncodedAgainByteForByte) {
  int encoded = 0;
  for_good(
      [&](const nlohmann::json& vector, const DeltaFile& delta, const TensorState& base, const TensorState& result) {
        if (!vector.at("canonical") || has_zstd_frames(delta)) return;
        const DeltaHeader& header = delta.header();
        EncodeOptions options;
        options.positions = header.positions;
        options.values = header.values;
        const bool quick = vector.at("name").get<std::string>().find("quick") != std::string::npos;
        options.objective = quick ? Objective::speed() : Objective::link(100e6);
        options.frame_capacity = header.frame_capacity;
        const auto detector = make_compare_detector(delta.table(), views(result), views(base));
        std::vector<Bytes> records;
        encode_delta(delta.table(), *detector, header, options, false,
                     [&](Bytes&& record) { records.push_back(std::move(record)); });
        const auto same = [](const Bytes& record, ConstBytes golden) { return std::ranges::equal(record, golden); };
        EXPECT_TRUE(records == reference_encode(delta.table(), views(base), views(result), header, options));
        ASSERT_EQ(records.size(), delta.frames() + 2);
        EXPECT_TRUE(same(records.front(), delta.header_record()));
        for (std::size_t i = 0; i < delta.frames(); ++i)
          EXPECT_TRUE(same(records[1 + i], delta.frame(i))) << "frame " << i;
        EXPECT_TRUE(same(records.back(), delta.commit_record()));
        ++encoded;
      });
  EXPECT_GE(encoded, 45);
}

TEST(Golden, CompressedVectorsAreEncodedAgainWithTheSameContent) {
  int compressed = 0;
  for_good([&](const nlohmann::json&, const DeltaFile& delta, const TensorState& base, const TensorState& result) {
    if (!has_zstd_frames(delta)) return;
    EncodeOptions options;
    options.positions = delta.header().positions;
    options.values = delta.header().values;
    options.zstd_level = 5;
    const Bytes again =
        encode_file(delta.table(), base, result, options, {delta.header().base_version, delta.header().version});
    const DeltaFile file = DeltaFile::over(again, "again");
    EXPECT_TRUE(has_zstd_frames(file));
    EXPECT_EQ(file.commit().changed, delta.commit().changed);
    TensorState live = base;
    receive(file, delta.table(), live);
    EXPECT_EQ(live, result);
    ++compressed;
  });
  EXPECT_GE(compressed, 3);
}

TEST(Golden, TheGoodVectorsCoverEveryModeCodecAndDType) {
  std::set<std::pair<PositionMode, ValueCodec>> modes;
  std::set<std::pair<DType, ValueCodec>> dtypes;
  std::set<int> position_codecs;
  std::size_t most_frames = 0;
  for_good([&](const nlohmann::json& vector, const DeltaFile& delta, const TensorState&, const TensorState&) {
    if (vector.at("canonical")) modes.insert({delta.header().positions, delta.header().values});
    const DeltaReport report = delta.report();
    for (int codec = 0; codec < 6; ++codec) {
      if (report.blocks_by_codec[codec] > 0) position_codecs.insert(codec);
    }
    for (const DeltaReport::Tensor& tensor : report.tensors) {
      dtypes.insert({delta.table()[tensor.index].dtype, delta.header().values});
    }
    most_frames = std::max(most_frames, delta.frames());
  });
  EXPECT_EQ(modes.size(), 16U);
  EXPECT_EQ(dtypes.size(), 69U);
  EXPECT_EQ(position_codecs.size(), 6U);
  EXPECT_GE(most_frames, 3U);
}

TEST(Golden, EveryBadVectorIsRefusedWithItsErrorAndChangesNothing) {
  const nlohmann::json bad = manifest().at("bad");
  ASSERT_GE(bad.size(), 60U);
  for (const nlohmann::json& vector : bad) {
    SCOPED_TRACE(vector.at("name").get<std::string>() + ": " + vector.at("why").get<std::string>());
    const Bytes bytes = read_file(vector.at("delta"));
    const Checkpoint checkpoint =
        Checkpoint::open(FileSystem::posix(), kDirectory + vector.at("base").get<std::string>());
    // The order of the deltas' own table, which the file need not keep.
    const TensorTable table(std::vector<TensorSpec>{
        {"floats", DType::kBF16, {40}}, {"bytes", DType::kU8, {20'000}}, {"words", DType::kF32, {6}}});
    const TensorState base = load(vector.at("base"), table);
    TensorState live = base;
    try {
      const DeltaFile delta = DeltaFile::over(bytes, vector.at("delta"));
      delta.report();
      receive(delta, table, live);
      ADD_FAILURE() << "accepted";
    } catch (const Error& error) {
      EXPECT_EQ(to_string(error.code()), vector.at("error").get<std::string>()) << error.what();
      RecordProperty(vector.at("name").get<std::string>(), error.what());
    }
    EXPECT_TRUE(live == base) << "a refused delta has changed the live state";
  }
}

}  // namespace
}  // namespace sparsecast::test
