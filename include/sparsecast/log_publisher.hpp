#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "sparsecast/delta_log.hpp"
#include "sparsecast/export.hpp"
#include "sparsecast/publisher.hpp"

namespace sparsecast {

struct LogPublisherOptions {
  LogWriterOptions writer;
  /// A checkpoint on this machine's disk that follows the log; from it anchors are written and restarts find the base.
  /// Made from an anchor when it is not there. Empty: neither anchors nor merged deltas are made here (a maintenance
  /// process does it: `sparsecast log compact`, `log anchor`).
  std::string mirror;
  std::string scratch;  ///< Existing directory for temporary files; empty: below `mirror` + ".follow".
  bool merge = true;    ///< Compact in the background.
  bool anchors = true;  ///< By writer.anchor_rule.
  /// Of every wait here: a publication that is not durable after this is reported, and tried again by the next call.
  std::chrono::milliseconds deadline{120'000};
};

/// What became of one publication.
struct Publication {
  LogCommit commit;
  double encode_seconds = 0;
  double upload_seconds = 0;  ///< Object and commit, in the background; of the attempt that was answered.
};

/// The trainer's end of a delta log: detects and encodes in the caller's thread, uploads, commits and maintains in
/// threads of its own (docs/publishing-to-a-log.md).
///
///     idle --publish--> uploading --durable--> idle          (the base advances)
///                           \--error--> unsettled --the same bytes again--> idle, or fenced for good
///
/// One publication is in flight at a time; the base is what is durably committed, never what was merely sent. A delta
/// whose fate is unknown is never replaced by another one for the same version: its very bytes are committed again,
/// until the store says what became of it. Every failure of maintenance is kept for maintenance_error() and never
/// harms publishing. Not thread-safe.
class SPARSECAST_API LogPublisher {
 public:
  /// Takes over the log, which is there (LogWriter::create, `sparsecast log init`): see LogWriter::take_over. What
  /// `detector` takes for the receivers' bits (its snapshot; current() where it keeps none) is read once and must have
  /// the head's digest, else Error{kWrongBase}. `table` is shared with the detector; `fs` outlives the publisher and,
  /// where the destructor ran out of time, the process's threads. `trust.max_age` is not used: a publisher may come
  /// back after any time. Throws what LogReader and LogWriter::take_over throw.
  LogPublisher(std::shared_ptr<ObjectStore> store, FileSystem& fs, LogTrust trust,
               std::shared_ptr<const TensorTable> table, std::unique_ptr<Detector> detector,
               LogPublisherOptions options, EncodeOptions encode = {});
  /// Waits for what is in flight, at most options.deadline; a thread that a store keeps for longer is left behind.
  ~LogPublisher();
  LogPublisher(const LogPublisher&) = delete;
  LogPublisher& operator=(const LogPublisher&) = delete;

  /// Settles the publication before (waiting at most the deadline, trying once more if it had failed), encodes what
  /// changed since, and hands it to the uploading thread. Returns the version that it will be. Throws what the one
  /// before failed with, or kTimeout, when it could not be settled: nothing new was encoded then, and the call may be
  /// repeated. Error{kFenced} is final. What changed while a publication is unsettled is part of the next one.
  std::uint64_t publish(const std::string& label = {});
  /// Until the newest publication is durable. Throws kTimeout when it is not by then (it goes on), or its error: its
  /// fate is then unknown, and the next wait() or publish() tries the same bytes again. Error{kFenced} is final;
  /// kUsage before the first publish(). Asked again of a durable publication, it gives the same answer.
  Publication wait(std::chrono::milliseconds timeout);
  /// Until merged deltas and anchors are made for all versions that are durable now, or maintenance failed; false when
  /// time ran out. True at once without a mirror.
  bool wait_maintenance(std::chrono::milliseconds timeout);
  /// Of the last maintenance that was tried; nullopt when it went well. The next durable version tries again.
  std::optional<Error> maintenance_error() const;

  LogCommit head() const;  ///< The newest commit of this publisher that is known to be durable.
  bool in_flight() const;  ///< A publication is being uploaded.

 private:
  struct State;
  std::shared_ptr<State> state_;  // Shared with the threads, which may outlive this object.
};

}  // namespace sparsecast
