// SPDX-License-Identifier: Apache-2.0

// Crashes and errors at every call of an in-place apply (docs/architecture.md, I2, I3, I4).

#include <gmock/gmock.h>

#include "checkpoint/checkpoint_apply.hpp"
#include "checkpoint/undo_record.hpp"
#include "tests/support/fault_fs.hpp"
#include "tests/tools/tool_fixture.hpp"

namespace sparsecast::tools {
namespace {

using test::CrashException;
using test::FaultFileSystem;
using testing::HasSubstr;

constexpr std::uint64_t kLuck = 6;  ///< Crash states looked at for each crash.

std::string describe(const FaultFileSystem& fs, std::uint64_t call) {
  const auto log = fs.log();
  return call < log.size() ? log[call].name + ' ' + log[call].path : "not reached";
}

/// A checkpoint at version 0 and the deltas to 1 and 2, all durable.
class Scene {
 public:
  explicit Scene(bool directory, const char* values = "ulp") : directory_(directory) {
    std::mt19937_64 random(20);
    Model model;
    model.specs = {{"a.odd", DType::kU8, {333}}, {"b.weight", DType::kBF16, {40000}}, {"c.bias", DType::kF32, {700}}};
    for (const TensorSpec& spec : model.specs) {
      Bytes bytes(spec.bytes());
      for (std::byte& b : bytes) b = static_cast<std::byte>(random());
      model.tensors.push_back(std::move(bytes));
    }
    disk_.make_directory("/d");
    disk_.sync_directory("/");
    models_.push_back(model);
    models_.push_back(changed_model(model, random, 90));
    models_.push_back(changed_model(models_.back(), random, 2000));
    for (std::size_t i = 0; i < models_.size(); ++i) write_file(disk_, name(i), models_[i]);
    for (std::size_t i = 1; i < models_.size(); ++i) {
      const Outcome made = run(disk_, {"diff", name(i - 1), name(i), "-o", deltas_[i - 1], "--values", values,
                                       "--base-version", std::to_string(i - 1), "--version", std::to_string(i)});
      EXPECT_EQ(made.code, kExitGood) << made.err;
    }
    if (directory_) {
      write_directory(disk_, live_, models_[0]);
    } else {
      write_file(disk_, live_, models_[0]);
    }
  }

  /// The disk as it is before the apply.
  std::unique_ptr<FaultFileSystem> disk() const { return disk_.durable_state(); }

  static CheckpointApplyReport apply(FaultFileSystem& fs) { return apply_in_place(fs, live_, deltas_, {}); }

  /// Which version the checkpoint holds; -1 for none of them.
  int version(FaultFileSystem& fs) const {
    const Model found = read_model(fs, live_);
    for (std::size_t i = 0; i < models_.size(); ++i) {
      if (found == models_[i]) return static_cast<int>(i);
    }
    return -1;
  }
  static bool has_undo(FaultFileSystem& fs) { return fs.exists(undo_record_path(fs, live_)); }

  /// Whatever state a crash left: it is a version, or an undo record says that it is none; and the same call ends well.
  void expect_recovers(FaultFileSystem& fs, const std::string& where) const {
    if (!has_undo(fs)) {
      EXPECT_GE(version(fs), 0) << where << ": no version, and nothing says so";
    } else {
      EXPECT_EQ(run(fs, {"digest", live_}).code, kExitBadInput) << where;
    }
    const CheckpointApplyReport report = apply(fs);
    EXPECT_EQ(version(fs), 2) << where;
    EXPECT_EQ(report.version, 2U) << where;
    EXPECT_FALSE(has_undo(fs)) << where;
    // A result that was reported stays on the disk, whatever happens next.
    for (const auto& later : {fs.durable_state(), fs.crash_state(1), fs.crash_state(2)}) {
      EXPECT_EQ(version(*later), 2) << where;
      EXPECT_FALSE(has_undo(*later)) << where;
    }
  }

  static constexpr const char* live_ = "/d/live";
  static inline const std::vector<std::string> deltas_ = {"/d/1.scd", "/d/2.scd"};

 private:
  static std::string name(std::size_t i) { return "/d/m" + std::to_string(i) + ".safetensors"; }

