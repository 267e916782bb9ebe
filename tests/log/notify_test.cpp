// SPDX-License-Identifier: Apache-2.0

// Notifications: what is told, when, and again when it failed.

#include <gmock/gmock.h>

#include <latch>
#include <nlohmann/json.hpp>
#include <thread>

#include "support/expect_error.hpp"
#include "support/follow_scene.hpp"
#include "support/temporary_directory.hpp"
#ifdef SPARSECAST_HAVE_CURL
#include "support/http_server.hpp"
#endif

namespace sparsecast::test {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

constexpr const FollowedCheckpoint& kHow = kFollowedCheckpoints[1];

class Notifications : public testing::Test {
 protected:
  Notifications() {
    fs_.make_directory("/d");
    kHow.put(fs_, scene_.model().checkpoint(0));
    scene_.publish_to(2);
  }
  std::string told() {
    FileSystem& fs = FileSystem::posix();
    const std::string path = directory_ / "told";
    if (!fs.exists(path)) return "";
    const std::vector<std::byte> bytes = read_file(fs, path);
    return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
  }
  FollowerOptions shell(const std::string& script) {
    FollowerOptions options;
    options.notify.command = {"/bin/sh", "-c", "cd " + directory_.path() + " && " + script};
    options.notify.timeout = std::chrono::seconds(60);
    return options;
  }
  std::string line(std::uint64_t version) {
    return std::to_string(version) + " " + to_hex(scene_.digest(version).value) + " " +
           to_hex(scene_.model().stream()) + "\n";
  }
  static constexpr const char* kTell = "echo $SPARSECAST_VERSION $SPARSECAST_DIGEST $SPARSECAST_STREAM >> told";

