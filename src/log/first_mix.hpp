// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "sparsecast/delta_log.hpp"

namespace sparsecast {

/// Throws Error{kUnsupported} if the digests of a delta have the first mix (docs/wire-format.md §6), and so are none of
/// a log (docs/delta-log.md, "Records"). `name` is what the error is about.
void require_second_mix(const DeltaHeader& header, const std::string& name);

/// The same for a log, by the header of the delta of its newest version. Does nothing where that delta is gone or
/// damaged, or there is none: only who needs it says so. Throws what the store throws.
void require_second_mix(ObjectStore& store, const LogCommit& newest);

}  // namespace sparsecast
