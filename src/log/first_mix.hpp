// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "sparsecast/delta_log.hpp"

namespace sparsecast {

/// Throws Error{kUnsupported} if the digests of a delta have the first mix (docs/wire-format.md §6), and so are none of
/// a log (docs/delta-log.md, "Records"). `name` is what the error is about.
void require_second_mix(const DeltaHeader& header, const std::string& name);

/// Throws Error{kUnsupported} if the newest delta of a log has digests of the first mix, by its header. Does nothing if
/// that delta is gone or damaged, or there is none: whoever needs it reports that. Throws what the store throws.
void require_second_mix(ObjectStore& store, const LogCommit& newest);

}  // namespace sparsecast
