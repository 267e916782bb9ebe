// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "sparsecast/delta_log.hpp"
#include "sparsecast/export.hpp"
#include "sparsecast/publisher.hpp"

namespace sparsecast {

struct LogPublisherOptions {
  LogWriterOptions writer;
  DetectorOptions detection;  ///< How changes in the tensors are found.
  /// Path of a checkpoint on this machine's disk that follows the log. Anchors are written from it, and after a restart
  /// the weights of the base version can be read from it. It is created from an anchor when it does not exist. Empty:
  /// this publisher makes neither anchors nor merged deltas; a maintenance process (`sparsecast log compact`,
  /// `sparsecast log anchor`) must make them.
  std::string mirror;
  std::string scratch;  ///< Existing directory for temporary files; empty: a directory below `mirror` + ".follow".
  bool merge = true;    ///< Whether merged deltas are made in the background.
  bool anchors = true;  ///< Whether anchors are written in the background, when writer.anchor_rule requires one.
  /// Maximum duration of every wait. When a publication is not durable after this time, the waiting call throws, and
  /// the next call retries the publication.
  std::chrono::milliseconds deadline{120'000};
};

/// Result of one publication.
struct Publication {
  LogCommit commit;
  double encode_seconds = 0;
  double upload_seconds = 0;  ///< Time of the background upload of delta and commit, in the attempt that succeeded.
};

/// Publishes a trainer's weights to a delta log: detects and encodes in the caller's thread, uploads, commits and
/// maintains in threads of its own (docs/publishing-to-a-log.md).
///
///     idle --publish--> uploading --durable--> idle          (the base advances)
///                           \--error--> unsettled --the same bytes again--> idle, or fenced for good
///
/// One publication is in flight at a time; the base is the last version that is durably committed, never one that was
/// only sent. A delta whose outcome is unknown is never replaced by another one for the same version: the same bytes
/// are committed again, until the store reports the outcome. Failures of maintenance are kept for maintenance_error()
/// and do not affect publishing. Not thread-safe.
class SPARSECAST_API LogPublisher {
 public:
  /// Takes over an existing log (made by LogWriter::create or `sparsecast log init`), as LogWriter::take_over does.
  /// `live` and options.detection are those of Publisher: tensors on the host or on a device, where changes are
  /// detected and encoded; only frames are copied to the host. The bits that receivers are assumed to hold (the
  /// snapshot, or the tensors if there is none) are read once and must have the head's digest, otherwise
  /// Error{kWrongBase}. `fs` must outlive the publisher, and also the threads that its destructor leaves behind.
  /// `trust.max_age` is not used: a publisher may take a log over however old its newest commit is. Throws the errors
  /// of LogReader and LogWriter::take_over.
  LogPublisher(std::shared_ptr<ObjectStore> store, FileSystem& fs, const LogTrust& trust,
               std::shared_ptr<const TensorTable> table, std::vector<TensorRef> live, LogPublisherOptions options,
               EncodeOptions encode = {});
  /// Publishes changes that the caller's own detector finds, as the second constructor of Publisher does;
  /// options.detection is not used.
  LogPublisher(std::shared_ptr<ObjectStore> store, FileSystem& fs, const LogTrust& trust,
               std::shared_ptr<const TensorTable> table, std::unique_ptr<Detector> detector,
               LogPublisherOptions options, EncodeOptions encode = {});
  /// Waits for work in flight, at most options.deadline; a thread that a store blocks for longer is left behind.
  ~LogPublisher();
  LogPublisher(const LogPublisher&) = delete;
  LogPublisher& operator=(const LogPublisher&) = delete;

  /// Settles the previous publication (waits at most the deadline, and retries once if the publication had failed).
  /// Then encodes the changes since that publication, and passes them to the uploading thread. `label` becomes
  /// LogCommit::label. Returns the new version's number. When the previous publication could not be settled, throws its
  /// error or kTimeout: nothing new was encoded then, and the call may be repeated. Error{kFenced} is final. Changes
  /// made while a publication is unsettled are part of the next one. `weights_ready`, for tensors on a device: the
  /// event after which the weights may be read (null: whatever the detector's stream waits for). When the call returns,
  /// the weights may change.
  std::uint64_t publish(const std::string& label = {}, CUevent_st* weights_ready = nullptr);
  /// Waits until the newest publication is durable. Throws kTimeout when it is not after `timeout` (the upload
  /// continues), or the publication's error: its outcome is then unknown, and the next wait() or publish() retries the
  /// same bytes. Error{kFenced} is final; kUsage before the first publish(). Repeated calls for a durable publication
  /// return the same result.
  Publication wait(std::chrono::milliseconds timeout);
  /// Waits until merged deltas and anchors are made for all versions that are durable now, or maintenance has failed.
  /// Returns false after `timeout`, and true at once without a mirror.
  bool wait_maintenance(std::chrono::milliseconds timeout);
  /// Returns the error of the last maintenance attempt; nullopt when it succeeded. The next durable version triggers a
  /// retry.
  std::optional<Error> maintenance_error() const;

  LogCommit head() const;  ///< Returns the publisher's newest commit known to be durable.
  bool in_flight() const;  ///< Returns true while a publication is being uploaded.

 private:
  struct State;
  /// Returns the state. Throws Error{kUsage} in a forked child of the process that made this object.
  State& here() const;
  std::shared_ptr<State> state_;  // Shared with the threads, which may outlive this object.
};

}  // namespace sparsecast
