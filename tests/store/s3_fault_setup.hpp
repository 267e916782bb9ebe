// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <string>

#include "sparsecast/object_store.hpp"
#include "support/fake_bucket.hpp"
#include "support/http_server.hpp"

namespace sparsecast::test {

constexpr std::uint64_t kSmallestPart = std::uint64_t{5} << 20;

/// Returns options of a store on a server of the test, with short deadlines.
inline S3Options impatient(const HttpServer& server, std::chrono::milliseconds deadline) {
  S3Options options;
  options.bucket = "bucket";
  options.endpoint = server.endpoint();
  options.access_key = "the-access-key";
  options.secret_key = "the-secret-key";
  options.session_token = "the-session-token";
  options.part_bytes = kSmallestPart;
  options.connections = 2;
  options.deadline = deadline;
  options.stall_timeout = std::chrono::seconds(2);  // Busy machines pause, and tests count requests.
  return options;
}

/// A fake bucket, and what it answers in the place of its own for the first questions of one kind.
struct FaultyBucket {
  using Reply = std::function<HttpReply(const HttpQuestion&, FakeBucket&)>;

  FakeBucket bucket;
  std::string method = "GET";
  std::string query;  ///< A part of the query, when only such questions are meant.
  int faults = 1;     ///< So many questions meet `fault`.
  Reply fault;
  HttpServer server{[this](const HttpQuestion& question) {
    const bool meant = question.method == method && question.query.find(query) != std::string::npos &&
                       question.path.find("/probe-") == std::string::npos;
    if (!meant || faults == 0) return bucket(question);
    --faults;
    return fault(question, bucket);
  }};

  std::unique_ptr<ObjectStore> open(std::chrono::milliseconds deadline = std::chrono::seconds(20)) {
    return open_s3_store(impatient(server, deadline));
  }
  /// How many questions of the kind came.
  int asked() const {
    int count = 0;
    for (const HttpQuestion& question : server.questions()) {
      count += question.method == method && question.query.find(query) != std::string::npos &&
               question.path.find("/probe-") == std::string::npos;
    }
    return count;
  }
};

constexpr int kEveryTime = 1'000'000;

/// Returns the same answer to every request.
inline FaultyBucket::Reply always(HttpReply reply) {
  return [reply](const HttpQuestion&, FakeBucket&) { return reply; };
}

/// Does what was asked, and closes the connection without a word.
inline HttpReply act_and_vanish(const HttpQuestion& question, FakeBucket& bucket) {
  bucket(question);
  return {};
}

}  // namespace sparsecast::test
