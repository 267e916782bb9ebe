#pragma once

#include <string>

namespace sparsecast {

/// Whether `key` is as object_store.hpp says: such a key never leads out of its store.
bool is_object_key(const std::string& key);

/// Throws Error{kUsage} unless it is.
void require_object_key(const std::string& key);

}  // namespace sparsecast
