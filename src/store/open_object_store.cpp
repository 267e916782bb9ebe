// SPDX-License-Identifier: Apache-2.0
#include "sparsecast/object_store.hpp"

namespace sparsecast {

std::unique_ptr<ObjectStore> open_object_store(FileSystem& fs, const std::string& location) {
  if (location.starts_with("s3://")) return open_s3_store(S3Options::from_environment(fs, location));
  return open_directory_store(fs, location);
}

}  // namespace sparsecast
