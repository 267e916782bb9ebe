// Crashes and errors at every call of an in-place apply (DESIGN §12: I2, I3, I4).

#include <gmock/gmock.h>

#include "interop/checkpoint_apply.hpp"
#include "interop/undo_record.hpp"
#include "tests/tools/crash_file_system.hpp"
#include "tests/tools/tool_fixture.hpp"

namespace sparsecast::tools {
namespace {

using testing::AnyOf;
using testing::HasSubstr;
using testing::StartsWith;

constexpr std::uint64_t kLuck = 6;  ///< Crash states looked at for each crash.

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
  std::unique_ptr<CrashFileSystem> disk() const { return disk_.crash_state(0); }

  static CheckpointApplyReport apply(CrashFileSystem& fs) { return apply_in_place(fs, live_, deltas_, {}); }

  /// Which version the checkpoint holds; -1 for none of them.
  int version(CrashFileSystem& fs) const {
    const Model found = read_model(fs, live_);
    for (std::size_t i = 0; i < models_.size(); ++i) {
      if (found == models_[i]) return static_cast<int>(i);
    }
    return -1;
  }
  static bool has_undo(CrashFileSystem& fs) { return fs.exists(undo_record_path(fs, live_)); }

  /// Whatever state a crash left: it is a version, or an undo record says that it is none; and the same call ends well.
  void expect_recovers(CrashFileSystem& fs, const std::string& where) const {
    if (!has_undo(fs)) {
      EXPECT_GE(version(fs), 0) << where << ": no version, and nothing says so";
    } else {
      EXPECT_EQ(run(fs, {"digest", live_}).code, kExitBadInput) << where;
    }
    const CheckpointApplyReport report = apply(fs);
    EXPECT_EQ(version(fs), 2) << where;
    EXPECT_EQ(report.version, 2U) << where;
    EXPECT_FALSE(has_undo(fs)) << where;
    // What the caller was told holds on the disk, whatever happens next.
    EXPECT_EQ(version(*fs.crash_state(1)), 2) << where;
  }

  static constexpr const char* live_ = "/d/live";
  static inline const std::vector<std::string> deltas_ = {"/d/1.scd", "/d/2.scd"};

 private:
  static std::string name(std::size_t i) { return "/d/m" + std::to_string(i) + ".safetensors"; }

