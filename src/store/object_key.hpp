// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

namespace sparsecast {

/// Returns whether `key` is valid as object_store.hpp defines it; such a key never leads out of its store.
bool is_object_key(const std::string& key);

/// Throws Error{kUsage} unless is_object_key(key).
void require_object_key(const std::string& key);

}  // namespace sparsecast
