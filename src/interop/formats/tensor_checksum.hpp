// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <string>
#include <string_view>

#include "sparsecast/delta.hpp"

namespace sparsecast {

/// A checksum of a tensor's bytes by its name in other systems: "xxh3-128" or "adler32".
class TensorChecksum {
 public:
  /// Throws Error{kUnsupported} for other names, "blake3" among them: no library of this build computes it.
  explicit TensorChecksum(std::string_view algorithm);
  ~TensorChecksum();

  void update(ConstBytes bytes);
  /// Returns the checksum in lower-case hexadecimal: 32 digits, or 8 for adler32.
  std::string hex() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace sparsecast
