// SPDX-License-Identifier: Apache-2.0

// Merged deltas over deltas with `context` positions: what a mirror keeps of them while it has the weights before, and
// what a compaction makes of that.

#include "log/reader/plain_deltas.hpp"

#include <cmath>

#include "log/log_fixture.hpp"
#include "sparsecast/log_follower.hpp"

namespace sparsecast::test {
namespace {

constexpr std::uint64_t kElements = 50'000;
constexpr const char* kMirror = "mirror.safetensors";

EncodeOptions with(PositionMode positions) {
  EncodeOptions options;
  options.positions = positions;
  return options;
}

LogWriterOptions spans_of_two_and_four() {
  LogWriterOptions options;
  options.merge_spans = {2, 4};
  return options;
}

class PlainDeltasTest : public ::testing::Test {
 protected:
  PlainDeltasTest() {
    fs_.make_directory("scratch");
    TensorState state{Bytes(2 * kElements)};
    for (std::uint64_t i = 0; i < kElements; ++i) {
      write_element(state[0].data(), 2, i, (random_.between(110, 122) << 7) | random_.below(128));
    }
    states_.push_back(state);
    for (int step = 0; step < 9; ++step) {
      for (std::uint64_t i = 0; i < kElements; ++i) {
        const std::uint64_t old = read_element(state[0].data(), 2, i);
        const bool changes = random_.chance(std::ldexp(0.5, 110 - static_cast<int>(old >> 7 & 255)));
        if (changes) write_element(state[0].data(), 2, i, random_.chance(0.5) ? old + 1 : old - 1);
      }
      states_.push_back(state);
    }
    LogCreation creation;
    creation.stream = table_->hash();
    creation.table = table_;
    creation.digest = sum(digest_tensors(*table_, refs_to(*table_, views(states_[0]))));
    writer_.create(creation);
    const std::string data(reinterpret_cast<const char*>(states_[0][0].data()), states_[0][0].size());
    fs_.put_file(kMirror, safetensors_file(std::vector<TensorSpec>(table_->begin(), table_->end()), data));
  }

  std::shared_ptr<ObjectStore> open() { return open_directory_store(fs_, "log"); }
  Bytes delta(std::uint64_t from, std::uint64_t to, PositionMode positions, int zstd = 0) {
    EncodeOptions options = with(positions);
    options.block_changes = kLargeBlockChanges;  // As merged deltas have them.
    options.zstd_level = zstd;
    return encode_file(*table_, states_[from], states_[to], options, {from, to});
  }
  void publish(std::uint64_t first, std::uint64_t last, PositionMode positions = PositionMode::kContext, int zstd = 0) {
    for (std::uint64_t to = first; to <= last; ++to) {
      const Bytes bytes = delta(to - 1, to, positions, zstd);
      writer_.publish(DeltaFile::over(bytes, "delta"), "step");
    }
  }
  /// Brings the mirror to `version`.
  MergeMirror follow(std::uint64_t version, bool keep_plain = true) {
    CheckpointTargetOptions target;
    target.keep_plain = keep_plain;
    FollowerOptions options;
    options.merged = false;
    LogFollower follower(open(), fs_, "mirror.state", make_checkpoint_target(fs_, kMirror, target), std::move(options));
    return {kMirror, follower.step(version).version};
  }
  CompactReport compact(const std::optional<MergeMirror>& mirror) { return writer_.compact(fs_, "scratch", 0, mirror); }
  std::vector<std::string> kept() {
    std::vector<std::string> names = fs_.list("mirror.safetensors.follow/plain");
    std::ranges::sort(names);
    return names;
  }
  /// The log's merged deltas, as spans.
  std::vector<std::pair<std::uint64_t, std::uint64_t>> spans() {
    std::vector<std::pair<std::uint64_t, std::uint64_t>> found;
    const std::vector<DeltaRef> merged = LogReader(open()).catalog()->merged;
    for (const DeltaRef& ref : merged) found.emplace_back(ref.from, ref.to);
    return found;
  }
  /// This merged delta is, byte for byte, the one that is encoded from the states.
  void expect_merged(std::uint64_t from, std::uint64_t to, PositionMode positions, int zstd = 0) {
    LogReader reader(open());
    const std::vector<DeltaRef> merged = reader.catalog()->merged;
    for (const DeltaRef& ref : merged) {
      if (ref.from != from || ref.to != to) continue;
      reader.fetch_delta(ref, fs_, "fetched.scd");
      EXPECT_EQ(fs_.content("fetched.scd"), text_of(delta(from, to, positions, zstd))) << from << "-" << to;
      fs_.remove("fetched.scd");
      return;
    }
    ADD_FAILURE() << "there is no merged delta " << from << "-" << to;
  }
  static std::string text_of(const Bytes& bytes) { return {reinterpret_cast<const char*>(bytes.data()), bytes.size()}; }

  using Spans = std::vector<std::pair<std::uint64_t, std::uint64_t>>;

