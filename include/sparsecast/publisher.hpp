#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>

#include "sparsecast/delta.hpp"
#include "sparsecast/detector.hpp"
#include "sparsecast/device.hpp"
#include "sparsecast/export.hpp"

namespace sparsecast {

struct PublisherOptions {
  StreamId stream;            ///< All zero: derived from the table's hash.
  std::uint64_t version = 0;  ///< The version that receivers hold when the publisher is made.
  EncodeOptions encode;
  /// The highest number that any delta of the stream has had; the next one gets a higher one than this and `version`.
  std::uint64_t last_attempt = 0;
};

/// The trainer's end. Its base is what the receivers have *committed*, never what was merely sent:
///
///     publish() -> Delta ---- transport ----> every receiver verified it: commit(version)
///                                       \---> anything else:            abort(version)
///
/// Every publish has a version number of its own, so that a delta whose fate is unknown can never be taken for its
/// successor. After abort with a detector that keeps a snapshot, the snapshot is rolled back by the inverse delta, so
/// that the next publish covers everything since the last commit. With one whose detection uses the old bits up
/// (FusedCast), the aborted delta is kept and joined with the next one (compose), so that nothing is lost. Not
/// thread-safe; `encode.threads` works inside.
class SPARSECAST_API Publisher {
 public:
  /// `table` is shared with the detector. Reads all of the detector's snapshot once for the base digest, or where it
  /// keeps none, of current(), unless `base_digest` is given. Throws Error{kUsage} when the value codec needs old bits
  /// that the detector lacks.
  Publisher(std::shared_ptr<const TensorTable> table, std::unique_ptr<Detector> detector, PublisherOptions options,
            std::optional<StateDigest> base_digest = std::nullopt);
  /// The same for weights in device memory; frames are byte for byte those of the CPU. zstd_level must be 0
  /// (Error{kUnsupported}). Without `base_digest`, one kernel reads all tensors.
  Publisher(std::shared_ptr<const TensorTable> table, std::unique_ptr<DeviceDetector> detector,
            PublisherOptions options, std::optional<StateDigest> base_digest = std::nullopt);
  ~Publisher();
  Publisher(Publisher&&) noexcept;
  Publisher& operator=(Publisher&&) noexcept;

  /// Detects and encodes what changed since the committed version. The delta stays owned by the publisher, and
  /// valid, until commit or abort. Throws Error{kUsage} while one is pending. Should it fail half-way (no memory),
  /// every later publish is Error{kDirty}: the detector's knowledge of the base is gone.
  ///
  /// With a device detector: the device begins when `weights_ready` has been reached (null: at once), and has read the
  /// weights when this returns; the frames are copied to the host.
  const Delta& publish(CUevent_st* weights_ready = nullptr);
  /// The same with the frames left in device memory, for transports that send from there; owned by the publisher and
  /// valid until commit or abort. Needs a device detector (Error{kUsage}).
  const DeviceDelta& publish_on_device(CUevent_st* weights_ready = nullptr);
  /// The pending delta has been verified by every receiver; it becomes the base.
  void commit(std::uint64_t version);
  /// The pending delta has failed or its fate is unknown; the base stays.
  ///
  /// Should the device fail while either of the two brings its snapshot along, the error is thrown, what was decided
  /// holds, and every later publish is Error{kDirty}.
  void abort(std::uint64_t version);

  std::uint64_t version() const noexcept;      ///< Last committed.
  const StateDigest& digest() const noexcept;  ///< Of the last committed version.
  bool pending() const noexcept;
  /// The one that it was made with; null when that was of the other kind.
  Detector* detector() noexcept;
  DeviceDetector* device_detector() noexcept;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

/// The same encoder for programs that stream: compares as `detector` does and hands each record to `sink` as soon
/// as it is complete, so that memory stays bounded by frame capacity and threads. `progress` (elements done) may be
/// null. With `with_table`, a table record follows the header (delta files).
SPARSECAST_API CommitRecord encode_delta(const TensorTable& table, Detector& detector, DeltaHeader header,
                                         const EncodeOptions& options, bool with_table, const RecordSink& sink,
                                         const std::function<void(std::uint64_t)>& progress = nullptr);

}  // namespace sparsecast
