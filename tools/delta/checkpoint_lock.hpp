#pragma once

#include <string>

namespace sparsecast::tools {

/// Keeps other `sparsecast apply --in-place` processes away from a checkpoint (an advisory lock of the operating
/// system, gone with the process, however it ends). Throws Error{kIo} when it is taken, or cannot be had.
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
