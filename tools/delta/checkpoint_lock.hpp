// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

namespace sparsecast::tools {

/// Holds an advisory lock of the operating system that keeps other `sparsecast apply --in-place` processes away from a
/// checkpoint; the end of the process, however it ends, releases it. Throws Error{kIo} if another process holds the
/// lock or it cannot be taken.
class CheckpointLock {
 public:
  explicit CheckpointLock(const std::string& checkpoint);
  ~CheckpointLock();
  CheckpointLock(const CheckpointLock&) = delete;
  CheckpointLock& operator=(const CheckpointLock&) = delete;

 private:
  int descriptor_;
};

}  // namespace sparsecast::tools
