// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "sparsecast/delta.hpp"
#include "sparsecast/detector.hpp"
#include "sparsecast/device.hpp"
#include "sparsecast/export.hpp"

namespace sparsecast {

class PublisherState;

struct PublisherOptions {
  StreamId stream;            ///< Identifier of the stream; all zero: derived from the table's hash.
  std::uint64_t version = 0;  ///< Version that receivers hold when the publisher is made.
  EncodeOptions encode;
  /// Highest version number that any delta of the stream has had so far. The next delta gets a version number above
  /// both this and `version`.
  std::uint64_t last_attempt = 0;
  DetectorOptions detection;  ///< How changes are found. Not used when the caller passes its own detector.
};

/// Publishes a trainer's weights as deltas. The base is the version that the receivers have *committed*, never one that
/// was only sent:
///
///     publish() -> Delta ---- transport ----> every receiver verified it: commit(version)
///                                       \---> anything else:            abort(version)
///
/// Each publish uses a new version number, so that a delta whose outcome is unknown can never be mistaken for a later
/// one. After abort, a detector's snapshot is rolled back by the inverse delta, so that the next publish covers all
/// changes since the last commit. With a detector that overwrites the old bits (kFusedCast), the aborted delta is kept
/// and composed with the next one, so that no change is lost. Not thread-safe; `encode.threads` are used internally.
class SPARSECAST_API Publisher {
 public:
  /// Takes the trainer's tensors, which are parallel to the table, and all on one device or all on the host. The caller
  /// owns them and keeps them in place while the publisher exists; `options.detection` says how changes in them are
  /// found, and what else is required of them. Unless `base_digest` is given, reads the receivers' bits (the snapshot,
  /// or the tensors if there is none) once for the base digest. A device makes frames with the same bytes as the CPU;
  /// zstd_level must be 0 on a device (Error{kUnsupported}). Throws Error{kUsage} that names the tensor for references
  /// that do not fit the table; kUsage when the value codec needs old bits that the detection lacks; kUnsupported when
  /// a device backend or device memory is missing, which the message names, or for views or masters that the detection
  /// does not accept; and the errors of the device.
  Publisher(std::shared_ptr<const TensorTable> table, std::vector<TensorRef> live, PublisherOptions options,
            std::optional<StateDigest> base_digest = std::nullopt);
  /// Publishes changes that the caller's own detector (a TileDetector) for this table finds. Throws as the constructor
  /// above, and Error{kTableMismatch} for a detector of another table.
  Publisher(std::shared_ptr<const TensorTable> table, std::unique_ptr<Detector> detector, PublisherOptions options,
            std::optional<StateDigest> base_digest = std::nullopt);
  ~Publisher();
  Publisher(Publisher&&) noexcept;
  Publisher& operator=(Publisher&&) noexcept;

  /// Detects and encodes the changes since the committed version, and returns them as a delta. The publisher owns the
  /// delta, which is valid until commit or abort. Throws Error{kUsage} while a delta is pending. If the call fails
  /// midway (for example without memory), every later publish throws Error{kDirty}, because the detector no longer
  /// knows the base.
  ///
  /// With a device detector, the device starts when the event `weights_ready` has been reached (null: at once). When
  /// this call returns, the device has read the weights, and the frames have been copied to the host.
  const Delta& publish(CUevent_st* weights_ready = nullptr);
  /// Publishes like publish(), but returns a delta whose frames stay in device memory, for transports that send from
  /// there. The publisher owns the delta, which is valid until commit or abort. Requires a device detector
  /// (Error{kUsage}).
  const DeviceDelta& publish_on_device(CUevent_st* weights_ready = nullptr);
  /// Makes `version`, which is that of the pending delta, the new base. Call it after every receiver has verified the
  /// delta.
  void commit(std::uint64_t version);
  /// Drops the pending delta, whose version is `version`, because it has failed or its outcome is unknown. The base
  /// stays the same.
  ///
  /// If the device fails while commit() or abort() updates its snapshot, the error is thrown, the commit or abort
  /// holds, and every later publish throws Error{kDirty}.
  void abort(std::uint64_t version);

  std::uint64_t version() const noexcept;      ///< Returns the last committed version.
  const StateDigest& digest() const noexcept;  ///< Returns the digest of the last committed version.
  bool pending() const noexcept;
  bool on_device() const noexcept;  ///< Returns true when the weights are on a device.
  /// Returns the detector that the publisher was made with.
  Detector& detector() noexcept;

 private:
  friend PublisherState& state_of(Publisher& publisher) noexcept;
  std::unique_ptr<PublisherState> state_;
};

/// Encodes a delta for programs that stream. Detects changes by `detector` and passes each record to `sink` as soon as
/// it is complete, so that memory is bounded by frame capacity and threads. `header` has the stream, the versions and
/// the base digest. `progress` is called with the number of elements done, and may be null. With `with_table`, a table
/// record follows the header, as in delta files. Returns the commit record.
SPARSECAST_API CommitRecord encode_delta(const TensorTable& table, TileDetector& detector, DeltaHeader header,
                                         const EncodeOptions& options, bool with_table, const RecordSink& sink,
                                         const std::function<void(std::uint64_t)>& progress = nullptr);

}  // namespace sparsecast
