// SPDX-License-Identifier: Apache-2.0

// Keys that endpoints give (STS, a container's, an instance's), and requests whose keys a server refuses.

#include <gtest/gtest.h>

#include "store/keys_setup.hpp"
#include "store/s3_fault_setup.hpp"
#include "store/s3_keys.hpp"
#include "store/store_contract.hpp"
#include "support/expect_error.hpp"
#include "support/fault_fs.hpp"

namespace sparsecast::test {
namespace {

const char* const kJson = R"({"Code": "Success", "AccessKeyId": "role-key", "SecretAccessKey": "role-secret",
                              "Token": "role-token", "Expiration": "2100-01-01T00:00:00Z"})";
const char* const kXml = R"(<AssumeRoleWithWebIdentityResponse xmlns="https://sts.amazonaws.com/doc/2011-06-15/">
  <AssumeRoleWithWebIdentityResult><Audience>x</Audience><Credentials><SessionToken>role-token</SessionToken>
  <SecretAccessKey>role-secret</SecretAccessKey><Expiration>2100-01-01T00:00:00Z</Expiration>
  <AccessKeyId>role-key</AccessKeyId></Credentials></AssumeRoleWithWebIdentityResult>
  </AssumeRoleWithWebIdentityResponse>)";

const S3Keys kRole{"role-key", "role-secret", "role-token", parse_key_time("2100-01-01T00:00:00Z")};

