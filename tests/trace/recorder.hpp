// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "core/trace.hpp"

namespace sparsecast::test {

struct RecordedEvent {
  enum class Kind { kPush, kPop, kMark };
  Kind kind = Kind::kPush;
  std::string name;
  std::size_t depth = 0;  ///< Ranges around it.
  bool has_payload = false;
  TracePayload payload;
};

}  // namespace sparsecast::test
