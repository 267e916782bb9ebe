// SPDX-License-Identifier: Apache-2.0

// sparsecast log, through the command line, on real folders.

#include <gmock/gmock.h>

#include <csignal>
#include <nlohmann/json.hpp>
#include <thread>

#include "tests/tools/tool_fixture.hpp"
#include "tools/log/log_open.hpp"

namespace sparsecast::tools {
namespace {

using nlohmann::json;
using testing::AllOf;
using testing::HasSubstr;

class LogCommands : public ToolTest {
 protected:
  LogCommands() {
    models_.push_back(random_model(random_));
    for (int i = 0; i < 9; ++i) models_.push_back(changed_model(models_.back(), random_, 200));
    for (std::size_t i = 0; i < models_.size(); ++i) write_file(fs_, weights(i), models_[i]);
  }

  std::string weights(std::size_t i) const { return path("m" + std::to_string(i) + ".safetensors"); }
  std::string log() const { return path("log"); }

  Outcome log_command(std::vector<std::string> arguments) {
    arguments.insert(arguments.begin(), "log");
    return run(arguments);
  }
  Outcome init(std::vector<std::string> flags = {}) {
    flags.insert(flags.begin(), {"init", log(), weights(0)});
    return log_command(flags);
  }
  Outcome publish(std::size_t i, std::vector<std::string> flags = {}) {
    flags.insert(flags.begin(), {"publish", log(), weights(i), "--base", weights(i - 1)});
    return log_command(flags);
  }
  /// A log with versions 0 to `last`, version i of model i.
  void make_log(std::size_t last) {
    ASSERT_EQ(init().code, kExitGood);
    for (std::size_t i = 1; i <= last; ++i) ASSERT_EQ(publish(i).code, kExitGood);
  }
  Outcome pull(const std::string& name, std::vector<std::string> flags = {}) {
    flags.insert(flags.begin(), {"pull", log(), path(name)});
    return log_command(flags);
  }
  /// The checkpoint holds model i, bit for bit.
  void expect_holds(const std::string& name, std::size_t i) {
    EXPECT_EQ(run({"compare", path(name), weights(i)}).code, kExitGood) << name << " is not model " << i;
  }
  std::string only_object(const std::string& prefix, const std::string& version) {
    for (const std::string& name : fs_.list(log() + "/" + prefix)) {
      if (name.find(version) != std::string::npos) return log() + "/" + prefix + "/" + name;
    }
    throw std::runtime_error("no object " + prefix + " of version " + version);
  }

