// SPDX-License-Identifier: Apache-2.0
#pragma once

// A bucket in memory behind HttpServer that answers as a well-behaved S3 server, so that a test specifies only faults.

#include <cstddef>
#include <map>
#include <string>

#include "support/http_server.hpp"

namespace sparsecast::test {

class FakeBucket {
 public:
  struct Object {
    std::string content;
    std::string creator;  ///< The metadata that came with it.
    int version = 0;
    std::size_t parts = 0;  ///< Number of parts of a multipart upload; otherwise 0.
  };

  std::map<std::string, Object> objects;  ///< Objects by path: "/bucket/key".
  bool honours_conditions = true;
  bool google = false;  ///< Whether it has Google's headers in the place of Amazon's.
  bool keeps_metadata = true;

  HttpReply operator()(const HttpQuestion& question);

 private:
  HttpReply put(const HttpQuestion& question, const std::string& content);
  HttpReply get(const HttpQuestion& question, const Object& object) const;
  HttpReply post(const HttpQuestion& question);
  HttpReply list(const HttpQuestion& question) const;

  std::map<std::string, std::map<int, std::string>> uploads_;  ///< Path -> number -> part.
  int versions_ = 0;
};

}  // namespace sparsecast::test