TEST(S3KeyEndpoints, StsGivesARoleForAWebIdentityWhoseTokenIsReadEachTime) {
  HttpReply reply = http_reply(200, kXml);
  HttpServer sts([&](const HttpQuestion&) { return reply; });
  FaultFileSystem fs;
  fs.put_file("token", "one&1\n");
  const S3Options options = options_of({{"AWS_WEB_IDENTITY_TOKEN_FILE", "token"},
                                        {"AWS_ROLE_ARN", "arn:aws:iam::1:role/a b"},
                                        {"AWS_ROLE_SESSION_NAME", "engine"},
                                        {"AWS_ENDPOINT_URL_STS", sts.endpoint()}},
                                       fs);
  EXPECT_TRUE(sts.questions().empty());
  EXPECT_EQ(options.read_keys(soon()), kRole);
  fs.put_file("token", "two");
  EXPECT_EQ(options.read_keys(soon()), kRole);
  EXPECT_EQ(sts.questions()[0].method, "POST");
  EXPECT_EQ(sts.questions()[0].body,
            "Action=AssumeRoleWithWebIdentity&Version=2011-06-15&RoleArn=arn%3Aaws%3Aiam%3A%3A1%3Arole%2Fa%20b&"
            "RoleSessionName=engine&WebIdentityToken=one%261");
  EXPECT_TRUE(sts.questions()[1].body.ends_with("=two"));
  EXPECT_EQ(sts.questions()[0].header("authorization"), "");

  const auto refused = [&](ErrorCode code, const HttpReply& answer, std::initializer_list<std::string_view> words) {
    reply = answer;
    expect_error(
        code, [&] { options.read_keys(soon()); }, words);
  };
  refused(ErrorCode::kUnauthenticated,
          http_reply(400,
                     "<ErrorResponse><Error><Type>Sender</Type><Code>ExpiredTokenException</Code>"
                     "<Message>Token expired</Message></Error></ErrorResponse>"),
          {sts.endpoint(), "ExpiredTokenException: Token expired"});
  refused(ErrorCode::kIo, http_reply(503, "busy"), {sts.endpoint(), "HTTP 503"});
  refused(ErrorCode::kUnauthenticated, http_reply(200, "<html></html>"), {sts.endpoint(), "<html>"});
  refused(ErrorCode::kIo, http_reply(200, std::string(100'000, 'x')), {"longer than it may be"});
  fs.remove("token");
  expect_error(ErrorCode::kIo, [&] { options.read_keys(soon()); }, {"token"});
}

TEST(S3KeyEndpoints, AContainerGivesItsRole) {
  HttpServer server([](const HttpQuestion&) { return http_reply(200, kJson); });
  FaultFileSystem fs;
  fs.put_file("token", "Bearer x\n");
  Variables variables = {{"AWS_CONTAINER_CREDENTIALS_FULL_URI", server.endpoint() + "/v1?id=2"},
                         {"AWS_CONTAINER_AUTHORIZATION_TOKEN", "not this"},
                         {"AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE", "token"}};
  EXPECT_EQ(options_of(variables, fs).read_keys(soon()), kRole);
  EXPECT_EQ(server.questions()[0].path, "/v1");
  EXPECT_EQ(server.questions()[0].query, "id=2");
  EXPECT_EQ(server.questions()[0].header("authorization"), "Bearer x");
  fs.put_file("token", "a\r\nX-Evil: b");
  expect_error(ErrorCode::kUnauthenticated, [&] { options_of(variables, fs).read_keys(soon()); }, {"token"});
  for (const std::string url : {"http://example.com/x", "ftp://127.0.0.1/x", "http://127.0.0.1@example.com/",
                                "http://127.0.0.1.example.com/"}) {
    variables["AWS_CONTAINER_CREDENTIALS_FULL_URI"] = url;
    expect_error(ErrorCode::kUnauthenticated, [&] { options_of(variables, fs); }, {"FULL_URI"});
  }
}

TEST(S3KeyEndpoints, AnInstanceGivesItsRoleByTheSecondVersionOfItsProtocol) {
  std::string keys = kJson;
  HttpServer metadata([&](const HttpQuestion& question) {
    if (question.method == "PUT") return http_reply(200, "the-token");
    if (question.header("x-aws-ec2-metadata-token") != "the-token") return http_reply(401);
    if (question.path.ends_with("/security-credentials/")) return http_reply(200, "my role\n");
    return question.path.ends_with("/security-credentials/my%20role") ? http_reply(200, keys) : http_reply(404);
  });
  FaultFileSystem fs;
  const Variables variables = {{"AWS_EC2_METADATA_SERVICE_ENDPOINT", metadata.endpoint() + "/"}};
  const S3Options options = options_of(variables, fs);
  EXPECT_EQ(options.read_keys(soon()), kRole);
  EXPECT_EQ(metadata.questions()[0].path, "/latest/api/token");
  EXPECT_EQ(metadata.questions()[0].header("x-aws-ec2-metadata-token-ttl-seconds"), "21600");
  // Old keys of an instance hold on while its service is out of order.
  keys.replace(keys.find("2100"), 4, "2020");
  const S3Keys old = options.read_keys(soon());
  EXPECT_GT(old.expires, std::chrono::system_clock::now() + std::chrono::minutes(16));
  EXPECT_LT(old.expires, std::chrono::system_clock::now() + std::chrono::minutes(26));
}

TEST(S3KeyEndpoints, AMachineWithoutARoleIsToldWhereKeysComeFrom) {
  HttpServer metadata([](const HttpQuestion&) { return http_reply(404); });
  FaultFileSystem fs;
  S3Options options = options_of({{"AWS_EC2_METADATA_SERVICE_ENDPOINT", metadata.endpoint()}}, fs);
  options.endpoint = metadata.endpoint();
  expect_error(ErrorCode::kUnauthenticated, [&] { open_s3_store(options)->get("a", 1); },
               {"s3://bucket/some/prefix/a", "AWS_ACCESS_KEY_ID", metadata.endpoint(), "HTTP 404", "1 attempt"});
}

/// A bucket that takes one key alone, and a source that gives the next one.
struct ChangingKeys {
  FakeBucket bucket;
  std::string good = "key-1";
  std::string code = "ExpiredToken";
  HttpServer server{[this](const HttpQuestion& question) {
    if (question.header("authorization").find("Credential=" + good + "/") != std::string::npos) return bucket(question);
    return question.method == "HEAD" ? http_reply(400) : s3_error_reply(400, code);
  }};
  int reads = 0;
  std::function<S3Keys()> next = [this] { return S3Keys{key_of_now(), "secret", "token", std::nullopt}; };

  std::string key_of_now() const { return "key-" + std::to_string(reads); }
  std::unique_ptr<ObjectStore> open() {
    S3Options options = impatient(server, std::chrono::seconds(20));
    options.access_key = options.secret_key = options.session_token = "";
    options.read_keys = [this](std::chrono::steady_clock::time_point) {
      ++reads;
      return next();
    };
    return open_s3_store(options);
  }
};

TEST(S3KeyEndpoints, ARequestWhoseKeysAreRefusedIsRepeatedWithNewOnes) {
  ChangingKeys keys;
  const auto store = keys.open();
  EXPECT_TRUE(store->put_if_absent("a", bytes_of_text("x")));
  EXPECT_EQ(keys.reads, 1);
  keys.good = "key-2";
  EXPECT_EQ(text_of(store->get("a", 1)), "x");
  keys.good = "key-3";
  EXPECT_EQ(store->size("a"), 1) << "an answer to HEAD has no code";
  keys.good = "key-4";
  keys.code = "InvalidAccessKeyId";
  store->put("b", bytes_of_text("y"));
  EXPECT_EQ(keys.reads, 4);
  EXPECT_EQ(keys.server.questions().back().header("x-amz-security-token"), "token");
}

TEST(S3KeyEndpoints, KeysAreReadAgainOnceForARequest) {
  ChangingKeys keys;
  const auto store = keys.open();
  keys.good = "none";
  expect_error(ErrorCode::kUnauthenticated, [&] { store->get("a", 1); }, {"ExpiredToken", "1 attempt"});
  EXPECT_EQ(keys.reads, 2);
  EXPECT_EQ(keys.server.questions().size(), 2U);
  keys.next = [] { return S3Keys{"key-2", "secret", "token", std::nullopt}; };
  expect_error(ErrorCode::kUnauthenticated, [&] { store->get("a", 1); }, {"ExpiredToken"});
  EXPECT_EQ(keys.server.questions().size(), 3U) << "the same keys are not sent again";
  keys.next = []() -> S3Keys { throw Error(ErrorCode::kUnauthenticated, "it says no", "the source"); };
  expect_error(ErrorCode::kUnauthenticated, [&] { store->get("a", 1); }, {"ExpiredToken", "the source: it says no"});
}

TEST(S3KeyEndpoints, ASourceThatMayComeBackIsAskedAgain) {
  ChangingKeys keys;
  keys.good = "key-3";
  keys.next = [&] {
    if (keys.reads < 3) throw Error(ErrorCode::kIo, "out of order", "the source");
    return S3Keys{keys.key_of_now(), "secret", "", std::nullopt};
  };
  EXPECT_EQ(keys.open()->get("a", 1), std::nullopt);
  EXPECT_EQ(keys.reads, 3);
}

}  // namespace
}  // namespace sparsecast::test