  std::vector<Model> models_;
};

TEST_F(LogCommands, AFollowerIsBitIdenticalAtEveryVersion) {
  ASSERT_EQ(init().code, kExitGood);
  for (std::size_t i = 0; i < 4; ++i) {
    if (i > 0) {
      const Outcome published = publish(i, {"--json", "--label", "step"});
      ASSERT_EQ(published.code, kExitGood) << published.err;
      EXPECT_EQ(json::parse(published.out)["version"], i);
    }
    const Outcome pulled = pull("copy", {"--json"});
    ASSERT_EQ(pulled.code, kExitGood) << pulled.err;
    EXPECT_EQ(json::parse(pulled.out)["version"], i);
    expect_holds("copy", i);
  }
}

TEST_F(LogCommands, TheOtherFormsOfTheNextVersionArePublishedToo) {
  make_log(1);
  ASSERT_EQ(run({"digest", weights(1)}).code, kExitGood);
  const std::string stream = json::parse(log_command({"status", log(), "--json"}).out)["stream"];
  ASSERT_EQ(run({"diff", weights(1), weights(2), "-o", path("2.scd"), "--base-version", "1", "--version", "2",
                 "--stream", stream})
                .code,
            kExitGood);
  const Outcome published = log_command({"publish", log(), path("2.scd")});
  ASSERT_EQ(published.code, kExitGood) << published.err;
  EXPECT_THAT(log_command({"publish", log(), path("2.scd")}).out, HasSubstr("already"));
  ASSERT_EQ(pull("copy.safetensors").code, kExitGood);
  expect_holds("copy.safetensors", 2);
}

TEST_F(LogCommands, PublishingAgainWhatIsPublishedChangesNothing) {
  make_log(2);
  for (const std::string& base : {weights(1), weights(2)}) {
    const Outcome again = log_command({"publish", log(), weights(2), "--base", base, "--json"});
    ASSERT_EQ(again.code, kExitGood) << again.err;
    EXPECT_EQ(json::parse(again.out)["already"], true);
    EXPECT_EQ(json::parse(again.out)["version"], 2);
  }
  const Outcome empty = log_command({"publish", log(), weights(2), "--base", weights(2), "--allow-empty", "--json"});
  EXPECT_EQ(json::parse(empty.out)["version"], 3);
  EXPECT_EQ(json::parse(empty.out)["changed"], 0);
}

TEST_F(LogCommands, AnotherBaseThanTheHeadIsRefused) {
  make_log(2);
  const Outcome wrong = log_command({"publish", log(), weights(4), "--base", weights(3)});
  EXPECT_EQ(wrong.code, kExitBadInput);
  EXPECT_THAT(wrong.err, AllOf(HasSubstr("m3.safetensors"), HasSubstr("version, 2,"), HasSubstr("[wrong_base]")));
}

TEST_F(LogCommands, InitFinishesWhatItBeganAndRefusesALogOfOthers) {
  ASSERT_EQ(init({"--no-anchor"}).code, kExitGood);
  const Outcome early = pull("copy");
  EXPECT_NE(early.code, kExitGood);
  EXPECT_EQ(init().code, kExitGood);
  EXPECT_EQ(pull("copy").code, kExitGood);
  const Outcome other = init({"--state", path("another.publisher")});
  EXPECT_EQ(other.code, kExitUsage);
  EXPECT_THAT(other.err, HasSubstr("there is a log here already"));
}

TEST_F(LogCommands, ASecondPublisherTakesOverExplicitlyAndFencesTheFirst) {
  make_log(1);
  const std::vector<std::string> second = {"--state", path("second.publisher")};
  const Outcome refused = publish(2, second);
  EXPECT_EQ(refused.code, kExitFenced);
  EXPECT_THAT(refused.err, AllOf(HasSubstr("--take-over"), HasSubstr("[fenced]")));
  const Outcome taken = publish(2, {"--state", path("second.publisher"), "--take-over", "--json"});
  ASSERT_EQ(taken.code, kExitGood) << taken.err;
  EXPECT_EQ(json::parse(taken.out)["version"], 3);  // The takeover is version 2.
  EXPECT_EQ(json::parse(taken.out)["epoch"], 2);
  EXPECT_EQ(publish(3).code, kExitFenced);
  EXPECT_EQ(publish(3, second).code, kExitGood);
  ASSERT_EQ(pull("copy").code, kExitGood);
  expect_holds("copy", 3);
}

TEST_F(LogCommands, ATakeoverAloneNeedsNoNewWeights) {
  make_log(1);
  const Outcome taken = log_command(
      {"publish", log(), "--base", weights(1), "--take-over", "--state", path("second.publisher"), "--json"});
  ASSERT_EQ(taken.code, kExitGood) << taken.err;
  EXPECT_EQ(json::parse(taken.out)["took_over"], true);
  EXPECT_EQ(publish(2).code, kExitFenced);
}

TEST_F(LogCommands, AMirrorIsMadeBroughtAlongAndUsedForUpkeep) {
  ASSERT_EQ(init().code, kExitGood);
  std::uint64_t merged = 0;
  std::uint64_t anchors = 0;
  for (std::size_t i = 1; i < models_.size(); ++i) {
    const Outcome published = log_command({"publish", log(), weights(i), "--mirror", path("mirror"), "--json"});
    ASSERT_EQ(published.code, kExitGood) << published.err;
    const json report = json::parse(published.out);
    EXPECT_EQ(report["version"], i);
    EXPECT_EQ(report["maintenance_error"], "");
    merged += report["merged"].get<std::uint64_t>();
    anchors += report["anchor_bytes"] > 0 ? 1 : 0;
    expect_holds("mirror", i);
  }
  EXPECT_EQ(merged, 2U);
  EXPECT_EQ(anchors, 1U);
  const Outcome pulled = pull("copy", {"--json"});
  EXPECT_LE(json::parse(pulled.out)["objects_read"], 8);
  expect_holds("copy", models_.size() - 1);
  EXPECT_EQ(log_command({"verify", log(), "--scratch", folder_.string()}).code, kExitGood);
}

TEST_F(LogCommands, PinnedKeysAreFollowedThroughARotationAndOthersAreNamed) {
  const std::string first = log_command({"keygen", "-o", path("first.key")}).out;
  const std::string next = log_command({"keygen", "-o", path("next.key")}).out;
  write_text(fs_, path("first.pub"), first);
  write_text(fs_, path("next.pub"), "# the next one\n" + next);
  ASSERT_EQ(init({"--key", path("first.key")}).code, kExitGood);
  ASSERT_EQ(publish(1, {"--key", path("first.key")}).code, kExitGood);
  EXPECT_EQ(pull("copy", {"--trust", path("first.pub")}).code, kExitGood);
  const Outcome foreign = pull("other", {"--trust", path("next.pub")});
  EXPECT_EQ(foreign.code, kExitDistrusted);
  EXPECT_THAT(foreign.err, HasSubstr("[foreign_key]"));
  EXPECT_NE(publish(2).code, kExitGood) << "published without a key";

  const std::string state = json::parse(publish(1, {"--key", path("first.key"), "--json"}).out)["publisher_state"];
  const auto keys = [&](std::vector<std::string> flags) {
    flags.insert(flags.begin(), {"keys", log(), "--json", "--state", state});
    return log_command(flags);
  };
  const Outcome added = keys({"--add", path("next.pub"), "--key", path("first.key")});
  ASSERT_EQ(added.code, kExitGood) << added.err;
  EXPECT_EQ(json::parse(added.out)["keys"].size(), 2U);
  ASSERT_EQ(publish(2, {"--key", path("next.key")}).code, kExitGood);
  const Outcome removed = keys({"--remove", path("first.pub"), "--key", path("next.key")});
  ASSERT_EQ(removed.code, kExitGood) << removed.err;
  EXPECT_EQ(publish(3, {"--key", path("first.key")}).code, kExitDistrusted);
  ASSERT_EQ(publish(3, {"--key", path("next.key")}).code, kExitGood);
  EXPECT_EQ(pull("copy", {"--trust", path("first.pub")}).code, kExitGood);
  expect_holds("copy", 3);
}

TEST_F(LogCommands, AnUnsignedLogIsRefusedByWhoPinsKeys) {
  make_log(1);
  write_text(fs_, path("key.pub"), log_command({"keygen", "-o", path("key")}).out);
  for (const char* command : {"status", "verify"}) {
    const Outcome refused = log_command({command, log(), "--trust", path("key.pub")});
    EXPECT_EQ(refused.code, kExitDistrusted) << command;
    EXPECT_THAT(refused.err, HasSubstr("[unsigned]"));
  }
  EXPECT_EQ(pull("copy", {"--trust", path("key.pub")}).code, kExitDistrusted);
}

TEST_F(LogCommands, BrokenObjectsAreNamedAndLeaveTheCopyAsItWas) {
  make_log(3);
  ASSERT_EQ(pull("copy", {"--version", "1"}).code, kExitGood);
  const std::string object = only_object("deltas", "0000000003-");
  const Bytes whole = read_bytes(fs_, object);
  const auto expect_named = [&](const char* what) {
    const Outcome pulled = pull("copy");
    EXPECT_NE(pulled.code, kExitGood) << what;
    const Outcome verified = log_command({"verify", log(), "--scratch", folder_.string()});
    EXPECT_NE(verified.code, kExitGood) << what;
    EXPECT_THAT(verified.err, HasSubstr("deltas/0000000003-")) << what;
    EXPECT_THAT(verified.out, HasSubstr("PROBLEMS")) << what;
  };
  fs_.open(object, OpenMode::kReadWrite)->truncate(whole.size() - 1);
  expect_named("truncated");
  fs_.open(object, OpenMode::kReadWrite)->write_at(0, whole);
  const std::byte flipped = whole[whole.size() / 2] ^ std::byte{4};
  fs_.open(object, OpenMode::kReadWrite)->write_at(whole.size() / 2, {&flipped, 1});
  expect_named("flipped");
  fs_.remove(object);
  expect_named("deleted");
  fs_.open(object, OpenMode::kCreate)->write_at(0, whole);
  EXPECT_EQ(log_command({"verify", log(), "--scratch", folder_.string()}).code, kExitGood);
  EXPECT_EQ(pull("copy").code, kExitGood);
  expect_holds("copy", 3);
}

TEST_F(LogCommands, VerifyFindsACommitThatIsMissing) {
  make_log(3);
  fs_.remove(only_object("commits", "0000000002"));
  const Outcome verified = log_command({"verify", log(), "--no-anchors", "--scratch", folder_.string()});
  EXPECT_NE(verified.code, kExitGood) << verified.out;
}

TEST_F(LogCommands, GcKeepsWhatALeaseNeedsAndJoinersStillJoin) {
  make_log(6);
  ASSERT_EQ(log_command({"anchor", log(), "--checkpoint", weights(3)}).code, kExitGood);
  ASSERT_EQ(log_command({"anchor", log(), "--mirror", path("mirror")}).code, kExitGood);
  ASSERT_EQ(pull("slow", {"--version", "4", "--lease", "slow"}).code, kExitGood);
  const std::vector<std::string> gc = {"gc", log(), "--keep", "1", "--grace", "0", "--json"};
  std::vector<std::string> dry = gc;
  dry.push_back("--dry-run");
  const json would = json::parse(log_command(dry).out);
  EXPECT_EQ(would["floor"], 3);
  EXPECT_EQ(would["held_by"], "slow");
  const json done = json::parse(log_command(gc).out);
  EXPECT_EQ(done["floor"], 3);
  EXPECT_EQ(done["removed_objects"], would["removed_objects"]);
  EXPECT_EQ(pull("slow", {"--lease", "slow"}).code, kExitGood);
  expect_holds("slow", 6);
  EXPECT_EQ(json::parse(log_command(gc).out)["floor"], 6);
  ASSERT_EQ(pull("new").code, kExitGood);
  expect_holds("new", 6);
}

TEST_F(LogCommands, FollowEndsGoodOnASignal) {
  make_log(1);
  std::signal(SIGTERM, SIG_IGN);  // Should the follower have ended by itself, the signal must not end the test.
  Outcome followed;
  std::thread follower([&] {
    followed = log_command({"follow", log(), path("copy"), "--interval", "10ms", "--json", "--lease", "reader"});
  });
  const auto wait_for = [&](std::size_t i) {
    for (int tries = 0; tries < 3000; ++tries) {
      if (exists("copy") && !exists("copy/sparsecast.undo.scd") &&
          run({"compare", path("copy"), weights(i)}).code == 0) {
        return true;
      }
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    }
    return false;
  };
  EXPECT_TRUE(wait_for(1));
  EXPECT_EQ(publish(2).code, kExitGood);
  EXPECT_TRUE(wait_for(2));
  std::raise(SIGTERM);
  follower.join();
  std::signal(SIGTERM, SIG_DFL);
  EXPECT_EQ(followed.code, kExitGood) << followed.err;
  std::istringstream lines(followed.out);
  std::uint64_t version = 0;
  for (std::string line; std::getline(lines, line);) version = json::parse(line)["version"];
  EXPECT_EQ(version, 2U);
}

TEST_F(LogCommands, StatusShowsTheLogInWordsAndAsJson) {
  make_log(5);
  ASSERT_EQ(log_command({"compact", log(), "--scratch", folder_.string(), "--mirror", path("mirror")}).code, kExitGood);
  ASSERT_EQ(pull("copy", {"--version", "2", "--lease", "<engine>"}).code, kExitUsage) << "no name of a lease";
  ASSERT_EQ(pull("copy", {"--version", "2", "--lease", "engine-1"}).code, kExitGood);
  const Outcome text = log_command({"status", log()});
  ASSERT_EQ(text.code, kExitGood) << text.err;
  EXPECT_THAT(text.out, AllOf(HasSubstr("version 5, epoch 1"), HasSubstr("merged 4"), HasSubstr("engine-1"),
                              HasSubstr("density"), HasSubstr("unsigned")));
  const json status = json::parse(log_command({"status", log(), "--json", "--versions", "3"}).out);
  EXPECT_EQ(status["version"], 5);
  EXPECT_EQ(status["version_rows"].size(), 3U);
  EXPECT_EQ(status["lease_rows"][0]["behind"], 3);
  EXPECT_EQ(status["merged_rows"][0]["to"], 4);
  EXPECT_EQ(status["deltas"]["objects"], 5);
  EXPECT_EQ(status["anchor_rows"][0]["version"], 0);
  EXPECT_GT(status["anchor_rows"][0]["bytes"], 0);
  std::uint64_t bytes = 0;
  const json whole = json::parse(log_command({"status", log(), "--json"}).out);
  ASSERT_EQ(whole["version_rows"].size(), 6U);
  EXPECT_EQ(whole["version_rows"][0]["kind"], "genesis");
  for (const json& row : whole["version_rows"]) {
    bytes += row["delta_bytes"].get<std::uint64_t>();
    EXPECT_DOUBLE_EQ(row["density"], row["changed"].get<double>() / whole["elements"].get<double>());
    EXPECT_EQ(row["kind"] == "delta", row["density"] > 0) << row;
  }
  EXPECT_EQ(bytes, whole["deltas"]["bytes"]);
}

TEST_F(LogCommands, WrongUseIsSaidSo) {
  make_log(1);
  const auto expect_usage = [&](const std::vector<std::string>& arguments) {
    EXPECT_EQ(log_command(arguments).code, kExitUsage) << testing::PrintToString(arguments);
  };
  expect_usage({});
  expect_usage({"status", path("nothing")});
  expect_usage({"publish", log(), weights(2)});
  expect_usage({"publish", log(), "--base", weights(1)});
  expect_usage({"publish", log(), weights(2), "--base", weights(1), "--mirror", path("mirror")});
  expect_usage({"anchor", log()});
  expect_usage({"gc", log(), "--keep-time", "soon"});
  expect_usage({"pull", log()});
  expect_usage({"status", log(), "--trust", "ed25519:00"});
}

TEST(Durations, AreReadAndWritten) {
  using std::chrono::milliseconds;
  EXPECT_EQ(parse_duration("90"), milliseconds(90'000));
  EXPECT_EQ(parse_duration("250ms"), milliseconds(250));
  EXPECT_EQ(parse_duration("1.5h"), milliseconds(5'400'000));
  for (const char* wrong : {"", "h", "-1s", "1 s", "1w", "nan", "inf", "1e300d"}) {
    EXPECT_THROW(parse_duration(wrong), Error) << wrong;
  }
  EXPECT_EQ(human_duration(milliseconds(12'300)), "12 s");
  EXPECT_EQ(human_duration(milliseconds(7'200'000)), "2.0 h");
  EXPECT_EQ(human_duration(milliseconds(-5'000)), "-5 s");
}

}  // namespace
}  // namespace sparsecast::tools