  TemporaryDirectory directory_;
  FollowScene scene_;
  FaultFileSystem fs_;
};

TEST_F(Notifications, ACommandGetsTheVersionInItsEnvironment) {
  LogFollower follower = kHow.follower(scene_, fs_, shell(kTell));
  follower.step();
  EXPECT_EQ(told(), line(2)) << "once a step";
  follower.step();
  EXPECT_EQ(told(), line(2)) << "nothing new, nothing told";
  scene_.publish_to(3);
  follower.step();
  EXPECT_EQ(told(), line(2) + line(3));
}

TEST_F(Notifications, EveryVersionIsToldWhenEachIsWanted) {
  FollowerOptions options = shell(kTell);
  options.every_version = true;
  kHow.follower(scene_, fs_, options).step();
  EXPECT_EQ(told(), line(1) + line(2));
}

TEST_F(Notifications, ArgumentsAreNotReadByAShell) {
  FollowerOptions options;
  const std::string path = directory_ / "$(false); told";
  options.notify.command = {"touch", path};
  kHow.follower(scene_, fs_, options).step();
  EXPECT_TRUE(FileSystem::posix().exists(path));
}

TEST_F(Notifications, AFailedOneComesFirstInTheNextStep) {
  LogFollower follower = kHow.follower(scene_, fs_, shell(std::string("test -e ready && ") + kTell));
  expect_error(ErrorCode::kIo, [&] { follower.step(); }, {"/bin/sh", "status 1"});
  EXPECT_EQ(follower.version(), 2U);
  scene_.publish_to(3);
  expect_error(ErrorCode::kIo, [&] { follower.step(); });
  EXPECT_EQ(follower.version(), 2U) << "what was not told about is not replaced";
  FileSystem::posix().make_directory(directory_ / "ready");
  follower.step();
  EXPECT_EQ(told(), line(2) + line(3));
}

TEST_F(Notifications, AFailedOneIsToldByTheNextProcess) {
  expect_error(ErrorCode::kIo, [&] { kHow.follower(scene_, fs_, shell("false")).step(); });
  kHow.follower(scene_, fs_, shell(kTell)).step();
  EXPECT_EQ(told(), line(2));
}

TEST_F(Notifications, AVersionThatACrashHidIsTold) {
  // The version was applied, and neither written down nor told.
  expect_error(ErrorCode::kIo, [&] { kHow.follower(scene_, fs_, shell("false")).step(1); });
  const std::string state = fs_.content(kHow.state_path()).value();
  expect_error(ErrorCode::kIo, [&] { kHow.follower(scene_, fs_, shell("false")).step(1); });
  fs_.put_file(kHow.state_path(), state);
  kHow.follower(scene_, fs_, shell(kTell)).step(1);
  EXPECT_EQ(told(), line(1));
}

TEST_F(Notifications, AVersionThatWasThereFromTheBeginningIsNotTold) {
  kHow.follower(scene_, fs_, shell(kTell)).step(0);
  EXPECT_EQ(told(), "");
}

TEST_F(Notifications, ACommandThatHangsIsEndedWithAllThatItStarted) {
  FollowerOptions options = shell("{ sleep 600 & echo $! > told; wait; }");
  options.notify.timeout = std::chrono::milliseconds(2000);
  expect_error(ErrorCode::kTimeout, [&] { kHow.follower(scene_, fs_, options).step(); }, {"2000 ms"});
  const std::string child = told();
  ASSERT_FALSE(child.empty());
  bool there = true;
  for (int i = 0; i < 500 && there; ++i) {
    // A zombie that nobody has waited for yet is ended, too.
    const std::string process = "/proc/" + child.substr(0, child.size() - 1);
    if (!FileSystem::posix().exists(process)) there = false;
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
    if (there) {
      std::string stat(64, '\0');
      FILE* file = std::fopen((process + "/stat").c_str(), "r");
      if (file == nullptr) break;
      stat.resize(std::fread(stat.data(), 1, stat.size(), file));
      std::fclose(file);
      there = stat.find(") Z") == std::string::npos;
    }
  }
  EXPECT_FALSE(there);
}

TEST_F(Notifications, AProgramThatIsNotThereIsSaid) {
  FollowerOptions options;
  options.notify.command = {"/nowhere/program"};
  expect_error(ErrorCode::kIo, [&] { kHow.follower(scene_, fs_, options).step(); },
               {"/nowhere/program", "No such file"});
}

TEST_F(Notifications, JsonThatIsNoObjectIsRefusedAtOnce) {
  FollowerOptions options;
  options.notify.url = "http://127.0.0.1:1/";
  for (const char* json : {"[]", "3", "{", ""}) {
    options.notify.json = json;
    expect_error(ErrorCode::kUsage, [&] { kHow.follower(scene_, fs_, options); });
  }
}

#ifdef SPARSECAST_HAVE_CURL
TEST_F(Notifications, AnEngineIsToldByHttp) {
  int answer = 503;
  HttpServer server([&](const HttpQuestion&) { return http_reply(answer, "{}"); });
  FollowerOptions options;
  options.notify.url = server.endpoint() + "/update_weights_from_disk";
  options.notify.json = R"({"model_path":"/d/live"})";
  options.notify.timeout = std::chrono::seconds(2);
  LogFollower follower = kHow.follower(scene_, fs_, options);
  EXPECT_NE(words_of([&] { follower.step(); }), "");
  answer = 200;
  follower.step();
  const HttpQuestion question = server.questions().back();
  EXPECT_EQ(question.method, "POST");
  EXPECT_EQ(question.path, "/update_weights_from_disk");
  const auto body = nlohmann::json::parse(question.body);
  EXPECT_EQ(body, (nlohmann::json{{"model_path", "/d/live"},
                                  {"version", 2},
                                  {"digest", to_hex(scene_.digest(2).value)},
                                  {"stream", to_hex(scene_.model().stream())}}));
}
#endif

class FollowLoop : public Notifications {};

TEST_F(FollowLoop, GoesOnAfterWhatMayPassUntilItIsStopped) {
  FollowerOptions options;
  std::vector<std::string> notes;
  options.note = [&](const std::string& sentence) { notes.push_back(sentence); };
  LogFollower follower = kHow.follower(scene_, fs_, options);
  int failures = 2;
  scene_.store().before = [&](const std::string&, const std::string& key) {
    if (failures-- > 0) throw Error(ErrorCode::kTimeout, "the store is silent", key);
  };
  std::vector<std::uint64_t> versions;
  follower.follow(std::chrono::milliseconds(1), [&](const FollowReport& report) {
    versions.push_back(report.version);
    if (report.version == 4) {
      follower.stop();
    } else {
      scene_.publish_to(4);
    }
  });
  EXPECT_THAT(versions, ElementsAre(2, 4));
  ASSERT_EQ(notes.size(), 2U);
  EXPECT_THAT(notes.front(), HasSubstr("the store is silent"));
}

TEST_F(FollowLoop, EndsWithAnErrorThatNeedsAPerson) {
  LogFollower follower = kHow.follower(scene_, fs_);
  const auto old = scene_.store().objects();
  scene_.publish_to(4);
  follower.step();
  scene_.store().set_objects(old);
  expect_error(ErrorCode::kRolledBack, [&] { follower.follow(std::chrono::milliseconds(1)); });
}

TEST_F(FollowLoop, IsStoppedFromAnotherThread) {
  LogFollower follower = kHow.follower(scene_, fs_);
  std::latch stepped(1);
  std::jthread stopper([&] {
    stepped.wait();
    follower.stop();
  });
  follower.follow(std::chrono::hours(1), [&](const FollowReport&) { stepped.count_down(); });
  EXPECT_EQ(follower.version(), 2U);
}

}  // namespace
}  // namespace sparsecast::test
