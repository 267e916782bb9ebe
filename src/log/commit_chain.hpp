#pragma once

#include <string>

#include "sparsecast/delta_log.hpp"

namespace sparsecast {

/// Whether `next` may stand right after `before`: predecessor's hash, version, stream, table, base digest, epoch and
/// publisher, keys. Throws Error{kMixed | kReplayed | kRolledBack} in the name of `name`, the place of `next`.
void require_follows(const LogCommit& before, const LogCommit& next, const std::string& name);

}  // namespace sparsecast
