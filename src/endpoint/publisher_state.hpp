// SPDX-License-Identifier: Apache-2.0
#pragma once

// The publisher of several delta streams that share a detector: one pass detects and encodes all of them. A publisher
// of one stream uses the same rules on versions, pending and aborted deltas. Work that depends on the memory of the
// weights is behind PublisherBackend.

#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "memory/publisher_backend.hpp"
#include "sparsecast/publisher.hpp"

namespace sparsecast {

/// Publisher of several delta streams that have the same version at all times: a publish makes one delta per stream,
/// all with the same version number, and commit() and abort() apply to all streams. Throws as Publisher does. Not
/// thread-safe.
class PublisherState {
 public:
  /// Makes the publisher. `tables` has the tables of the streams, and `detector` finds changes in the tensors of the
  /// joined table. `base_digests` has one digest per stream; when it is empty, the receivers' bits are read to compute
  /// them. `options.stream`, unless it is zero, is the identifier of every stream.
  PublisherState(JoinedTables tables, std::unique_ptr<Detector> detector, PublisherOptions options,
                 std::vector<StateDigest> base_digests = {});

  /// Function that is called as soon as a stream's delta is complete, in the order of the streams. The delta stays
  /// valid until the next publish, even when the pass fails later.
  using Published = std::function<void(std::size_t stream, const Delta& delta)>;
  /// Publishes all streams as Publisher::publish does. Returns their deltas, parallel to the streams, which are valid
  /// until commit or abort.
  const std::vector<Delta>& publish(CUevent_st* weights_ready = nullptr, const Published& published = nullptr);
  /// Publishes all streams as Publisher::publish_on_device does. Returns their deltas, parallel to the streams.
  const std::vector<DeviceDelta>& publish_on_device(CUevent_st* weights_ready = nullptr);
  /// Returns the pending deltas, parallel to the streams. They have no frames while the frames are only on the device.
  const std::vector<Delta>& deltas() const noexcept { return encoded_.deltas; }
  /// Returns the result of the last publish_on_device().
  const std::vector<DeviceDelta>& on_device_deltas() const noexcept { return encoded_.on_device; }
  /// Copies the frames of the pending deltas to the host, unless they are there already; deltas() then has them.
  void take_frames() { take_frames(encoded_); }
  void commit(std::uint64_t version);
  void abort(std::uint64_t version);

  const JoinedTables& tables() const noexcept { return tables_; }
  std::uint64_t version() const noexcept { return version_; }
  const std::vector<StateDigest>& digests() const noexcept { return digests_; }
  bool pending() const noexcept { return pending_; }
  /// Returns the highest version number ever given to a delta. While a delta is pending, that is its version.
  std::uint64_t attempt() const noexcept { return last_attempt_; }
  /// Returns true when a step failed half-way, so that the state of the detector is unknown.
  bool broken() const noexcept { return broken_; }
  bool on_device() const noexcept { return backend_->on_device(); }
  Detector& detector() noexcept { return *detector_; }

 private:
  /// Deltas of all streams. Their frames are on the host (frames_here), on the device (on_device), or on both.
  struct Encoded {
    std::vector<Delta> deltas;
    bool frames_here = false;
    std::vector<DeviceDelta> on_device;
  };

  void encode(const Encoded* base, CUevent_st* weights_ready, const Published& published);
  void complete(Delta& delta, const StateDigest& result) const;
  void take_frames(Encoded& encoded);
  void join_aborted();
  void start(CUevent_st* weights_ready, const Published& published);
  Encoded take_pending(std::uint64_t asked, const char* verb);
  template <class Step>
  void guarded(const Step& step);

  JoinedTables tables_;
  std::unique_ptr<Detector> detector_;
  std::unique_ptr<PublisherBackend> backend_;
  PublisherOptions options_;
  std::uint64_t version_;             ///< Number of the version that was committed last.
  std::uint64_t last_attempt_;        ///< Highest version number ever given to a delta.
  std::vector<StateDigest> digests_;  ///< Digests of the committed version, parallel to the streams.
  Encoded encoded_;                   ///< Deltas of the last pass; they are pending once the pass has succeeded.
  bool pending_ = false;
  /// Aborted deltas whose changes the detector will not find again; they are joined with the next deltas.
  std::optional<Encoded> aborted_;
  bool broken_ = false;  ///< True when a step failed half-way, so that the state of the detector is unknown.
};

/// Returns the state of a publisher. The publisher owns it.
PublisherState& state_of(Publisher& publisher) noexcept;

}  // namespace sparsecast
