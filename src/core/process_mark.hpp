// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <fmt/format.h>
#include <unistd.h>

#include <string>

#include "sparsecast/error.hpp"

namespace sparsecast {

/// Identifies the process that made an object with connections or threads. A forked child has a copy of the object, but
/// none of its threads, and it shares the connections with its parent. In the child, calls are refused, and destructors
/// do not touch the parent's resources, and leak objects that threads were using.
class ProcessMark {
 public:
  bool is_here() const noexcept { return ::getpid() == process_; }
  /// Throws Error{kUsage} in any process but the one that made this object; `context` is the error's context.
  void require_here(const std::string& context) const {
    if (is_here()) return;
    throw Error(ErrorCode::kUsage, fmt::format("made in process {}; a forked child cannot use it", process_), context);
  }

 private:
  pid_t process_ = ::getpid();
};

}  // namespace sparsecast
