// SPDX-License-Identifier: Apache-2.0
#pragma once

// The golden vectors of docs/wire-format.md: what they contain. Every byte follows from the seeds in here.

#include <string>

#include "support/delta_bytes.hpp"

namespace sparsecast::test {

/// A delta that every implementation must decode.
struct GoodVector {
  std::string name;
  std::string states;  ///< Vectors of the same value share base and result files.
  TensorTable table;
  TensorState base;
  TensorState result;
  Bytes delta;
  bool canonical = true;  ///< The encoder writes exactly these bytes (tables and zstd bodies aside).
};

/// A delta that every implementation must refuse, with the base that it pretends to start from.
struct BadVector {
  std::string name;
  std::string why;
  ErrorCode code = ErrorCode::kCorrupt;
  Bytes delta;
};

/// Base of all bad vectors.
struct BadBase {
  TensorTable table;
  TensorState base;
  TensorState result;
};

std::vector<GoodVector> encoded_vectors();
/// Valid, though our encoder would choose otherwise.
std::vector<GoodVector> forged_vectors();

BadBase bad_base();
std::vector<BadVector> bad_records();  ///< Damage to records and their fields.
std::vector<BadVector> bad_tables();
std::vector<BadVector> bad_blocks();  ///< Damage to directories and payloads, under valid checksums.

}  // namespace sparsecast::test
