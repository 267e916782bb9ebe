// SPDX-License-Identifier: Apache-2.0

// This file replaces the S3 store in a build without libcurl.

#include "sparsecast/error.hpp"
#include "sparsecast/object_store.hpp"
#include "store/s3_keys.hpp"

namespace sparsecast {
namespace {

[[noreturn]] void refuse_without_curl(const std::string& what) {
  throw Error(ErrorCode::kUnsupported, "this build of the library has no libcurl (SPARSECAST_S3)", what);
}

}  // namespace

std::unique_ptr<ObjectStore> open_s3_store(const S3Options& options) { refuse_without_curl("s3://" + options.bucket); }

S3KeyReader read_by_web_identity(FileSystem&, const WebIdentity&) { refuse_without_curl("keys by web identity"); }
S3KeyReader read_from_container(FileSystem&, const ContainerEndpoint&) { refuse_without_curl("keys of a container"); }
S3KeyReader read_from_instance(const std::string&) { refuse_without_curl("keys of an instance"); }

void http_post_json(const std::string&, const std::string&, std::chrono::milliseconds) {
  refuse_without_curl("HTTP POST");
}

}  // namespace sparsecast
