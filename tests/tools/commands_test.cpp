// SPDX-License-Identifier: Apache-2.0
#include <gmock/gmock.h>

#include <nlohmann/json.hpp>

#include "tests/tools/tool_fixture.hpp"

namespace sparsecast::tools {
namespace {

using nlohmann::json;
using testing::HasSubstr;

class Commands : public ToolTest {
 protected:
  Commands() {
    models_.push_back(random_model(random_));
    for (const std::uint64_t one_in : {100, 7, 1000}) models_.push_back(changed_model(models_.back(), random_, one_in));
    for (std::size_t i = 0; i < models_.size(); ++i) write_file(fs_, checkpoint(i), models_[i]);
  }

  std::string checkpoint(std::size_t i) const { return path("m" + std::to_string(i) + ".safetensors"); }

  /// The delta from checkpoint i-1 to i, with these flags.
  std::string delta(std::size_t i, std::vector<std::string> flags = {}) {
    std::string name = path(std::to_string(i) + ".scd");
    std::vector<std::string> arguments = {
        "diff",      checkpoint(i - 1), checkpoint(i), "-o", name, "--base-version", std::to_string(i - 1),
        "--version", std::to_string(i)};
    arguments.insert(arguments.end(), flags.begin(), flags.end());
    const Outcome outcome = run(arguments);
    EXPECT_EQ(outcome.code, kExitGood) << outcome.err;
    return name;
  }

