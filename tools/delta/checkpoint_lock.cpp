// SPDX-License-Identifier: Apache-2.0
#include "tools/delta/checkpoint_lock.hpp"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "sparsecast/error.hpp"
#include "sparsecast/io.hpp"

namespace sparsecast::tools {

CheckpointLock::CheckpointLock(const std::string& checkpoint)
    : descriptor_(::open(checkpoint.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK)) {
  if (descriptor_ < 0) {
    const int reason = errno;
    FileSystem::posix().open(checkpoint, OpenMode::kRead);  // Says more: of a link to nothing, that it is one.
    throw Error(ErrorCode::kIo, std::string("open: ") + std::strerror(reason), checkpoint);
  }
  if (::flock(descriptor_, LOCK_EX | LOCK_NB) == 0) return;
  const int reason = errno;
  ::close(descriptor_);
  throw Error(
      ErrorCode::kIo,
      reason == EWOULDBLOCK ? "another in-place apply is at work on it" : std::string("lock: ") + std::strerror(reason),
      checkpoint);
}

CheckpointLock::~CheckpointLock() { ::close(descriptor_); }

}  // namespace sparsecast::tools
