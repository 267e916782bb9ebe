// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdlib>
#include <string>

#include "sparsecast/object_store.hpp"
#include "support/random.hpp"

namespace sparsecast::test {

/// A prefix of its own in the bucket of tests/s3_server.py, without which these tests do not run.
inline S3Options fresh_prefix() {
  const char* bucket = std::getenv("SPARSECAST_TEST_BUCKET");
  if (bucket == nullptr) throw std::runtime_error("run this through tests/s3_server.py");
  static Random random(std::random_device{}());
  return S3Options::from_environment(FileSystem::posix(),
                                     "s3://" + std::string(bucket) + "/test/" + std::to_string(random.next()));
}

}  // namespace sparsecast::test
