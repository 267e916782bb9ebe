// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <span>
#include <vector>

#include "core/joined_tables.hpp"
#include "sparsecast/delta.hpp"
#include "sparsecast/detector.hpp"

namespace sparsecast {

/// Throws Error{kUsage} for options out of range, or when the value codec needs old bits that the detector lacks.
void check_encode_options(const EncodeOptions& options, bool knows_old);

/// Returns the options with kAuto decided: kContext where the objective asks for it, the values and a tensor's floating
/// dtype allow it, and `all_old` says that the encoder has the old bits of every element.
EncodeOptions with_positions_decided(EncodeOptions options, const TensorTable& table, bool all_old);

/// Result of an encode for one stream.
struct EncodedFrames {
  CommitRecord commit;        ///< Without the result digest.
  StateDigest digest_change;  ///< Zero when the detector does not know old bits.
  std::vector<Bytes> frames;  ///< Records in order; empty when they lie on a device.
};

/// Receives the results of an encode in the order of the streams, each as soon as the stream's last frame is made.
using EncodedStreamSink = std::function<void(std::size_t stream, EncodedFrames&& encoded)>;

/// Detects and encodes all streams in one pass; `headers` are parallel to them. With `refresh`, the detector's snapshot
/// is brought up to date in the same pass.
void encode_streams(const JoinedTables& tables, TileDetector& detector, std::span<const DeltaHeader> headers,
                    const EncodeOptions& options, bool refresh, const EncodedStreamSink& sink);

/// Detects and encodes one stream, whose frames go to `sink` in order. With `digest` false, digest_change stays zero
/// (for measuring the codec alone).
EncodedFrames encode_frames(const TensorTable& table, TileDetector& detector, const DeltaHeader& header,
                            const EncodeOptions& options, bool refresh, bool digest, const RecordSink& sink,
                            const std::function<void(std::uint64_t)>& progress = nullptr);

/// Returns the header of a delta of `table` under `options`.
DeltaHeader make_header(const TensorTable& table, const EncodeOptions& options, const StreamId& stream,
                        std::uint64_t base_version, std::uint64_t version, const StateDigest& base_digest);

/// Returns `stream`, or the identifier derived from the table when `stream` is all zero.
StreamId resolve_stream(const StreamId& stream, const TensorTable& table);

}  // namespace sparsecast
