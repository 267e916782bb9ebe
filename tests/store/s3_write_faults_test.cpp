// SPDX-License-Identifier: Apache-2.0

// Writes to S3 whose replies are lost, that are refused half-way, or that a server only seems to honour.

#include <gtest/gtest.h>

#include <atomic>

#include "store/s3_fault_setup.hpp"
#include "store/store_contract.hpp"
#include "support/expect_error.hpp"

namespace sparsecast::test {
namespace {

using std::chrono::milliseconds;

TEST(S3Creation, OfWhichTheReplyWasLostIsKnownAgain) {
  for (const bool keeps_metadata : {true, false}) {
    FaultyBucket faulty;
    faulty.bucket.keeps_metadata = keeps_metadata;
    faulty.method = "PUT";
    faulty.fault = act_and_vanish;
    const auto store = faulty.open();
    EXPECT_TRUE(store->put_if_absent("a", bytes_of_text("mine")));
    EXPECT_EQ(faulty.bucket.objects.at("/bucket/a").version, 2) << "the probe is the first";
    EXPECT_FALSE(store->put_if_absent("a", bytes_of_text("mine")));
  }
}

TEST(S3Creation, ThatAnotherWasFasterInIsNotTakenForOnesOwn) {
  for (const std::string theirs : {"mine", "other"}) {
    FaultyBucket faulty;
    faulty.method = "PUT";
    faulty.fault = [&](const HttpQuestion&, FakeBucket& bucket) {
      bucket.objects["/bucket/a"] = {theirs, "another-call", 7, 0};
      return HttpReply{};
    };
    EXPECT_FALSE(faulty.open()->put_if_absent("a", bytes_of_text("mine"))) << theirs;
    EXPECT_EQ(faulty.bucket.objects.at("/bucket/a").content, theirs);
  }
}

TEST(S3Creation, OfWhatWasThereIsRefusedWhateverItHolds) {
  FaultyBucket faulty;
  faulty.faults = 0;
  faulty.bucket.objects["/bucket/a"] = {"mine", "", 7, 0};
  EXPECT_FALSE(faulty.open()->put_if_absent("a", bytes_of_text("mine")));
}

TEST(S3Creation, NeedsAnEndpointThatHonoursTheCondition) {
  FaultyBucket faulty;
  faulty.faults = 0;
  faulty.bucket.honours_conditions = false;
  const auto store = faulty.open();
  for (int i = 0; i < 2; ++i) {
    expect_error(ErrorCode::kUnsupported, [&] { store->put_if_absent("a", bytes_of_text("x")); },
                 {"s3://bucket", "If-None-Match"});
  }
  EXPECT_TRUE(faulty.bucket.objects.empty()) << "what was tried is left";
  store->put("a", bytes_of_text("x"));
}

TEST(S3Creation, FindsOutAnEndpointThatLooksFirstAndWritesLater) {
  // Behaves as SeaweedFS 4.16: right for writers one after another, and wrong for two at a time.
  FakeBucket bucket;
  std::atomic<int> lookers{0};
  HttpServer racy([&](const HttpQuestion& question) {
    HttpQuestion unconditional = question;
    if (question.method == "PUT" && ++lookers <= 2) unconditional.headers.erase("if-none-match");
    return bucket(unconditional);
  });
  const auto store = open_s3_store(impatient(racy, milliseconds(5000)));
  expect_error(ErrorCode::kUnsupported, [&] { store->put_if_absent("a", {}); }, {"If-None-Match"});
}

TEST(S3Creation, IsRefusedByAnEndpointThatDoesNotKnowTheCondition) {
  FaultyBucket faulty;
  HttpServer old([&](const HttpQuestion& question) {
    return question.header("if-none-match").empty() ? faulty.bucket(question) : s3_error_reply(501, "NotImplemented");
  });
  const auto store = open_s3_store(impatient(old, milliseconds(5000)));
  expect_error(ErrorCode::kUnsupported, [&] { store->put_if_absent("a", {}); }, {"If-None-Match"});
}

TEST(S3Creation, TriesTheEndpointOnce) {
  FaultyBucket faulty;
  faulty.faults = 0;
  const auto store = faulty.open();
  EXPECT_TRUE(store->put_if_absent("a", bytes_of_text("x")));
  const std::size_t first = faulty.server.questions().size();
  EXPECT_TRUE(store->put_if_absent("b", bytes_of_text("x")));
  EXPECT_EQ(first, 7U) << "three writers, two losers that look whose it is, the removal; and the object";
  EXPECT_EQ(faulty.server.questions().size(), first + 1);
}

TEST(S3Creation, ThatFailsForEverSaysSo) {
  FaultyBucket faulty;
  faulty.method = "PUT";
  faulty.faults = kEveryTime;
  faulty.fault = always(s3_error_reply(409, "ConditionalRequestConflict"));
  expect_error(ErrorCode::kIo, [&] { faulty.open(milliseconds(3000))->put_if_absent("a", {}); },
               {"s3://bucket/a", "409 ConditionalRequestConflict", "attempts"});
}

/// Two parts and a bit.
Bytes large_content() { return counting_bytes(2 * kSmallestPart + 100, 1); }

void upload_large(ObjectStore& store) {
  const auto upload = store.upload("large", 0);
  upload->append(large_content());
  upload->commit();
}

std::string content_of(const Bytes& bytes) { return text_of(bytes); }

TEST(S3Multipart, PartsThatFailAreSentAgain) {
  FaultyBucket faulty;
  faulty.method = "PUT";
  faulty.faults = 2;
  faulty.fault = [](const HttpQuestion& question, FakeBucket& bucket) {
    return question.query.starts_with("partNumber=1") ? act_and_vanish(question, bucket)
                                                      : s3_error_reply(503, "SlowDown");
  };
  upload_large(*faulty.open());
  EXPECT_EQ(faulty.bucket.objects.at("/bucket/large").content, content_of(large_content()));
  faulty.faults = 2;
  faulty.open()->put("put", large_content());
  EXPECT_EQ(faulty.bucket.objects.at("/bucket/put").content, content_of(large_content()));
  EXPECT_TRUE(faulty.open()->get("large", ~std::uint64_t{0}) == large_content());
}

TEST(S3Multipart, CompletionThatAnswers200WithAnErrorIsTriedAgain) {
  FaultyBucket faulty;
  faulty.method = "POST";
  faulty.query = "uploadId=";
  faulty.fault = always(s3_error_reply(200, "InternalError"));
  upload_large(*faulty.open());
  EXPECT_EQ(faulty.asked(), 2);
  EXPECT_EQ(faulty.bucket.objects.at("/bucket/large").content, content_of(large_content()));
  faulty.faults = kEveryTime;
  expect_error(ErrorCode::kIo, [&] { upload_large(*faulty.open(milliseconds(6000))); },
               {"s3://bucket/large", "HTTP 200 InternalError"});
}

TEST(S3Multipart, CompletionOfWhichTheReplyWasLostIsKnownAgain) {
  FaultyBucket faulty;
  faulty.method = "POST";
  faulty.query = "uploadId=";
  faulty.fault = act_and_vanish;
  upload_large(*faulty.open());
  EXPECT_EQ(faulty.bucket.objects.at("/bucket/large").content, content_of(large_content()));
}

TEST(S3Multipart, AnUploadThatAnotherAbortedIsAnError) {
  FaultyBucket faulty;
  faulty.method = "POST";
  faulty.query = "uploadId=";
  faulty.fault = always(s3_error_reply(404, "NoSuchUpload"));
  expect_error(ErrorCode::kIo, [&] { upload_large(*faulty.open()); }, {"s3://bucket/large", "aborted"});
  EXPECT_EQ(faulty.bucket.objects.count("/bucket/large"), 0U);
}

TEST(S3Multipart, WhatIsNotCommittedIsAborted) {
  FaultyBucket faulty;
  faulty.method = "PUT";
  faulty.query = "partNumber=2";
  faulty.fault = always(s3_error_reply(403, "AccessDenied"));
  expect_error(ErrorCode::kUnauthenticated, [&] { upload_large(*faulty.open()); }, {"s3://bucket/large", "403"});
  EXPECT_EQ(faulty.server.questions().back().method, "DELETE");
  faulty.faults = 1;
  expect_error(ErrorCode::kUnauthenticated, [&] { faulty.open()->put("large", large_content()); });
  EXPECT_EQ(faulty.server.questions().back().method, "DELETE");
  EXPECT_EQ(faulty.server.questions().back().query, "uploadId=a%2Fb%2Bc");
  EXPECT_TRUE(faulty.bucket.objects.empty());
}

TEST(S3Multipart, HoldsNoMorePartsThanS3Takes) {
  FaultyBucket faulty;
  faulty.faults = 0;
  // An object that is declared large gets large parts: 60 GB in 10,000 parts of more than 6 MB; this object is smaller
  // than one.
  const auto store = faulty.open();
  const auto upload = store->upload("large", 60'000'000'000);
  upload->append(Bytes(6'000'000));
  EXPECT_TRUE(faulty.server.questions().empty());
  upload->append(Bytes(2));
  EXPECT_FALSE(faulty.server.questions().empty());
}

TEST(HttpPost, EndsWithA2xxOrAnError) {
  HttpReply reply = http_reply(204);
  const HttpServer server([&](const HttpQuestion&) { return reply; });
  const auto post = [&](const std::string& path) {
    http_post_json(server.endpoint() + path, "{\"version\":7}", milliseconds(1200));
  };
  post("/update?token=hidden");
  const HttpQuestion question = server.questions().at(0);
  EXPECT_EQ(question.method + " " + question.path, "POST /update");
  EXPECT_EQ(question.body, "{\"version\":7}");
  EXPECT_EQ(question.header("content-type"), "application/json");
  reply = http_reply(500, "the engine is\nbusy");
  const std::string words = words_of([&] { post("/update?token=hidden"); });
  EXPECT_NE(words.find("io: " + server.endpoint() + "/update: POST failed: HTTP 500: the engine is busy"),
            std::string::npos)
      << words;
  reply = http_reply(302, "", "Location: /elsewhere\r\n");
  expect_error(ErrorCode::kIo, [&] { post("/update"); }, {"302"});
  reply.stall = true;
  reply.bytes.resize(12);
  expect_error(ErrorCode::kTimeout, [&] { post("/update"); });
  expect_error(ErrorCode::kIo, [] { http_post_json("file:///etc/passwd", "{}", milliseconds(100)); });
  expect_error(ErrorCode::kIo, [] { http_post_json("no url at all", "{}", milliseconds(100)); });
}

}  // namespace
}  // namespace sparsecast::test
