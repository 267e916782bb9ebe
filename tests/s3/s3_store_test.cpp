// SPDX-License-Identifier: Apache-2.0

// The S3 store on a real server (tests/s3_server.py starts one).

#include <gtest/gtest.h>

#include <atomic>
#include <cstdlib>
#include <thread>

#include "s3/test_bucket.hpp"
#include "sparsecast/object_store.hpp"
#include "store/curl/s3_client.hpp"
#include "store/store_contract.hpp"
#include "support/expect_error.hpp"

namespace sparsecast::test {
namespace {

constexpr std::uint64_t kPart = std::uint64_t{5} << 20;

S3Options small_parts() {
  S3Options options = fresh_prefix();
  options.part_bytes = kPart;
  options.connections = 4;
  return options;
}

TEST(S3Store, KeepsTheContractOfStoresWithinOnePart) {
  const auto store = open_s3_store(fresh_prefix());
  check_store_contract(*store, 100'000);
}

TEST(S3Store, KeepsTheContractOfStoresInManyParts) {
  const auto store = open_s3_store(small_parts());
  check_store_contract(*store, 3 * kPart + 1234);
}

TEST(S3Store, ReadsAndWritesObjectsAtTheEdgesOfParts) {
  const auto store = open_s3_store(small_parts());
  for (const std::uint64_t size : {kPart - 1, kPart, kPart + 1, 2 * kPart}) {
    const Bytes content = counting_bytes(size, size);
    store->put("edge", content);
    EXPECT_TRUE(store->get("edge", size) == content) << size;
    expect_error(ErrorCode::kCorrupt, [&] { store->get("edge", size - 1); }, {"edge", "more than"});
    const auto upload = store->upload("streamed", size);
    upload->append(content);
    upload->commit();
    EXPECT_TRUE(store->get("streamed", ~std::uint64_t{0}) == content) << size;
  }
}

TEST(S3Store, OpensFromALocation) {
  const S3Options options = fresh_prefix();
  const std::string location = "s3://" + options.bucket + "/" + options.prefix;
  const auto store = open_object_store(FileSystem::posix(), location + "/");
  EXPECT_EQ(store->location(), location);
  store->put("a", bytes_of_text("x"));
  EXPECT_EQ(text_of(open_s3_store(options)->get("a", 1)), "x");
}

TEST(S3Store, ReachesABucketByItsHostName) {
  // "bucket.localhost" is this machine (RFC 6761), and the server knows the domain.
  S3Options options = fresh_prefix();
  const std::size_t port = options.endpoint.rfind(':');
  options.endpoint = "http://localhost" + options.endpoint.substr(port);
  options.path_style = false;
  const auto store = open_s3_store(options);
  store->put("a", bytes_of_text("by name"));
  EXPECT_EQ(text_of(store->get("a", 10)), "by name");
  EXPECT_EQ(store->list("").size(), 1U);
  options.path_style = true;
  EXPECT_EQ(text_of(open_s3_store(options)->get("a", 10)), "by name");
}

TEST(S3Store, TrustsACertificateOnlyWhenItIsToldTo) {
  const char* endpoint = std::getenv("SPARSECAST_TEST_HTTPS_ENDPOINT");
  if (endpoint == nullptr) GTEST_SKIP() << "the server has no TLS: no openssl here";
  S3Options options = fresh_prefix();
  options.endpoint = endpoint;
  expect_error(ErrorCode::kUnauthenticated, [&] { open_s3_store(options)->put("a", {}); },
               {"certificate", "1 attempt"});
  options.ca_bundle = std::getenv("SPARSECAST_TEST_CA_BUNDLE");
  const auto store = open_s3_store(options);
  store->put("a", bytes_of_text("over TLS"));
  EXPECT_EQ(text_of(store->get("a", 10)), "over TLS");
  // The right certificate, of another host.
  const std::size_t port = options.endpoint.rfind(':');
  options.endpoint = "https://localhost" + options.endpoint.substr(port);
  expect_error(ErrorCode::kUnauthenticated, [&] { open_s3_store(options)->put("a", {}); }, {"1 attempt"});
  options.ca_bundle = "/no/such/file.pem";
  expect_error(ErrorCode::kIo, [&] { open_s3_store(options)->put("a", {}); }, {"1 attempt"});
}

TEST(S3Store, ListsMoreThanAPage) {
  const auto store = open_s3_store(fresh_prefix());
  constexpr int kObjects = 1030;
  std::vector<std::thread> writers;
  for (int writer = 0; writer < 4; ++writer) {
    writers.emplace_back([&, writer] {
      for (int i = writer; i < kObjects; i += 4) store->put("many/" + std::to_string(i), bytes_of_text("x"));
    });
  }
  for (std::thread& writer : writers) writer.join();
  const auto objects = store->list("many/");
  EXPECT_EQ(objects.size(), std::size_t{kObjects});
  for (std::size_t i = 1; i < objects.size(); ++i) EXPECT_LT(objects[i - 1].key, objects[i].key);
}

TEST(S3Store, RefusesWrongKeysInTheServersWords) {
  S3Options options = fresh_prefix();
  options.secret_key = "another-secret";
  const auto store = open_s3_store(options);
  const std::string words = words_of([&] { store->put("a", {}); });
  EXPECT_NE(words.find("unauthenticated: s3://"), std::string::npos) << words;
  EXPECT_NE(words.find("SignatureDoesNotMatch"), std::string::npos) << words;
  EXPECT_EQ(words.find("another-secret"), std::string::npos) << words;
  options.access_key = "unknown-key";
  expect_error(ErrorCode::kUnauthenticated, [&] { open_s3_store(options)->get("a", 1); },
               {"403", "InvalidAccessKeyId"});
  options.anonymous = true;
  expect_error(ErrorCode::kUnauthenticated, [&] { open_s3_store(options)->get("a", 1); }, {"AccessDenied"});
}

TEST(S3Store, TellsABucketThatIsNotThereFromAnAbsentObject) {
  S3Options options = fresh_prefix();
  EXPECT_EQ(open_s3_store(options)->get("none", 1), std::nullopt);
  options.bucket = "not-a-bucket-here";
  expect_error(ErrorCode::kIo, [&] { open_s3_store(options)->get("none", 1); }, {"404", "NoSuchBucket"});
}

TEST(S3Store, LeavesNoPartsOfAnUploadThatIsNotCommitted) {
  const S3Options options = small_parts();
  const auto store = open_s3_store(options);
  store->upload("dropped", 3 * kPart)->append(counting_bytes(3 * kPart, 1));
  EXPECT_EQ(store->size("dropped"), std::nullopt);
  S3Client client(options);
  S3Request uploads;
  uploads.query = "uploads=";
  EXPECT_EQ(client.call(uploads).text.find("dropped"), std::string::npos);
}

TEST(S3Store, SurvivesReplacementWhileALargeObjectIsRead) {
  const auto store = open_s3_store(small_parts());
  const Bytes contents[] = {counting_bytes(3 * kPart, 1), counting_bytes(3 * kPart, 2)};
  store->put("changing", contents[0]);
  std::atomic<bool> done{false};
  std::thread writer([&] {
    for (int i = 1; i <= 4; ++i) store->put("changing", contents[i % 2]);
    done = true;
  });
  while (!done) {
    const auto read = store->get("changing", 3 * kPart);
    EXPECT_TRUE(read == contents[0] || read == contents[1]) << "a mixture of two versions";
  }
  writer.join();
}

}  // namespace
}  // namespace sparsecast::test
