// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>

#include "sparsecast/publisher.hpp"

namespace sparsecast {

/// Throws Error{kUsage} for options out of range, or when the value codec needs old bits that the detector lacks.
void check_encode_options(const EncodeOptions& options, bool knows_old);

struct EncodedFrames {
  CommitRecord commit;        ///< Without the result digest.
  StateDigest digest_change;  ///< Zero when the detector does not know old bits.
};

/// Detects and encodes everything; frames go to `sink` in order. With `refresh`, the detector's snapshot is brought up
/// to date in the same pass. With `digest` false, digest_change stays zero (for measuring the codec alone).
EncodedFrames encode_frames(const TensorTable& table, Detector& detector, const DeltaHeader& header,
                            const EncodeOptions& options, bool refresh, bool digest, const RecordSink& sink,
                            const std::function<void(std::uint64_t)>& progress = nullptr);

/// Returns the header of a delta of `table` under `options`.
DeltaHeader make_header(const TensorTable& table, const EncodeOptions& options, const StreamId& stream,
                        std::uint64_t base_version, std::uint64_t version, const StateDigest& base_digest);

/// Returns `stream`, or the identifier derived from the table when `stream` is all zero.
StreamId resolve_stream(const StreamId& stream, const TensorTable& table);

}  // namespace sparsecast
