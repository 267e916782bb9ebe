// SPDX-License-Identifier: Apache-2.0

// The S3 store on servers that fail: each call ends right or with a clear error, by its deadline.

#include <gtest/gtest.h>

#include "store/s3_fault_setup.hpp"
#include "store/store_contract.hpp"
#include "support/expect_error.hpp"

namespace sparsecast::test {
namespace {

using std::chrono::milliseconds;

TEST(S3Faults, AFakeBucketKeepsTheContractOfStores) {
  FaultyBucket faulty;
  faulty.faults = 0;
  EXPECT_EQ(faulty.open()->location(), "s3://bucket");
  const auto store = faulty.open();
  store->put("a", bytes_of_text("x"));
  EXPECT_EQ(text_of(store->get("a", 1)), "x");
  EXPECT_TRUE(store->put_if_absent("b", bytes_of_text("y")));
  EXPECT_FALSE(store->put_if_absent("b", bytes_of_text("y")));
  EXPECT_EQ(store->list("").size(), 2U);
}

TEST(S3Faults, WhatMayPassIsTriedAgain) {
  for (const auto& [status, code] : std::vector<std::pair<int, std::string>>{{503, "SlowDown"},
                                                                             {500, "InternalError"},
                                                                             {502, "BadGateway"},
                                                                             {504, "GatewayTimeout"},
                                                                             {429, "TooManyRequests"},
                                                                             {408, "RequestTimeout"},
                                                                             {400, "RequestTimeout"},
                                                                             {400, "IncompleteBody"},
                                                                             {409, "ConditionalRequestConflict"}}) {
    SCOPED_TRACE(code);
    FaultyBucket faulty;
    faulty.method = "PUT";
    faulty.faults = 2;
    faulty.fault = always(s3_error_reply(status, code));
    EXPECT_TRUE(faulty.open()->put_if_absent("a", bytes_of_text("x")));
    EXPECT_EQ(faulty.asked(), 3);
  }
}

TEST(S3Faults, WhatDoesNotPassEndsWithTheServersWordsByTheDeadline) {
  FaultyBucket faulty;
  faulty.method = "PUT";
  faulty.faults = kEveryTime;
  faulty.fault = always(s3_error_reply(503, "SlowDown"));
  expect_error(ErrorCode::kIo, [&] { faulty.open(milliseconds(3000))->put("a", {}); },
               {"s3://bucket/a", "PUT", "HTTP 503 SlowDown: as the test wants it", "attempts"});
  EXPECT_GE(faulty.asked(), 2);
}

TEST(S3Faults, WhatCannotPassIsNotTriedAgain) {
  for (const auto& [status, code] : std::vector<std::pair<int, ErrorCode>>{{403, ErrorCode::kUnauthenticated},
                                                                           {401, ErrorCode::kUnauthenticated},
                                                                           {400, ErrorCode::kIo},
                                                                           {404, ErrorCode::kIo},
                                                                           {409, ErrorCode::kIo},
                                                                           {501, ErrorCode::kIo}}) {
    FaultyBucket faulty;
    faulty.method = "PUT";
    faulty.fault = always(s3_error_reply(status, "ThisCode"));
    expect_error(code, [&] { faulty.open()->put("a", {}); }, {std::to_string(status), "ThisCode"});
    EXPECT_EQ(faulty.asked(), 1);
  }
}

TEST(S3Faults, RedirectsAreToldAndNotFollowed) {
  FaultyBucket faulty;
  FaultyBucket other;
  faulty.fault =
      always(http_reply(301, "<Error><Code>PermanentRedirect</Code></Error>",
                        "Location: " + other.server.endpoint() + "/bucket/a\r\nx-amz-bucket-region: eu-north-1\r\n"));
  expect_error(ErrorCode::kIo, [&] { faulty.open()->get("a", 1); }, {"301 PermanentRedirect", "eu-north-1"});
  EXPECT_TRUE(other.server.questions().empty());
}

TEST(S3Faults, WhatAnotherServerLacksIsNoAbsentObject) {
  FaultyBucket faulty;
  faulty.fault = always(http_reply(404, "<html><body>no such page</body></html>"));
  expect_error(ErrorCode::kIo, [&] { faulty.open()->get("a", 1); }, {"HTTP 404"});
  faulty.faults = 1;
  faulty.fault = always(s3_error_reply(404, "NoSuchBucket"));
  expect_error(ErrorCode::kIo, [&] { faulty.open()->get("a", 1); }, {"NoSuchBucket"});
}

TEST(S3Faults, NoServerIsAnError) {
  std::string endpoint;
  {
    const HttpServer gone([](const HttpQuestion&) { return HttpReply{}; });
    endpoint = gone.endpoint();
  }
  FaultyBucket faulty;
  S3Options options = impatient(faulty.server, milliseconds(3000));
  options.endpoint = endpoint;
  expect_error(ErrorCode::kIo, [&] { open_s3_store(options)->get("a", 1); }, {"s3://bucket/a", "connect", "attempts"});
}

TEST(S3Faults, AServerThatIsSilentIsATimeout) {
  FaultyBucket faulty;
  faulty.faults = kEveryTime;
  HttpReply silence = http_reply(200);
  silence.bytes.resize(10);
  silence.stall = true;
  faulty.fault = always(silence);
  expect_error(ErrorCode::kTimeout, [&] { faulty.open(milliseconds(1500))->get("a", 1); }, {"s3://bucket/a"});
}

TEST(S3Faults, AStallIsTriedAgain) {
  FaultyBucket faulty;
  faulty.bucket.objects["/bucket/a"] = {"the content", "", 1, 0};
  faulty.fault = [](const HttpQuestion& question, FakeBucket& bucket) {
    HttpReply reply = bucket(question);
    reply.bytes.resize(reply.bytes.size() - 3);
    reply.stall = true;
    return reply;
  };
  EXPECT_EQ(text_of(faulty.open()->get("a", 100)), "the content");
  EXPECT_EQ(faulty.asked(), 2);
}

TEST(S3Faults, ABodyThatWasCutShortIsReadAgain) {
  FaultyBucket faulty;
  faulty.bucket.objects["/bucket/a"] = {"the content", "", 1, 0};
  faulty.faults = 2;
  faulty.fault = [](const HttpQuestion& question, FakeBucket& bucket) {
    HttpReply reply = bucket(question);
    reply.bytes.resize(reply.bytes.size() - 3);
    reply.close = true;
    return reply;
  };
  EXPECT_EQ(text_of(faulty.open()->get("a", 100)), "the content");
  Bytes part(7);
  faulty.faults = 1;
  faulty.open()->get_range("a", 4, part);
  EXPECT_EQ(text_of(part), "content");
  faulty.faults = kEveryTime;
  expect_error(ErrorCode::kIo, [&] { faulty.open(milliseconds(3000))->get("a", 100); }, {"s3://bucket/a", "attempts"});
}

TEST(S3Faults, AnotherRangeThanAskedForIsRefused) {
  for (const std::string range : {"bytes 1-4/11", "bytes 0-9/11", "bytes 0-10/*", "bytes 0-10", "bytes 10-0/11",
                                  "0-10/11", "bytes 0-10/5", "bytes -1-9/11", ""}) {
    SCOPED_TRACE(range);
    FaultyBucket faulty;
    faulty.fault = always(http_reply(206, "the content", "ETag: \"1\"\r\nContent-Range: " + range + "\r\n"));
    expect_error(ErrorCode::kIo, [&] { faulty.open()->get("a", 100); }, {"s3://bucket/a", "understood"});
    faulty.faults = 1;
    Bytes part(11);
    expect_error(ErrorCode::kIo, [&] { faulty.open()->get_range("a", 0, part); }, {"understood"});
  }
}

TEST(S3Faults, AServerWithoutRangesIsRefusedWhereTheyMatter) {
  FaultyBucket faulty;
  faulty.faults = kEveryTime;
  faulty.fault = always(http_reply(200, "the content"));
  EXPECT_EQ(text_of(faulty.open()->get("a", 100)), "the content");
  Bytes part(7);
  expect_error(ErrorCode::kIo, [&] { faulty.open()->get_range("a", 4, part); });
}

TEST(S3Faults, AnswersWithoutAnEndAreCutOff) {
  const HttpReply endless{"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n", false, false,
                          "10000\r\n" + std::string(0x10000, 'x') + "\r\n"};
  HttpReply endless_error = endless;
  endless_error.bytes.replace(9, 6, "403 No");
  HttpReply endless_head{"HTTP/1.1 200 OK\r\n", false, false, "X-More: and more\r\n"};
  for (const HttpReply& reply : {endless, endless_error, endless_head}) {
    SCOPED_TRACE(reply.bytes);
    FaultyBucket faulty;
    faulty.faults = kEveryTime;
    faulty.fault = always(reply);
    expect_error(ErrorCode::kIo, [&] { faulty.open()->get("a", 1000); }, {"s3://bucket/a"});
    expect_error(ErrorCode::kIo, [&] { faulty.open()->list(""); }, {"s3://bucket"});
    EXPECT_LE(faulty.asked(), 2 + 40);
  }
}

TEST(S3Faults, ListingsThatCannotBeRightAreRefused) {
  const std::string object = "<Contents><Key>k</Key><Size>1</Size><LastModified>2026-01-02T03:04:05Z</LastModified>";
  for (const std::string& xml :
       {std::string("no xml"), std::string("<Other/>"), std::string("<ListBucketResult/>"),
        std::string("<ListBucketResult><IsTruncated>true</IsTruncated></ListBucketResult>"),
        std::string("<ListBucketResult><IsTruncated>true</IsTruncated><NextContinuationToken>same"
                    "</NextContinuationToken></ListBucketResult>"),
        "<ListBucketResult>" + object + "<IsTruncated>false</IsTruncated></ListBucketResult>",
        "<ListBucketResult>" + object + "</Contents><IsTruncated>false</IsTruncated></ListBucketResult>"}) {
    SCOPED_TRACE(xml);
    FaultyBucket faulty;
    faulty.faults = kEveryTime;
    faulty.fault = always(http_reply(200, xml));
    expect_error(ErrorCode::kIo, [&] { faulty.open()->list("other/"); }, {"s3://bucket", "understood"});
  }
}

TEST(S3Faults, NoErrorHoldsASecret) {
  for (const HttpReply& reply : {s3_error_reply(403, "SignatureDoesNotMatch"), http_reply(400, "the-secret-key"),
                                 http_reply(302, "", "Location: http://elsewhere\r\n"), http_reply(200, "no xml")}) {
    FaultyBucket faulty;
    faulty.faults = kEveryTime;
    faulty.fault = always(reply);
    const std::string words = words_of([&] { faulty.open()->list(""); });
    EXPECT_FALSE(words.empty());
    for (const std::string secret : {"the-access-key", "the-secret-key", "the-session-token"}) {
      EXPECT_EQ(words.find(secret), std::string::npos) << words;
    }
  }
}

TEST(S3Faults, RequestsAreSignedWithTheirTokenAndContent) {
  FaultyBucket faulty;
  faulty.faults = 0;
  faulty.open()->put("a", bytes_of_text("abc"));
  const HttpQuestion question = faulty.server.questions().at(0);
  EXPECT_EQ(question.header("x-amz-content-sha256"),
            "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
  EXPECT_EQ(question.header("x-amz-security-token"), "the-session-token");
  const std::string authorization = question.header("authorization");
  for (const std::string part : {"AWS4-HMAC-SHA256 Credential=the-access-key/", "/us-east-1/s3/aws4_request",
                                 "host;x-amz-content-sha256;x-amz-date;x-amz-security-token", "Signature="}) {
    EXPECT_NE(authorization.find(part), std::string::npos) << authorization;
  }
  S3Options anonymous = impatient(faulty.server, milliseconds(5000));
  anonymous.anonymous = true;
  open_s3_store(anonymous)->get("a", 10);
  EXPECT_EQ(faulty.server.questions().back().header("authorization"), "");
  EXPECT_EQ(faulty.server.questions().back().header("x-amz-security-token"), "");
}

}  // namespace
}  // namespace sparsecast::test