  std::vector<Model> models_;
};

TEST_F(Commands, ApplyGivesTheFileThatDiffSawByteForByte) {
  for (const char* positions : {"auto", "packed", "gap16", "index32", "bitmap"}) {
    for (const char* values : {"ulp", "xor", "raw"}) {
      const std::string d = delta(1, {"--positions", positions, "--values", values, "--threads", "2"});
      const Outcome outcome = run({"apply", checkpoint(0), d, "-o", path("out.safetensors"), "--force"});
      ASSERT_EQ(outcome.code, kExitGood) << outcome.err;
      EXPECT_EQ(read_bytes(fs_, path("out.safetensors")), read_bytes(fs_, checkpoint(1))) << positions << ' ' << values;
    }
  }
}

TEST_F(Commands, ThreadsNeverChangeADelta) {
  const Bytes one = read_bytes(fs_, delta(2, {"--threads", "1"}));
  EXPECT_EQ(one, read_bytes(fs_, delta(2, {"--threads", "3"})));
}

TEST_F(Commands, DiffOfEqualCheckpointsIsAnEmptyDelta) {
  const Outcome diff = run({"diff", checkpoint(0), checkpoint(0), "-o", path("e.scd"), "--json"});
  const json report = json::parse(diff.out);
  EXPECT_EQ(report["changed"], 0);
  EXPECT_EQ(report["bytes_per_change"], 0);
  EXPECT_EQ(report["base_digest"], report["result_digest"]);
  EXPECT_EQ(run({"apply", checkpoint(0), path("e.scd"), "-o", path("same.safetensors")}).code, kExitGood);
  EXPECT_EQ(read_bytes(fs_, path("same.safetensors")), read_bytes(fs_, checkpoint(0)));
}

TEST_F(Commands, ADirectoryIsCopiedWithItsIndexItsMetadataAndItsOtherFiles) {
  write_directory(fs_, path("dir"), models_[0]);
  write_text(fs_, path("dir/config.json"), "{}");
  const std::string d = delta(1);
  ASSERT_EQ(run({"apply", path("dir") + "/", d, "-o", path("out") + "/"}).code, kExitGood);
  EXPECT_EQ(read_model(fs_, path("out")), models_[1]);
  EXPECT_EQ(fs_.list(path("out")), fs_.list(path("dir")));
  EXPECT_EQ(Checkpoint::open(fs_, path("out")).files()[1].header.metadata.at("part"), "1");
  EXPECT_EQ(read_model(fs_, path("dir")), models_[0]);
  EXPECT_EQ(run({"compare", path("out"), checkpoint(1)}).code, kExitGood);

  EXPECT_EQ(run({"apply", path("dir"), d, "-o", path("out")}).code, kExitUsage);
  EXPECT_EQ(run({"apply", path("dir"), d, "-o", path("out"), "--force"}).code, kExitGood);
  EXPECT_EQ(read_model(fs_, path("out")), models_[1]);
  EXPECT_FALSE(exists("out.previous"));
}

TEST_F(Commands, ADirectoryIsChangedInPlace) {
  write_directory(fs_, path("dir"), models_[0]);
  const auto before = fs_.list(path("dir"));
  const Outcome outcome = run({"apply", path("dir"), delta(1), delta(2), "--in-place"});
  ASSERT_EQ(outcome.code, kExitGood) << outcome.err;
  EXPECT_EQ(read_model(fs_, path("dir")), models_[2]);
  EXPECT_EQ(fs_.list(path("dir")), before);
}

TEST_F(Commands, ForceNeverReplacesADirectoryThatIsNoCheckpoint) {
  write_directory(fs_, path("dir"), models_[0]);
  fs_.make_directory(path("home"));
  write_text(fs_, path("home/letter.txt"), "dear");
  const Outcome outcome = run({"apply", path("dir"), delta(1), "-o", path("home"), "--force"});
  EXPECT_EQ(outcome.code, kExitUsage);
  EXPECT_TRUE(exists("home/letter.txt"));
}

TEST_F(Commands, DiffOverwritesADeltaButNothingElse) {
  delta(1);
  delta(1);
  const Bytes before = read_bytes(fs_, checkpoint(3));
  EXPECT_EQ(run({"diff", checkpoint(0), checkpoint(1), "-o", checkpoint(3)}).code, kExitUsage);
  EXPECT_EQ(read_bytes(fs_, checkpoint(3)), before);
}

TEST_F(Commands, ApplyToAnotherBaseIsRefusedAndWritesNothing) {
  const std::string d = delta(1);
  const Bytes before = read_bytes(fs_, checkpoint(2));
  const auto files = names();
  const Outcome in_place = run({"apply", checkpoint(2), d, "--in-place"});
  EXPECT_EQ(in_place.code, kExitBadInput);
  EXPECT_THAT(in_place.err, HasSubstr("m2.safetensors"));
  EXPECT_THAT(in_place.err, HasSubstr("wrong_base"));
  EXPECT_EQ(run({"apply", checkpoint(2), d, "-o", path("out.safetensors")}).code, kExitBadInput);
  EXPECT_EQ(read_bytes(fs_, checkpoint(2)), before);
  EXPECT_EQ(names(), files);
}

TEST_F(Commands, ApplyRefusesAGapInTheChain) {
  const Outcome outcome = run({"apply", checkpoint(0), delta(1), delta(3), "-o", path("out.safetensors")});
  EXPECT_EQ(outcome.code, kExitBadInput);
  EXPECT_THAT(outcome.err, HasSubstr("version_gap"));
  EXPECT_FALSE(exists("out.safetensors"));
}

TEST_F(Commands, InPlaceContinuesWhereTheChainStands) {
  const std::vector<std::string> chain = {delta(1), delta(2), delta(3)};
  const Outcome outcome = run({"apply", checkpoint(1), chain[0], chain[1], chain[2], "--in-place", "--json"});
  ASSERT_EQ(outcome.code, kExitGood) << outcome.err;
  const json report = json::parse(outcome.out);
  EXPECT_EQ(report["already_applied"], 1);
  EXPECT_EQ(report["applied"], 2);
  EXPECT_THAT(outcome.err, HasSubstr("already applied"));
  EXPECT_EQ(read_model(fs_, checkpoint(1)), models_[3]);
}

TEST_F(Commands, ComposeOfThreeLeadsFromTheFirstToTheLast) {
  for (const char* values : {"ulp", "xor", "raw"}) {
    const std::vector<std::string> flags = {"--values", values, "--objective", "speed"};
    const Outcome composed =
        run({"compose", delta(1, flags), delta(2, flags), delta(3, flags), "-o", path("all.scd"), "--json"});
    ASSERT_EQ(composed.code, kExitGood) << composed.err;
    EXPECT_EQ(json::parse(composed.out)["version"], 3);
    ASSERT_EQ(run({"apply", checkpoint(0), path("all.scd"), "-o", path("out.safetensors"), "--force"}).code, kExitGood);
    EXPECT_EQ(read_model(fs_, path("out.safetensors")), models_[3]);
    EXPECT_FALSE(exists("all.scd.part1"));
  }
}

TEST_F(Commands, InvertLeadsBackAndARawDeltaNeedsItsBase) {
  for (const char* values : {"ulp", "xor", "raw"}) {
    const std::string d = delta(2, {"--values", values, "--objective", "speed"});
    std::vector<std::string> arguments = {"invert", d, "-o", path("back.scd")};
    if (std::string(values) == "raw") {
      const Outcome refused = run(arguments);
      EXPECT_EQ(refused.code, kExitUsage);
      EXPECT_THAT(refused.err, HasSubstr("--base"));
      arguments.insert(arguments.end(), {"--base", checkpoint(3)});
      EXPECT_EQ(run(arguments).code, kExitBadInput);
      arguments.back() = checkpoint(1);
    }
    ASSERT_EQ(run(arguments).code, kExitGood);
    ASSERT_EQ(run({"apply", checkpoint(2), path("back.scd"), "-o", path("out.safetensors"), "--force"}).code,
              kExitGood);
    EXPECT_EQ(read_model(fs_, path("out.safetensors")), models_[1]);
  }
}

TEST_F(Commands, DigestsOfTensorsAddUpAndDoNotDependOnFiles) {
  write_directory(fs_, path("dir"), models_[0]);
  const json report = json::parse(run({"digest", path("dir"), "--tensors", "--json"}).out);
  StateDigest total;
  for (const json& row : report["tensor_rows"]) total += StateDigest{hash_from_hex(row["digest"])};
  EXPECT_EQ(report["digest"], to_hex(total.value));
  EXPECT_EQ(run({"digest", checkpoint(0)}).out, report["digest"].get<std::string>() + "  " + checkpoint(0) + "\n");
}

TEST_F(Commands, CompareCountsEveryDifferingElement) {
  Model other = models_[0];
  other.tensors[1][7] ^= std::byte{1};
  other.tensors[1][100] ^= std::byte{0x80};
  other.tensors[4][32999] ^= std::byte{4};
  write_file(fs_, path("other.safetensors"), other);
  const Outcome outcome = run({"compare", checkpoint(0), path("other.safetensors"), "--json"});
  EXPECT_EQ(outcome.code, kExitDiffers);
  const json report = json::parse(outcome.out);
  EXPECT_EQ(report["differing_tensors"], 2);
  EXPECT_EQ(report["differing_elements"], 3);
  EXPECT_EQ(report["tensor_rows"][0]["name"], "a.weight");
  EXPECT_EQ(report["tensor_rows"][0]["first_index"], 3);
  EXPECT_EQ(report["tensor_rows"][1]["first_index"], 32999);
  EXPECT_EQ(run({"compare", checkpoint(0), checkpoint(0), "--threads", "2"}).code, kExitGood);
}

TEST_F(Commands, ASparseStepWithEntriesThatRepeatTheBaseCountsOnlyChanges) {
  const std::int32_t indices[] = {0, 5, 29999};
  std::uint16_t values[3];
  std::memcpy(&values[0], models_[0].tensors[1].data(), 2);
  values[1] = 0x3F80;
  values[2] = 0xBF80;
  Model step;
  step.specs = {{"a.weight.indices", DType::kI32, {3}}, {"a.weight.values", DType::kBF16, {3}}};
  const auto* index_bytes = reinterpret_cast<const std::byte*>(indices);
  const auto* value_bytes = reinterpret_cast<const std::byte*>(values);
  step.tensors = {Bytes(index_bytes, index_bytes + 12), Bytes(value_bytes, value_bytes + 6)};
  write_part(fs_, path("step.safetensors"), step, {0, 1}, {{"sparse", "True"}});
  Model expected = models_[0];
  std::memcpy(expected.tensors[1].data() + 10, &values[1], 2);
  std::memcpy(expected.tensors[1].data() + 59998, &values[2], 2);

  const Outcome diff = run({"diff", checkpoint(0), path("step.safetensors"), "-o", path("s.scd"), "--json"});
  ASSERT_EQ(diff.code, kExitGood) << diff.err;
  EXPECT_EQ(json::parse(diff.out)["changed"], 2);
  ASSERT_EQ(run({"apply", checkpoint(0), path("s.scd"), "-o", path("out.safetensors")}).code, kExitGood);
  EXPECT_EQ(read_model(fs_, path("out.safetensors")), expected);
}

TEST_F(Commands, TheStreamIsTheOneAskedForOrDerivedFromTheTable) {
  const std::string id = "00112233445566778899aabbccddeeff";
  EXPECT_EQ(to_hex(DeltaFile::open(fs_, delta(1, {"--stream", id})).header().stream), id);
  const DeltaFile derived = DeltaFile::open(fs_, delta(1));
  EXPECT_EQ(derived.header().stream, derived.table().hash());
  EXPECT_EQ(run({"diff", checkpoint(0), checkpoint(1), "-o", path("x.scd"), "--stream", "12"}).code, kExitUsage);
  EXPECT_FALSE(exists("x.scd"));
}

TEST_F(Commands, EveryTruncationAndEveryCorruptedByteIsRefusedAndTheOutputIsAbsent) {
  Model base;
  base.specs = {{"w", DType::kBF16, {3000}}};
  base.tensors = {Bytes(6000, std::byte{0x3C})};
  const Model next = changed_model(base, random_, 100);
  write_file(fs_, path("base.safetensors"), base);
  write_file(fs_, path("next.safetensors"), next);
  ASSERT_EQ(run({"diff", path("base.safetensors"), path("next.safetensors"), "-o", path("good.scd")}).code, kExitGood);
  const Bytes good = read_bytes(fs_, path("good.scd"));
  const auto refuse = [&](ConstBytes bytes, const std::string& what) {
    fs_.open(path("bad.scd"), OpenMode::kCreate)->write_at(0, bytes);
    const Outcome outcome = run({"apply", path("base.safetensors"), path("bad.scd"), "-o", path("out.safetensors")});
    EXPECT_EQ(outcome.code, kExitBadInput) << what << outcome.err;
    EXPECT_THAT(outcome.err, HasSubstr("bad.scd")) << what;
    EXPECT_FALSE(exists("out.safetensors")) << what;
  };
  for (std::size_t length = 0; length < good.size(); ++length) {
    refuse(ConstBytes(good).first(length), "truncated to " + std::to_string(length));
  }
  for (std::size_t at = 0; at < good.size(); ++at) {
    Bytes bad = good;
    bad[at] ^= static_cast<std::byte>(1 + random_() % 255);
    refuse(bad, "corrupted at " + std::to_string(at));
  }
  const std::vector<std::string> left = names();
  EXPECT_EQ(std::count_if(left.begin(), left.end(), [](const auto& n) { return n.find("partial") != n.npos; }), 0);
  EXPECT_EQ(read_model(fs_, path("base.safetensors")), base);
}

TEST_F(Commands, InspectCountsWhatDiffCounted) {
  const std::string d = path("d.scd");
  const json diff = json::parse(run({"diff", checkpoint(0), checkpoint(1), "-o", d, "--json"}).out);
  const json shown = json::parse(run({"inspect", d, "--tensors", "--json"}).out);
  for (const char* key : {"elements", "changed", "density", "dense_bytes", "delta_bytes", "bytes_per_change", "ratio",
                          "base_digest", "result_digest"}) {
    EXPECT_EQ(diff[key], shown[key]) << key;
  }
  std::uint64_t changed = 0;
  for (const json& row : shown["tensor_rows"]) changed += row["changed"].get<std::uint64_t>();
  EXPECT_EQ(changed, diff["changed"].get<std::uint64_t>());
  EXPECT_THAT(run({"inspect", d, "--tensors"}).out, HasSubstr("a.weight"));
}

TEST_F(Commands, AnUndoRecordMakesEveryReaderRefuse) {
  const std::string d = delta(1);
  fs_.rename(d, checkpoint(0) + ".undo.scd");
  for (const std::vector<std::string>& arguments :
       std::vector<std::vector<std::string>>{{"digest", checkpoint(0)},
                                             {"compare", checkpoint(0), checkpoint(1)},
                                             {"diff", checkpoint(0), checkpoint(1), "-o", path("n.scd")},
                                             {"apply", checkpoint(0), path("1.scd"), "-o", path("o.safetensors")}}) {
    const Outcome outcome = run(arguments);
    EXPECT_EQ(outcome.code, kExitBadInput);
    EXPECT_THAT(outcome.err, HasSubstr("--recover"));
  }
}

TEST_F(Commands, HelpAndVersionAreGoodAndUnknownWordsAreUsage) {
  EXPECT_EQ(run({"--help"}).code, kExitGood);
  EXPECT_THAT(run({"apply", "--help"}).out, HasSubstr("Examples:"));
  EXPECT_THAT(run({"--version"}).out, HasSubstr("sparsecast "));
  EXPECT_EQ(run({}).code, kExitUsage);
  EXPECT_EQ(run({"diff", "--nonsense"}).code, kExitUsage);
  EXPECT_EQ(run({"apply", checkpoint(0), "--recover", "--in-place"}).code, kExitUsage);
}

}  // namespace
}  // namespace sparsecast::tools
