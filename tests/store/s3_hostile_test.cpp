// SPDX-License-Identifier: Apache-2.0

// The S3 store on servers that mean harm, or answer as if they did: whatever they say, each operation ends about its
// deadline with an error that names the object, holds no more than it may, and has written nothing.

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <future>
#include <map>
#include <set>

#include "store/s3_fault_setup.hpp"
#include "store/store_contract.hpp"
#include "support/expect_error.hpp"

namespace sparsecast::test {
namespace {

using std::chrono::milliseconds;
using std::chrono::steady_clock;

constexpr milliseconds kDeadline{1500};
/// Aborting an upload, or removing a probe, has a deadline of its own; the rest is for busy machines.
constexpr std::chrono::seconds kLongest{30};

using Operation = std::function<void(ObjectStore&)>;

const std::map<std::string, Operation>& operations() {
  static const std::map<std::string, Operation> all = {
      {"get", [](ObjectStore& store) { store.get("log/key", 1000); }},
      {"get of several parts", [](ObjectStore& store) { store.get("log/key", 3 * kSmallestPart); }},
      {"get_range",
       [](ObjectStore& store) {
         Bytes part(100);
         store.get_range("log/key", 7, part);
       }},
      {"size", [](ObjectStore& store) { store.size("log/key"); }},
      {"list", [](ObjectStore& store) { store.list("log/"); }},
      {"put", [](ObjectStore& store) { store.put("log/key", bytes_of_text("x")); }},
      {"put_if_absent", [](ObjectStore& store) { store.put_if_absent("log/key", bytes_of_text("x")); }},
      {"upload of several parts",
       [](ObjectStore& store) {
         const auto upload = store.upload("log/key", 2 * kSmallestPart + 1);
         upload->append(Bytes(2 * kSmallestPart + 1));
         upload->commit();
       }},
      {"remove", [](ObjectStore& store) { store.remove("log/key"); }},
  };
  return all;
}

/// Runs the operations side by side on a server that always answers so, and expects an error of each.
void expect_errors(const std::function<HttpReply(const HttpQuestion&)>& answer,
                   const std::set<std::string>& only = {}) {
  HttpServer server(answer);
  std::map<std::string, std::future<std::string>> running;
  const auto began = steady_clock::now();
  for (const auto& [name, operation] : operations()) {
    if (!only.empty() && !only.contains(name)) continue;
    running[name] = std::async(std::launch::async, [&server, run = operation] {
      const auto store = open_s3_store(impatient(server, kDeadline));
      return words_of([&] { run(*store); });
    });
  }
  for (auto& [name, said] : running) {
    const std::string words = said.get();
    EXPECT_FALSE(words.empty()) << name << " succeeded";
    // Whether conditions are honoured is a matter of the whole bucket.
    const std::string where = name == "list" ? "s3://bucket/log/" : name == "put_if_absent" ? "s3://bucket" : "log/key";
    EXPECT_NE(words.find(where), std::string::npos) << name << ": " << words;
  }
  EXPECT_LT(steady_clock::now() - began, kLongest);
}

HttpReply always_busy(const HttpQuestion&) {
  return http_reply(503, "<Error><Code>SlowDown</Code></Error>", "Retry-After: 31536000\r\n");
}

TEST(HostileS3, BusyForAYear) { expect_errors(always_busy); }

TEST(HostileS3, Silence) {
  expect_errors([](const HttpQuestion&) {
    HttpReply silence = http_reply(200);
    silence.bytes.resize(10);
    silence.stall = true;
    return silence;
  });
}

TEST(HostileS3, HangsUp) {
  expect_errors([](const HttpQuestion&) { return HttpReply{}; });
}

TEST(HostileS3, RedirectsToItself) {
  expect_errors([](const HttpQuestion& question) {
    return http_reply(307, "<Error><Code>TemporaryRedirect</Code></Error>",
                      "Location: http://" + question.header("host") + question.path + "\r\n");
  });
}

/// A byte at a time, which is progress to whoever watches for stalls.
TEST(HostileS3, Trickles) {
  for (const std::string head :
       {"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n", "HTTP/1.1 200 OK\r\nX-Long: "}) {
    SCOPED_TRACE(head);
    expect_errors([head](const HttpQuestion&) {
      HttpReply trickle{head, false, false, head.ends_with(": ") ? "x" : "1\r\nx\r\n"};
      trickle.pause = milliseconds(50);
      return trickle;
    });
  }
}

TEST(HostileS3, NeverEnds) {
  for (const std::string status : {"200 OK", "206 Part", "403 No", "503 Busy"}) {
    SCOPED_TRACE(status);
    expect_errors(
        [status](const HttpQuestion&) {
          return HttpReply{"HTTP/1.1 " + status + "\r\nETag: \"1\"\r\nTransfer-Encoding: chunked\r\n\r\n", false, false,
                           "10000\r\n" + std::string(0x10000, 'x') + "\r\n"};
        },
        status == "200 OK" || status == "206 Part"
            ? std::set<std::string>{"get", "get of several parts", "get_range", "list", "put", "remove"}
            : std::set<std::string>{});
  }
}

TEST(HostileS3, PromisesMoreThanThereIs) {
  expect_errors(
      [](const HttpQuestion&) {
        HttpReply reply = http_reply(206, "few", "ETag: \"1\"\r\nContent-Range: bytes 0-99/9223372036854775807\r\n");
        reply.close = true;
        return reply;
      },
      {"get", "get of several parts", "get_range", "list"});
}

/// Every answer is of another version, so that no two parts fit together.
TEST(HostileS3, IsNeverTheSameTwice) {
  int version = 0;
  HttpServer server([&](const HttpQuestion& question) {
    const std::string range = question.header("range");
    const std::uint64_t first = std::stoull(range.substr(6));
    const std::uint64_t bytes = std::min(kSmallestPart, 3 * kSmallestPart - first);
    return http_reply(206, std::string(bytes, 'x'),
                      fmt::format("ETag: \"{}\"\r\nContent-Range: bytes {}-{}/{}\r\n", ++version, first,
                                  first + bytes - 1, 3 * kSmallestPart));
  });
  const auto store = open_s3_store(impatient(server, std::chrono::seconds(20)));
  expect_error(ErrorCode::kIo, [&] { store->get("log/key", 3 * kSmallestPart); }, {"s3://bucket/log/key", "replaced"});
  EXPECT_LE(server.questions().size(), 8U * 4);
}

std::string page(const std::vector<std::string>& keys, const std::string& next) {
  std::string xml = "<ListBucketResult>";
  for (const std::string& key : keys) {
    xml += "<Contents><Key>" + key + "</Key><Size>1</Size><LastModified>2026-01-02T03:04:05Z</LastModified></Contents>";
  }
  if (next.empty()) return xml + "<IsTruncated>false</IsTruncated></ListBucketResult>";
  return xml + "<IsTruncated>true</IsTruncated><NextContinuationToken>" + next +
         "</NextContinuationToken></ListBucketResult>";
}

/// Lists from a server that makes page number i by `make(i)`; returns how many were asked for.
std::size_t pages_until_refused(const std::function<std::string(int)>& make, const std::string& words) {
  int number = 0;
  HttpServer server([&](const HttpQuestion&) { return http_reply(200, make(number++)); });
  const auto store = open_s3_store(impatient(server, std::chrono::seconds(20)));
  expect_error(ErrorCode::kIo, [&] { store->list("log/"); }, {"s3://bucket/log/", words});
  return server.questions().size();
}

TEST(HostileS3, AListingThatDoesNotGoOnIsRefused) {
  // A page without a new key may come, but not for ever: tokens that go round, tokens that are always new.
  EXPECT_LT(pages_until_refused([](int i) { return page({"log/a"}, i % 2 == 0 ? "A" : "B"); }, "does not go on"), 50U);
  EXPECT_LT(pages_until_refused([](int i) { return page({}, "t" + std::to_string(i)); }, "does not go on"), 50U);
  EXPECT_LT(
      pages_until_refused(
          [](int i) {
            return page({"log/" + std::to_string(i % 3), "log/" + std::to_string(i % 5)}, "t" + std::to_string(i));
          },
          "does not go on"),
      50U);
}

TEST(HostileS3, AListingOfMoreThanALogCanHoldIsRefused) {
  const std::string name(1000, 'k');
  std::vector<std::string> keys(6000);
  const std::size_t pages = pages_until_refused(
      [&](int i) {
        for (std::size_t k = 0; k < keys.size(); ++k) keys[k] = fmt::format("log/{}{:09}", name, keys.size() * i + k);
        return page(keys, "t" + std::to_string(i));
      },
      "without an end");
  EXPECT_LT(pages, 60U);
}

TEST(HostileS3, AListingOfOtherKeysIsRefused) {
  EXPECT_EQ(pages_until_refused([](int) { return page({"log/a", "elsewhere/b"}, ""); }, "other keys"), 1U);
}

TEST(HostileS3, AListingInNoOrderWithKeysTwiceIsRead) {
  int number = 0;
  HttpServer server([&](const HttpQuestion&) {
    return http_reply(200, number++ == 0 ? page({"log/b", "log/a", "log/b"}, "t") : page({"log/a", "log/0"}, ""));
  });
  std::vector<std::string> keys;
  for (const StoredObject& object : open_s3_store(impatient(server, std::chrono::seconds(20)))->list("log/")) {
    keys.push_back(object.key);
  }
  EXPECT_EQ(keys, (std::vector<std::string>{"log/0", "log/a", "log/b"}));
}

/// A server that takes everything and keeps nothing, or says so: what is written there may not be believed.
TEST(HostileS3, UploadsWithoutAnEnd) {
  const auto begun = [] {
    return http_reply(200, "<InitiateMultipartUploadResult><UploadId>u</UploadId></InitiateMultipartUploadResult>");
  };
  const auto is = [](const HttpQuestion& question, const std::string& method, const std::string& query) {
    return question.method == method && question.query.starts_with(query);
  };
  const std::set<std::string> upload = {"upload of several parts"};
  // Parts without a tag.
  expect_errors([&](const HttpQuestion& q) { return is(q, "POST", "uploads") ? begun() : http_reply(200); }, upload);
  // A completion that fails for ever although it begins with 200, and one that is something else.
  for (const std::string end : {"<Error><Code>InternalError</Code></Error>", "<html/>", ""}) {
    expect_errors(
        [&](const HttpQuestion& q) {
          if (is(q, "POST", "uploads")) return begun();
          return q.method == "POST" ? http_reply(200, end) : http_reply(200, "", "ETag: \"1\"\r\n");
        },
        upload);
  }
  // An id of megabytes.
  expect_errors(
      [&](const HttpQuestion&) {
        return http_reply(200, "<InitiateMultipartUploadResult><UploadId>" + std::string(1 << 20, 'u') +
                                   "</UploadId></InitiateMultipartUploadResult>");
      },
      upload);
}

}  // namespace
}  // namespace sparsecast::test
