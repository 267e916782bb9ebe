// SPDX-License-Identifier: Apache-2.0

// Keys of S3: the order of sources, their answers, and when they are read again, by a clock of the test.

#include "store/s3_keys.hpp"

#include <gtest/gtest.h>

#include <atomic>
#include <future>

#include "store/keys_setup.hpp"
#include "support/expect_error.hpp"
#include "support/fault_fs.hpp"

namespace sparsecast::test {
namespace {

using std::chrono::minutes;
using std::chrono::system_clock;

constexpr system_clock::time_point kStart{std::chrono::hours(500'000)};

/// A source whose answers a test sets, and a clock that it moves.
struct Source {
  system_clock::time_point now = kStart;
  S3Keys next{"first", "secret", "token", kStart + minutes(60)};
  std::optional<ErrorCode> failure;
  int reads = 0;
  S3KeyRing ring{{},
                 [this](std::chrono::steady_clock::time_point) {
                   ++reads;
                   if (failure) throw Error(*failure, "the source fails", "source");
                   return next;
                 },
                 [this] { return now; }};

  std::string key() { return ring.current(soon()).access_key; }
};

TEST(S3Keys, AreReadOnceAndAgainFromAQuarterOfAnHourBeforeTheyEnd) {
  Source source;
  EXPECT_EQ(source.key(), "first");
  source.now += minutes(45);
  EXPECT_EQ(source.key(), "first");
  EXPECT_EQ(source.reads, 1) << "15 minutes are left";
  source.next = {"second", "secret", "token", kStart + minutes(120)};
  source.now += std::chrono::seconds(1);
  EXPECT_EQ(source.key(), "second");
  EXPECT_EQ(source.reads, 2);
  EXPECT_EQ(source.key(), "second");
  EXPECT_EQ(source.reads, 2);
}

TEST(S3Keys, ThatCannotBeReadAgainServeUntilTenMinutesBeforeTheyEnd) {
  Source source;
  source.key();
  source.failure = ErrorCode::kUnauthenticated;
  source.now += minutes(50);
  EXPECT_EQ(source.key(), "first");
  EXPECT_EQ(source.reads, 2);
  source.now += std::chrono::seconds(1);
  expect_error(ErrorCode::kUnauthenticated, [&] { source.key(); }, {"source", "fails"});
  source.failure.reset();
  source.next.expires = kStart + minutes(200);
  EXPECT_EQ(source.key(), "first") << "the source is back";
}

TEST(S3Keys, ThatHaveEndedWhenTheyAreReadAreRefused) {
  Source source;
  source.next.expires = kStart;
  expect_error(ErrorCode::kUnauthenticated, [&] { source.key(); }, {"expired already"});
  source.next = {"a b", "secret", "", std::nullopt};
  EXPECT_EQ(words_of([&] { source.key(); }).find("a b"), std::string::npos);
}

TEST(S3Keys, WithoutAnEndAreReadAgainOnlyWhenTheyAreRefused) {
  Source source;
  source.next.expires.reset();
  const S3Keys old = source.ring.current(soon());
  source.now += std::chrono::hours(100'000);
  EXPECT_EQ(source.key(), "first");
  EXPECT_EQ(source.reads, 1);
  EXPECT_FALSE(source.ring.replace(old, soon())) << "the source has no others";
  source.next.secret_key = "other";
  EXPECT_TRUE(source.ring.replace(old, soon()));
  EXPECT_TRUE(source.ring.replace(old, soon())) << "another request has read them meanwhile";
  EXPECT_EQ(source.reads, 3);
  S3KeyRing fixed(old, nullptr);
  EXPECT_EQ(fixed.current(soon()), old);
  EXPECT_FALSE(fixed.replace(old, soon()));
}

/// While one thread reads the keys, others go on with the old ones, or wait where these end within ten minutes.
TEST(S3Keys, OneThreadReadsThem) {
  std::atomic<system_clock::rep> now{kStart.time_since_epoch().count()};
  std::promise<void> go;
  std::promise<void> reading;
  std::atomic<int> reads{0};
  S3KeyRing ring(
      {},
      [&](std::chrono::steady_clock::time_point) {
        if (reads++ == 0) return S3Keys{"first", "secret", "", kStart + minutes(60)};
        reading.set_value();
        go.get_future().wait();
        return S3Keys{"second", "secret", "", kStart + minutes(600)};
      },
      [&] { return system_clock::time_point(system_clock::duration(now)); });
  ring.current(soon());
  now = (kStart + minutes(46)).time_since_epoch().count();
  auto reader = std::async(std::launch::async, [&] { return ring.current(soon()).access_key; });
  reading.get_future().wait();
  EXPECT_EQ(ring.current(soon()).access_key, "first");
  now = (kStart + minutes(51)).time_since_epoch().count();
  expect_error(ErrorCode::kTimeout, [&] { ring.current(std::chrono::steady_clock::now()); }, {"another request"});
  auto waiter = std::async(std::launch::async, [&] { return ring.current(soon()).access_key; });
  go.set_value();
  EXPECT_EQ(waiter.get(), "second");
  EXPECT_EQ(reader.get(), "second");
  EXPECT_EQ(reads, 2);
}

const Variables kFiles = {
    {"AWS_SHARED_CREDENTIALS_FILE", "cred"}, {"AWS_CONFIG_FILE", "conf"}, {"AWS_EC2_METADATA_DISABLED", "true"}};

Variables with_files(Variables more) {
  more.insert(kFiles.begin(), kFiles.end());
  return more;
}

TEST(S3KeySources, AFileIsReadAgain) {
  FaultFileSystem fs;
  fs.put_file("cred", "[default]\naws_access_key_id = a\naws_secret_access_key = b\naws_session_token = c\n");
  const S3Options options = options_of(kFiles, fs);
  EXPECT_EQ(options.access_key, "a");
  fs.put_file("cred", "[default]\naws_access_key_id = d\naws_secret_access_key = e\n");
  EXPECT_EQ(options.read_keys(soon()), (S3Keys{"d", "e", "", std::nullopt}));
  fs.put_file("cred", "[default]\n");
  expect_error(ErrorCode::kUnauthenticated, [&] { options.read_keys(soon()); }, {"profile 'default' of cred", "gone"});
}

TEST(S3KeySources, AProcessComesAfterTheCredentialsFileAndBeforeTheConfigFile) {
  FaultFileSystem fs;
  const std::string keys = "aws_access_key_id = a\naws_secret_access_key = b\n";
  fs.put_file("conf", "[default]\n" + keys +
                          "credential_process = printf "
                          "'{\"Version\": 1, \"AccessKeyId\": \"%s\", \"SecretAccessKey\": \"s\", \"Expiration\": "
                          "\"2030-01-01T01:00:00+01:00\"}' \"made up\"-\\k\n");
  S3Options options = options_of(kFiles, fs);
  EXPECT_EQ(options.access_key, "") << "no process is asked before the first request";
  expect_error(ErrorCode::kUnauthenticated, [&] { options.read_keys(soon()); }, {"profile 'default'", "blanks"});
  fs.put_file("conf", "[default]\n" + keys +
                          "credential_process = printf "
                          "'{\"AccessKeyId\": \"%s\", \"SecretAccessKey\": \"s\", \"Expiration\": "
                          "\"2030-01-01T01:00:00+01:00\"}' \"made\"-\\k\n");
  const S3Keys made = options_of(kFiles, fs).read_keys(soon());
  EXPECT_EQ(made.access_key, "made-k");
  EXPECT_EQ(made.expires, parse_key_time("2030-01-01T00:00:00Z"));
  fs.put_file("cred", "[default]\n" + keys);
  EXPECT_EQ(options_of(kFiles, fs).access_key, "a");
}

TEST(S3KeySources, AProcessThatFailsIsNamedWithItsProfile) {
  FaultFileSystem fs;
  const auto refused = [&](const std::string& command, std::initializer_list<std::string_view> words) {
    fs.put_file("conf", "[profile ml]\ncredential_process = " + command + "\n");
    Variables variables = kFiles;
    variables["AWS_PROFILE"] = "ml";
    const S3Options options = options_of(variables, fs);
    expect_error(
        ErrorCode::kUnauthenticated, [&] { options.read_keys(soon()); }, words);
  };
  refused("false", {"credential_process of profile 'ml'", "status 1"});
  refused("/no/such/program", {"/no/such/program", "cannot be run"});
  refused("echo hidden", {"profile 'ml'", "no object of JSON"});
  refused("head -c 100000 /dev/zero", {"more than 65536 bytes"});
  refused("echo 'hidden", {"quote"});
  fs.put_file("conf", "[default]\ncredential_process = sleep 60\n");
  const S3Options slow = options_of(kFiles, fs);
  expect_error(ErrorCode::kTimeout, [&] { slow.read_keys(std::chrono::steady_clock::now()); }, {"did not end"});
}

TEST(S3KeySources, SourcesThatAreNotAskedAreRefusedWithACure) {
  for (const std::string setting : {"role_arn = arn\nsource_profile = x", "sso_account_id = 1", "login_session = x"}) {
    FaultFileSystem fs;
    fs.put_file("conf", "[profile ml]\n" + setting + "\n");
    expect_error(ErrorCode::kUnsupported,
                 [&] {
                   options_of(with_files({{"AWS_PROFILE", "ml"}}), fs);
                 },
                 {"'ml'", setting.substr(0, setting.find(' ')), "export-credentials --profile ml"});
    EXPECT_EQ(
        options_of(with_files({{"AWS_PROFILE", "ml"}, {"AWS_ACCESS_KEY_ID", "a"}, {"AWS_SECRET_ACCESS_KEY", "b"}}), fs)
            .access_key,
        "a");
  }
  FaultFileSystem fs;
  expect_error(ErrorCode::kUnauthenticated,
               [&] {
                 options_of(with_files({{"AWS_WEB_IDENTITY_TOKEN_FILE", "t"}}), fs);
               },
               {"t", "AWS_ROLE_ARN"});
  expect_error(ErrorCode::kUnauthenticated, [&] { options_of(kFiles, fs); }, {"AWS_ACCESS_KEY_ID"});
}

TEST(S3KeySources, AnswersThatAreNoneAreRefusedWithoutTheirKeys) {
  for (const std::string text :
       {"", "[]", "hidden", R"({"AccessKeyId": "hidden"})", R"({"AccessKeyId": 1, "SecretAccessKey": "hidden"})",
        R"({"AccessKeyId": "hidden", "SecretAccessKey": "hid den"})",
        R"({"AccessKeyId": "hidden", "SecretAccessKey": "b", "Expiration": "tomorrow"})"}) {
    SCOPED_TRACE(text);
    const std::string words = words_of([&] { parse_json_keys(text); });
    EXPECT_FALSE(words.empty());
    EXPECT_EQ(words.find("hid"), std::string::npos) << words;
  }
  expect_error(ErrorCode::kUnauthenticated, [] { parse_json_keys(R"({"Code": "AssumeRoleUnauthorizedAccess"})"); },
               {"AssumeRoleUnauthorizedAccess"});
  for (const std::string time : {"", "+01:00", "2030-01-01T00:00:00", "2030-01-01T00:00:00+0100",
                                 "2030-01-01T00:00:00+24:00", "2030-01-01T00:00:00*01:00"}) {
    EXPECT_THROW(parse_key_time(time), Error) << time;
  }
}

TEST(S3KeySources, CommandsAreSplitAsByAShell) {
  using Words = std::vector<std::string>;
  EXPECT_EQ(split_command(" a  b\tc "), (Words{"a", "b", "c"}));
  EXPECT_EQ(split_command(R"("a b"'c "d'e '' x\ y "\"\\\n")"), (Words{"a bc \"de", "", "x y", "\"\\\\n"}));
  EXPECT_EQ(split_command(R"('a\b' $HOME *)"), (Words{"a\\b", "$HOME", "*"}));
  for (const std::string text : {"", "  ", "'a", "a \"b", "''"}) EXPECT_THROW(split_command(text), Error) << text;
}

}  // namespace
}  // namespace sparsecast::test
