// SPDX-License-Identifier: Apache-2.0
#pragma once

// Contract of ObjectStore, checked on any store: the same calls for a directory and a bucket.

#include <cstdint>
#include <optional>
#include <string>

#include "sparsecast/object_store.hpp"

namespace sparsecast::test {

inline ConstBytes bytes_of_text(const std::string& text) { return std::as_bytes(std::span(text)); }

/// "<none>" when there is no object.
inline std::string text_of(const std::optional<Bytes>& bytes) {
  if (!bytes) return "<none>";
  return {reinterpret_cast<const char*>(bytes->data()), bytes->size()};
}

/// Bytes that differ everywhere, so that swapped parts show.
Bytes counting_bytes(std::uint64_t size, std::uint64_t seed);

/// `store` is empty at first and again at the end. `large_bytes`: size of the objects of the tests of ranges and
/// uploads.
void check_store_contract(ObjectStore& store, std::uint64_t large_bytes);

}  // namespace sparsecast::test