  bool directory_;
  FaultFileSystem disk_;
  std::vector<Model> models_;
};

std::uint64_t calls_of_apply(const Scene& scene) {
  const auto fs = scene.disk();
  const CheckpointApplyReport report = Scene::apply(*fs);
  const std::uint64_t calls = fs->operations();
  EXPECT_EQ(report.applied, 2U);
  EXPECT_EQ(scene.version(*fs), 2);
  return calls;
}

class InPlaceApply : public testing::TestWithParam<bool> {};

TEST_P(InPlaceApply, RecoversFromACrashAfterAnyCall) {
  const Scene scene(GetParam());
  const std::uint64_t calls = calls_of_apply(scene);
  std::uint64_t undone = 0;
  for (std::uint64_t call = 0; call < calls; ++call) {
    const auto fs = scene.disk();
    fs->crash_at(call);
    try {
      Scene::apply(*fs);
    } catch (const CrashException&) {
    }
    for (std::uint64_t seed = 0; seed < kLuck; ++seed) {
      const auto after = fs->crash_state(call * kLuck + seed);
      const std::string where = "crash at call " + std::to_string(call) + " (" + describe(*fs, call) + "), seed " +
                                std::to_string(call * kLuck + seed);
      undone += Scene::has_undo(*after) ? 1 : 0;
      scene.expect_recovers(*after, where);
    }
  }
  EXPECT_GT(undone, 0U) << "no crash state ever needed the undo record";
}

TEST_P(InPlaceApply, RecoversFromACrashDuringRecovery) {
  const Scene scene(GetParam());
  const std::uint64_t calls = calls_of_apply(scene);
  std::mt19937_64 random(7);
  std::uint64_t tried = 0;
  for (std::uint64_t call = 0; call < calls; ++call) {
    const auto fs = scene.disk();
    fs->crash_at(call);
    try {
      Scene::apply(*fs);
    } catch (const CrashException&) {
    }
    const std::uint64_t seed = random();
    if (!Scene::has_undo(*fs->crash_state(seed))) continue;
    for (int i = 0; i < 12; ++i, ++tried) {
      const auto again = fs->crash_state(seed);
      const std::uint64_t second = random() % 60;
      again->crash_at(second);
      const std::string where =
          "crash at call " + std::to_string(call) + ", then at call " + std::to_string(second) + " of the recovery";
      try {
        recover_checkpoint(*again, Scene::live_, {});
      } catch (const CrashException&) {
      }
      scene.expect_recovers(*again->crash_state(random()), where);
    }
  }
  EXPECT_GT(tried, 100U);
}

TEST_P(InPlaceApply, ReportsEveryFailingCallAndLosesNothing) {
  const Scene scene(GetParam());
  const std::uint64_t calls = calls_of_apply(scene);
  for (const char* fault : {"fails", "and all later ones fail", "puts down half of what it should write"}) {
    for (std::uint64_t call = 0; call < calls; ++call) {
      const auto fs = scene.disk();
      switch (fault[0]) {
        case 'f':
          fs->fail_at(call);
          break;
        case 'a':
          fs->fail_at(call, EIO, FaultFileSystem::Repeat::kForEver);
          break;
        default:
          fs->short_write_at(call, EIO);
      }
      std::string where = "call " + std::to_string(call) + ' ' + fault;
      try {
        Scene::apply(*fs);
        ADD_FAILURE() << where << ", yet success was reported";
      } catch (const Error& error) {
        EXPECT_EQ(error.code(), ErrorCode::kIo) << where << ": " << error.what();
        EXPECT_THAT(error.what(), HasSubstr(std::strerror(EIO))) << where;
        EXPECT_THAT(error.context(), HasSubstr("/d")) << where;
      }
      where += " (" + describe(*fs, call) + ")";
      fs->clear_fault();
      // The machine continues, or loses power first.
      scene.expect_recovers(*fs->crash_state(call), where + ", power loss");
      scene.expect_recovers(*fs, where);
    }
  }
}

TEST_P(InPlaceApply, RecoversFromAFailureDuringRecovery) {
  const Scene scene(GetParam());
  const std::uint64_t calls = calls_of_apply(scene);
  const auto fs = scene.disk();
  // Some way into the second half of the first delta's calls the undo record lies there and pages are written.
  std::uint64_t call = calls / 4;
  std::unique_ptr<FaultFileSystem> interrupted;
  for (; call < calls && !interrupted; ++call) {
    auto attempt = scene.disk();
    attempt->crash_at(call);
    try {
      Scene::apply(*attempt);
    } catch (const CrashException&) {
    }
    auto state = attempt->crash_state(3);
    if (Scene::has_undo(*state) && scene.version(*state) < 0) interrupted = std::move(state);
  }
  ASSERT_NE(interrupted, nullptr);
  for (std::uint64_t at = 0; at < 200; ++at) {
    const auto again = interrupted->crash_state(0);
    again->fail_at(at);
    bool failed = false;
    try {
      recover_checkpoint(*again, Scene::live_, {});
    } catch (const Error& error) {
      failed = true;
      EXPECT_EQ(error.code(), ErrorCode::kIo);
    }
    again->clear_fault();
    const std::string where = "recovery: call " + std::to_string(at) + " fails";
    recover_checkpoint(*again, Scene::live_, {});
    // Bytes that a failed fsync dropped still read as written: only writing them again brings them to the disk.
    for (std::uint64_t seed = 0; seed < kLuck; ++seed) {
      const auto after = again->crash_state(seed);
      EXPECT_FALSE(Scene::has_undo(*after)) << where;
      EXPECT_EQ(scene.version(*after), 0) << where;
    }
    scene.expect_recovers(*again, where);
    if (!failed) return;
  }
  FAIL() << "recovery never ended";
}

INSTANTIATE_TEST_SUITE_P(OfAFileAndOfADirectory, InPlaceApply, testing::Bool(),
                         [](const auto& parameter) { return parameter.param ? "directory" : "file"; });

TEST(InPlaceApplyRecovery, WritesNothingWhenTheCheckpointWasReplacedMeanwhile) {
  const Scene scene(false);
  std::unique_ptr<FaultFileSystem> after;
  for (std::uint64_t call = 0; !after || !Scene::has_undo(*after); ++call) {
    ASSERT_LT(call, 1000U) << "no crash left an undo record";
    const auto fs = scene.disk();
    fs->crash_at(call);
    EXPECT_THROW(Scene::apply(*fs), CrashException);
    after = fs->crash_state(1);
  }
  write_file(*after, Scene::live_, read_model(*after, "/d/m2.safetensors"));
  try {
    recover_checkpoint(*after, Scene::live_, {});
    FAIL() << "the record was used on a checkpoint that it does not fit";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kDirty);
    EXPECT_THAT(error.what(), HasSubstr("Nothing was written"));
  }
  EXPECT_EQ(scene.version(*after), 2);
  EXPECT_TRUE(Scene::has_undo(*after));
}

TEST(InPlaceApplyRecovery, RefusesACorruptUndoRecordAndWritesNothing) {
  const Scene scene(false);
  const auto fs = scene.disk();
  const std::string undo = undo_record_path(*fs, Scene::live_);
  write_text(*fs, undo, "SCH1 and then nothing of use");
  EXPECT_EQ(run(*fs, {"apply", Scene::live_, "--recover"}).code, kExitBadInput);
  EXPECT_EQ(scene.version(*fs), 0);
  EXPECT_TRUE(Scene::has_undo(*fs));
}

TEST(InPlaceApplyRecovery, SaysThatThereIsNothingToRecover) {
  const Scene scene(false);
  const auto fs = scene.disk();
  EXPECT_FALSE(recover_checkpoint(*fs, Scene::live_, {}));
  EXPECT_EQ(run(*fs, {"apply", Scene::live_, "--recover"}).code, kExitGood);
}

TEST(InPlaceApplyRecovery, WorksForEveryValueCodec) {
  for (const char* values : {"xor", "raw"}) {
    const Scene scene(false, values);
    const std::uint64_t calls = calls_of_apply(scene);
    for (std::uint64_t call = 0; call < calls; call += 3) {
      const auto fs = scene.disk();
      fs->crash_at(call);
      try {
        Scene::apply(*fs);
      } catch (const CrashException&) {
      }
      scene.expect_recovers(*fs->crash_state(call), std::string(values) + ", call " + std::to_string(call));
    }
  }
}

TEST(ApplyToACopy, LeavesTheOutputAbsentOrWholeAfterACrashOrAFailureAtAnyCall) {
  const Scene scene(false);
  const auto apply = [](FaultFileSystem& fs) { apply_to_copy(fs, Scene::live_, Scene::deltas_, "/d/out", {}); };
  const auto whole = scene.disk();
  apply(*whole);
  const std::uint64_t calls = whole->operations();
  const Bytes expected = read_bytes(*whole, "/d/out");
  for (std::uint64_t call = 0; call < calls; ++call) {
    const auto crashed = scene.disk();
    crashed->crash_at(call);
    try {
      apply(*crashed);
    } catch (const CrashException&) {
    }
    for (std::uint64_t seed = 0; seed < kLuck; ++seed) {
      const auto after = crashed->crash_state(seed);
      if (after->exists("/d/out")) {
        EXPECT_EQ(read_bytes(*after, "/d/out"), expected) << "call " << call;
      }
      EXPECT_EQ(scene.version(*after), 0) << "call " << call;
    }
    const auto failing = scene.disk();
    failing->fail_at(call);
    bool failed = false;
    try {
      apply(*failing);
    } catch (const Error& error) {
      failed = true;
      EXPECT_EQ(error.code(), ErrorCode::kIo);
    }
    EXPECT_TRUE(failed) << "call " << call << ' ' << describe(*failing, call);
    failing->clear_fault();
    if (failing->exists("/d/out")) {
      EXPECT_EQ(read_bytes(*failing, "/d/out"), expected) << "call " << call;
    }
  }
}

}  // namespace
}  // namespace sparsecast::tools
