// SPDX-License-Identifier: Apache-2.0

// Buckets of Google's: their headers, and their form of the signature.

#include <gtest/gtest.h>
#include <sodium.h>

#include <sstream>

#include "store/keys_setup.hpp"
#include "store/s3_fault_setup.hpp"
#include "store/store_contract.hpp"
#include "support/expect_error.hpp"
#include "support/fault_fs.hpp"

namespace sparsecast::test {
namespace {

struct GoogleBucket {
  FakeBucket bucket;
  HttpServer server{[this](const HttpQuestion& question) { return bucket(question); }};

  GoogleBucket() { bucket.google = true; }
  std::unique_ptr<ObjectStore> open() {
    S3Options options = impatient(server, std::chrono::seconds(20));
    options.session_token = "";
    options.google = true;
    return open_s3_store(options);
  }
};

TEST(S3Google, BucketsAreToldByTheHostOfTheEndpoint) {
  const auto google = [](const std::string& endpoint) {
    S3Options options;
    options.endpoint = endpoint;
    return is_google(options);
  };
  EXPECT_TRUE(google("https://storage.googleapis.com"));
  EXPECT_TRUE(google("HTTPS://Storage.GoogleApis.com:443/"));
  for (const std::string other : {"", "https://storage.googleapis.com.example",
                                  "https://example/storage.googleapis.com", "http://127.0.0.1:9000", "x"}) {
    EXPECT_FALSE(google(other)) << other;
  }
}

TEST(S3Google, AnObjectIsCreatedByItsGeneration) {
  GoogleBucket google;
  const auto store = google.open();
  EXPECT_TRUE(store->put_if_absent("a", bytes_of_text("x")));
  EXPECT_FALSE(store->put_if_absent("a", bytes_of_text("y")));
  EXPECT_EQ(text_of(store->get("a", 1)), "x");
  EXPECT_EQ(store->list("").size(), 1U);
  for (const HttpQuestion& question : google.server.questions()) {
    EXPECT_EQ(question.header("if-none-match"), "");
    for (const auto& [name, value] : question.headers) EXPECT_FALSE(name.starts_with("x-amz-")) << name;
  }
}

TEST(S3Google, ALostReplyIsNoLostRace) {
  GoogleBucket google;
  int lost = 1;
  HttpServer server([&](const HttpQuestion& question) {
    HttpReply reply = google.bucket(question);
    return question.method == "PUT" && question.path == "/bucket/a" && lost-- > 0 ? HttpReply{} : reply;
  });
  S3Options options = impatient(server, std::chrono::seconds(20));
  options.google = true;
  EXPECT_TRUE(open_s3_store(options)->put_if_absent("a", bytes_of_text("x")));
}

TEST(S3Google, ABucketThatIgnoresTheConditionIsRefused) {
  GoogleBucket google;
  google.bucket.honours_conditions = false;
  expect_error(ErrorCode::kUnsupported, [&] { google.open()->put_if_absent("a", bytes_of_text("x")); },
               {"s3://bucket", "x-goog-if-generation-match"});
}

std::string hex(const std::string& bytes) {
  std::string text(2 * bytes.size() + 1, '\0');
  sodium_bin2hex(text.data(), text.size(), reinterpret_cast<const unsigned char*>(bytes.data()), bytes.size());
  text.pop_back();
  return text;
}

std::string sha256(const std::string& text) {
  std::string hash(crypto_hash_sha256_BYTES, '\0');
  crypto_hash_sha256(reinterpret_cast<unsigned char*>(hash.data()), reinterpret_cast<const unsigned char*>(text.data()),
                     text.size());
  return hex(hash);
}

std::string hmac(const std::string& key, const std::string& text) {
  std::string code(crypto_auth_hmacsha256_BYTES, '\0');
  crypto_auth_hmacsha256_state state;
  crypto_auth_hmacsha256_init(&state, reinterpret_cast<const unsigned char*>(key.data()), key.size());
  crypto_auth_hmacsha256_update(&state, reinterpret_cast<const unsigned char*>(text.data()), text.size());
  crypto_auth_hmacsha256_final(&state, reinterpret_cast<unsigned char*>(code.data()));
  return code;
}

std::string part(const std::string& text, const std::string& begin, char end) {
  const std::size_t from = text.find(begin) + begin.size();
  return text.substr(from, text.find(end, from) - from);
}

/// The signature of a request as Google's documentation of version 4 with HMAC keys has it.
TEST(S3Google, RequestsAreSignedInItsForm) {
  GoogleBucket google;
  const auto store = google.open();
  store->put("a", bytes_of_text("content"));
  store->list("a");
  for (const HttpQuestion& question : google.server.questions()) {
    const std::string authorization = question.header("authorization");
    ASSERT_TRUE(authorization.starts_with("GOOG4-HMAC-SHA256 ")) << authorization;
    const std::string time = question.header("x-goog-date");
    const std::string scope = time.substr(0, 8) + "/auto/storage/goog4_request";
    EXPECT_EQ(part(authorization, "Credential=", ','), "the-access-key/" + scope);
    EXPECT_EQ(question.header("x-goog-content-sha256"), sha256(question.body));

    const std::string names = part(authorization, "SignedHeaders=", ',');
    std::string request = question.method + "\n" + question.path + "\n" + question.query + "\n";
    std::istringstream list(names);
    for (std::string name; std::getline(list, name, ';');) request += name + ":" + question.header(name) + "\n";
    request += "\n" + names + "\n" + sha256(question.body);
    EXPECT_NE((";" + names + ";").find(";host;"), std::string::npos);

    std::string key = "GOOG4the-secret-key";
    for (const std::string& step :
         {time.substr(0, 8), std::string("auto"), std::string("storage"), std::string("goog4_request")}) {
      key = hmac(key, step);
    }
    EXPECT_EQ(part(authorization, "Signature=", ','),
              hex(hmac(key, "GOOG4-HMAC-SHA256\n" + time + "\n" + scope + "\n" + sha256(request))));
  }
  EXPECT_EQ(google.server.questions().size(), 2U);
}

}  // namespace
}  // namespace sparsecast::test
