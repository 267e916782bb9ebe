// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <span>
#include <vector>

#include "core/joined_tables.hpp"
#include "sparsecast/delta.hpp"
#include "sparsecast/detector.hpp"

namespace sparsecast {

/// Throws Error{kUsage} for options out of range, and for a value codec that needs old bits when the detector does not
/// know them (`knows_old` is false).
void check_encode_options(const EncodeOptions& options, bool knows_old);

/// Returns the options with PositionMode::kAuto replaced by kContext, if all of these hold: the objective asks for it,
/// the value codec and the floating dtype of a tensor allow it, and the encoder has the old bits of every element
/// (`all_old`). Otherwise returns the options as they are.
EncodeOptions with_positions_decided(EncodeOptions options, const TensorTable& table, bool all_old);

/// Result of encoding one stream.
struct EncodedFrames {
  CommitRecord commit;  ///< Commit record of the delta, without its result digest.
  /// Change of the state digest by the delta; zero when the detector does not know old bits.
  StateDigest digest_change;
  std::vector<Bytes> frames;  ///< Frame records in order; empty when the frames lie on a device.
};

/// Function that receives the results of encoding several streams, in the order of the streams. It is called for each
/// stream as soon as the stream's last frame is complete.
using EncodedStreamSink = std::function<void(std::size_t stream, EncodedFrames&& encoded)>;

/// Detects and encodes all streams of `tables` in one pass; `headers` are parallel to the streams. With `refresh`, the
/// same pass writes the new bits of changed elements to the detector's snapshot.
void encode_streams(const JoinedTables& tables, TileDetector& detector, std::span<const DeltaHeader> headers,
                    const EncodeOptions& options, bool refresh, const EncodedStreamSink& sink);

/// Detects and encodes one stream, passes its frames to `sink` in order, and returns the rest of the result. With
/// `refresh`, the same pass writes the new bits of changed elements to the detector's snapshot. `progress`, unless
/// null, is called with the number of elements done. With `digest` false, digest_change stays zero (for measuring the
/// codec alone).
EncodedFrames encode_frames(const TensorTable& table, TileDetector& detector, const DeltaHeader& header,
                            const EncodeOptions& options, bool refresh, bool digest, const RecordSink& sink,
                            const std::function<void(std::uint64_t)>& progress = nullptr);

/// Returns the header of a delta of `table` that is encoded with `options`. The field delta_id is not set.
DeltaHeader make_header(const TensorTable& table, const EncodeOptions& options, const StreamId& stream,
                        std::uint64_t base_version, std::uint64_t version, const StateDigest& base_digest);

/// Returns `stream`, or the hash of the table when `stream` is all zero.
StreamId resolve_stream(const StreamId& stream, const TensorTable& table);

}  // namespace sparsecast