  bool directory_;
  CrashFileSystem disk_;
  std::vector<Model> models_;
};

std::uint64_t calls_of_apply(const Scene& scene) {
  const auto fs = scene.disk();
  const CheckpointApplyReport report = Scene::apply(*fs);
  EXPECT_EQ(report.applied, 2U);
  EXPECT_EQ(scene.version(*fs), 2);
  return fs->calls();
}

class InPlaceApply : public testing::TestWithParam<bool> {};

TEST_P(InPlaceApply, RecoversFromACrashAfterAnyCall) {
  const Scene scene(GetParam());
  const std::uint64_t calls = calls_of_apply(scene);
  std::uint64_t undone = 0;
  for (std::uint64_t call = 0; call < calls; ++call) {
    const auto fs = scene.disk();
    fs->crash_after = call;
    try {
      Scene::apply(*fs);
    } catch (const CrashException&) {
    }
    for (std::uint64_t seed = 0; seed < kLuck; ++seed) {
      const auto after = fs->crash_state(call * kLuck + seed);
      const std::string where = "crash after call " + std::to_string(call) + " (" + fs->log().back() + "), seed " +
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
    fs->crash_after = call;
    try {
      Scene::apply(*fs);
    } catch (const CrashException&) {
    }
    const std::uint64_t seed = random();
    if (!Scene::has_undo(*fs->crash_state(seed))) continue;
    for (int i = 0; i < 12; ++i, ++tried) {
      const auto again = fs->crash_state(seed);
      again->reset_counter();
      again->crash_after = random() % 60;
      const std::string where = "crash after call " + std::to_string(call) + ", then after call " +
                                std::to_string(again->crash_after);
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
  for (const bool for_ever : {false, true}) {
    for (std::uint64_t call = 0; call < calls; ++call) {
      const auto fs = scene.disk();
      fs->fail_from = call;
      fs->fail_for_ever = for_ever;
      std::string where = "call " + std::to_string(call) + (for_ever ? " and all later ones fail" : " fails");
      try {
        Scene::apply(*fs);
        ADD_FAILURE() << where << ", yet success was reported";
      } catch (const Error& error) {
        EXPECT_EQ(error.code(), ErrorCode::kIo) << where << ": " << error.what();
        EXPECT_THAT(error.what(), HasSubstr("injected")) << where;
        EXPECT_THAT(error.context(), HasSubstr("/d/")) << where;
      }
      where += " (" + fs->log()[call] + ")";
      fs->fail_from = CrashFileSystem::kNever;
      fs->fail_for_ever = false;
      // The same machine goes on, or it loses power first.
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
  std::unique_ptr<CrashFileSystem> interrupted;
  for (; call < calls && !interrupted; ++call) {
    auto attempt = scene.disk();
    attempt->crash_after = call;
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
    again->reset_counter();
    again->fail_from = at;
    bool failed = false;
    try {
      recover_checkpoint(*again, Scene::live_, {});
    } catch (const Error& error) {
      failed = true;
      EXPECT_EQ(error.code(), ErrorCode::kIo);
    }
    again->fail_from = CrashFileSystem::kNever;
    scene.expect_recovers(*again, "recovery: call " + std::to_string(at) + " fails");
    if (!failed) return;
  }
  FAIL() << "recovery never ended";
}

INSTANTIATE_TEST_SUITE_P(OfAFileAndOfADirectory, InPlaceApply, testing::Bool(),
                         [](const auto& parameter) { return parameter.param ? "directory" : "file"; });

TEST(InPlaceApplyRecovery, WritesNothingWhenTheCheckpointWasReplacedMeanwhile) {
  const Scene scene(false);
  const auto fs = scene.disk();
  for (fs->crash_after = 0; !Scene::has_undo(*fs->crash_state(1)); ++fs->crash_after) {
    try {
      Scene::apply(*fs);
    } catch (const CrashException&) {
    }
  }
  const auto after = fs->crash_state(1);
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
      fs->crash_after = call;
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
  const auto apply = [](CrashFileSystem& fs) { apply_to_copy(fs, Scene::live_, Scene::deltas_, "/d/out", {}); };
  const auto whole = scene.disk();
  whole->reset_counter();
  apply(*whole);
  const std::uint64_t calls = whole->calls();
  const Bytes expected = read_bytes(*whole, "/d/out");
  for (std::uint64_t call = 0; call < calls; ++call) {
    const auto crashed = scene.disk();
    crashed->crash_after = call;
    try {
      apply(*crashed);
    } catch (const CrashException&) {
    }
    for (std::uint64_t seed = 0; seed < kLuck; ++seed) {
      const auto after = crashed->crash_state(seed);
      if (after->exists("/d/out")) EXPECT_EQ(read_bytes(*after, "/d/out"), expected) << "call " << call;
      EXPECT_EQ(scene.version(*after), 0) << "call " << call;
    }
    const auto failing = scene.disk();
    failing->fail_from = call;
    bool failed = false;
    try {
      apply(*failing);
    } catch (const Error& error) {
      failed = true;
      EXPECT_EQ(error.code(), ErrorCode::kIo);
    }
    EXPECT_TRUE(failed) << "call " << call << ' ' << failing->log()[call];
    failing->fail_from = CrashFileSystem::kNever;
    if (failing->exists("/d/out")) EXPECT_EQ(read_bytes(*failing, "/d/out"), expected) << "call " << call;
  }
}

}  // namespace
}  // namespace sparsecast::tools