  Random random_{7};
  std::shared_ptr<const TensorTable> table_ =
      std::make_shared<TensorTable>(std::vector<TensorSpec>{{"weight", DType::kBF16, {kElements}}});
  std::vector<TensorState> states_;
  FaultFileSystem fs_;
  LogWriterOptions options_ = spans_of_two_and_four();
  LogReader reader_{open()};
  LogWriter writer_{reader_, options_};
};

TEST_F(PlainDeltasTest, AMirrorThatGoesAlongMakesContextOfContext) {
  for (std::uint64_t version = 1; version <= 8; ++version) {
    publish(version, version);
    const CompactReport report = compact(follow(version));
    EXPECT_EQ(report.merged, version % 4 == 0 ? 2U : version % 2 == 0 ? 1U : 0U) << version;
    EXPECT_EQ(report.without_base, 0U);
  }
  EXPECT_EQ(spans(), (Spans{{0, 2}, {0, 4}, {2, 4}, {4, 6}, {4, 8}, {6, 8}}));
  for (const auto& [from, to] : spans()) expect_merged(from, to, PositionMode::kContext);
  EXPECT_GT(DeltaFile::over(delta(0, 4, PositionMode::kContext), "merged").report().blocks_by_codec[5], 0U);
  EXPECT_TRUE(kept().empty()) << "all spans have ended";
  EXPECT_TRUE(verify_log(open(), {}, fs_, "scratch").problems.empty());
}

TEST_F(PlainDeltasTest, AMirrorThatIsFurtherOnTakesItsWeightsBack) {
  publish(1, 7);
  const MergeMirror mirror = follow(7);
  EXPECT_EQ(kept().size(), 7U);
  EXPECT_EQ(compact(mirror).merged, 4U);  // 0-2, 2-4, 4-6, 0-4.
  for (const auto& [from, to] : spans()) expect_merged(from, to, PositionMode::kContext);
  EXPECT_EQ(kept(), (std::vector<std::string>{"4-6.scd", "6-7.scd"})) << "what the spans that go on will take";
  publish(8, 8);
  EXPECT_EQ(compact(follow(8)).merged, 2U);
  expect_merged(4, 8, PositionMode::kContext);
}

TEST_F(PlainDeltasTest, ASpanThatAMirrorHasYetToComeThroughIsMergedLater) {
  publish(1, 1);
  const MergeMirror behind = follow(1);
  publish(2, 4);
  const CompactReport report = compact(behind);
  EXPECT_EQ(report.merged, 0U);
  EXPECT_EQ(report.without_base, 2U) << "0-2 and 2-4";
  EXPECT_EQ(compact(follow(4)).merged, 3U);
  for (const auto& [from, to] : spans()) expect_merged(from, to, PositionMode::kContext);
}

TEST_F(PlainDeltasTest, AStreamMayChangeOverInTheMiddleOfASpan) {
  publish(1, 1, PositionMode::kPacked, 3);
  publish(2, 3);
  publish(4, 4, PositionMode::kPacked);
  EXPECT_EQ(compact(follow(4)).merged, 3U);
  expect_merged(0, 2, PositionMode::kContext, 3);
  expect_merged(2, 4, PositionMode::kContext);
  expect_merged(0, 4, PositionMode::kContext, 3);
}

TEST_F(PlainDeltasTest, WithoutAMirrorThatWentThroughThemSpansAreLeftOut) {
  publish(1, 2, PositionMode::kPacked);
  publish(3, 4);
  CompactReport report = compact(std::nullopt);
  EXPECT_EQ(report.merged, 1U);
  EXPECT_EQ(report.without_base, 1U) << "2-4; 0-4 has no parts then";
  expect_merged(0, 2, PositionMode::kPacked);
  LogWriter other(reader_, options_);
  report = other.compact(fs_, "scratch", 0, follow(4, false));
  EXPECT_EQ(report.merged, 0U);
  EXPECT_EQ(report.without_base, 1U);
}

TEST_F(PlainDeltasTest, AKeptDeltaOfAnotherHistoryIsNotTaken) {
  publish(1, 2);
  const MergeMirror mirror = follow(2);
  const Bytes foreign = delta(3, 4, PositionMode::kPacked);
  fs_.put_file("mirror.safetensors.follow/plain/1-2.scd", foreign);
  const CompactReport report = compact(mirror);
  EXPECT_EQ(report.merged, 0U);
  EXPECT_EQ(report.without_base, 1U);
}

TEST_F(PlainDeltasTest, ACrashedCompactionMakesTheSameAgain) {
  publish(1, 4);
  const MergeMirror mirror = follow(4);
  EXPECT_EQ(writer_.compact(fs_, "scratch", 1, mirror).merged, 1U);
  LogWriter restarted(reader_, options_);
  EXPECT_EQ(restarted.compact(fs_, "scratch", 0, mirror).merged, 2U);
  for (const auto& [from, to] : spans()) expect_merged(from, to, PositionMode::kContext);
}

}  // namespace
}  // namespace sparsecast::test
