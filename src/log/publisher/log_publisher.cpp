// SPDX-License-Identifier: Apache-2.0

// The trainer's end of a delta log. Three threads, which share State:
//
//     caller       detects, encodes, hands over; waits with a deadline; tells the Publisher what became of it
//     uploader     object and commit of one delta, at most one at a time
//     maintainer   mirror, merged deltas, anchors (log_maintenance.cpp)
//
// The pending delta belongs to the Publisher. It does not change until the caller's thread has seen that it is durable.
// So the uploader can read it without a copy, and repeat an upload byte for byte.

#include "sparsecast/log_publisher.hpp"

#include <fmt/format.h>

#include <condition_variable>
#include <exception>
#include <mutex>
#include <thread>

#include "core/interrupt.hpp"
#include "core/process_mark.hpp"
#include "log/publisher/log_maintenance.hpp"
#include "memory/memory_backend.hpp"
#include "sparsecast/error.hpp"

namespace sparsecast {
namespace {

using std::chrono::steady_clock;

double seconds_since(steady_clock::time_point start) {
  return std::chrono::duration<double>(steady_clock::now() - start).count();
}

/// Returns the digest of the bits that, to the detector, the receivers hold.
StateDigest base_digest(const std::shared_ptr<const TensorTable>& table, Detector& detector,
                        const EncodeOptions& encode) {
  const JoinedTables tables(table);
  return detector.make_backend(tables, with_positions_decided(encode, *table, detector.has_all_old()))
      ->digests()
      .front();
}

LogTrust of_any_age(LogTrust trust) {
  trust.max_age = std::chrono::milliseconds(0);
  return trust;
}

}  // namespace

struct LogPublisher::State {
  enum class AttemptPhase {
    kIdle,       ///< No attempt is running. The last publication, if any, is durable, and the Publisher knows.
    kUploading,  ///< The uploader works on the delta.
    kDurable,    ///< The delta is in the log, but the Publisher does not know yet.
    kUnsettled,  ///< The attempt ended in `error`; the delta is still pending.
  };

  State(std::shared_ptr<ObjectStore> objects, FileSystem& fs, const LogTrust& trust,
        std::shared_ptr<const TensorTable> tensors, LogPublisherOptions with)
      : store(std::move(objects)),
        table(std::move(tensors)),
        options(std::move(with)),
        reader(store, of_any_age(trust)),
        writer(reader, options.writer) {
    if (options.deadline.count() <= 0) throw Error(ErrorCode::kUsage, "a publisher's deadline is above 0");
    if (!options.mirror.empty()) {
      maintenance = std::make_shared<LogMaintenance>(store, fs, of_any_age(trust), options);
    }
  }

  // Called by the caller's thread.
  void begin(std::unique_ptr<Detector> detector, const EncodeOptions& encode);
  void start_upload();
  /// Waits until the attempt has ended, or until `until`; then informs the Publisher, or throws the error.
  void finish_attempt(steady_clock::time_point until);
  /// Waits until the previous publication is durable.
  void settle(steady_clock::time_point until);
  Error not_durable(const std::string& what) const;

  // Body of the uploader thread.
  void run_uploader();
  void attempt();

  /// Takes the log over, and starts the threads.
  static void start(const std::shared_ptr<State>& self, std::unique_ptr<Detector> detector,
                    const EncodeOptions& encode);
  /// Starts both threads, which share the ownership of `self`.
  static void start_threads(const std::shared_ptr<State>& self);
  /// Waits for the threads until `until`. Detaches threads that are still working; they end by themselves.
  void end_threads(steady_clock::time_point until);

  const ProcessMark process;
  const std::shared_ptr<ObjectStore> store;
  const std::shared_ptr<const TensorTable> table;
  const LogPublisherOptions options;
  LogReader reader;
  LogWriter writer;  ///< Used only by the uploader thread, once it runs.
  std::shared_ptr<LogMaintenance> maintenance;

  std::unique_ptr<Publisher> publisher;  ///< Used only by the caller's thread.
  std::optional<Publication> last;
  std::optional<Error> fenced;
  std::thread uploader;
  std::thread maintainer;

  std::mutex mutex;  ///< Guards the members below.
  std::condition_variable changed;
  AttemptPhase phase = AttemptPhase::kIdle;
  bool stop = false;
  bool uploader_gone = false;
  bool maintainer_gone = false;
  bool told = false;             ///< True if `error` was thrown to the caller.
  const Delta* delta = nullptr;  ///< The Publisher's pending delta.
  std::string label;
  double encode_seconds = 0;
  double upload_seconds = 0;
  LogCommit durable;
  std::optional<Error> error;
};

void LogPublisher::State::begin(std::unique_ptr<Detector> detector, const EncodeOptions& encode) {
  if (detector == nullptr) throw Error(ErrorCode::kUsage, "a publisher needs a detector");
  PublisherOptions numbered;
  numbered.encode = encode;
  if (!encode.objective) numbered.encode.objective = Objective::size();
  const StateDigest digest = base_digest(table, *detector, numbered.encode);
  durable = writer.take_over(table, digest);
  numbered.stream = durable.stream;
  numbered.version = durable.version;
  publisher = std::make_unique<Publisher>(table, std::move(detector), numbered, digest);
}

Error LogPublisher::State::not_durable(const std::string& what) const {
  return Error(ErrorCode::kTimeout,
               fmt::format("version {} is not known to be durable: {}", publisher->version() + 1, what),
               store->location());
}

void LogPublisher::State::start_upload() {
  const std::lock_guard lock(mutex);
  error.reset();
  phase = AttemptPhase::kUploading;
  changed.notify_all();
}

void LogPublisher::State::finish_attempt(steady_clock::time_point until) {
  std::unique_lock lock(mutex);
  if (!wait_or_interrupt(changed, lock, until, [&] { return phase != AttemptPhase::kUploading; })) {
    throw not_durable("the store has not answered in time");
  }
  if (phase == AttemptPhase::kUnsettled) {
    told = true;
    if (error->code() == ErrorCode::kFenced) fenced = error;
    throw *error;
  }
  if (phase == AttemptPhase::kIdle) return;
  phase = AttemptPhase::kIdle;
  last = Publication{durable, encode_seconds, upload_seconds};
  const std::uint64_t version = durable.version;
  lock.unlock();
  publisher->commit(version);
  if (maintenance) maintenance->request();
}

void LogPublisher::State::settle(steady_clock::time_point until) {
  if (fenced) throw *fenced;
  bool again = false;
  {
    const std::lock_guard lock(mutex);
    again = phase == AttemptPhase::kUnsettled;
  }
  if (again) start_upload();
  try {
    finish_attempt(until);
  } catch (const Error&) {
    // The error of the earlier attempt may be outdated, so another attempt is made before the caller sees it.
    if (again || fenced) throw;
    {
      const std::lock_guard lock(mutex);
      if (phase != AttemptPhase::kUnsettled) throw;
    }
    start_upload();
    finish_attempt(until);
  }
}

void LogPublisher::State::run_uploader() {
  std::unique_lock lock(mutex);
  for (;;) {
    // start_upload() or the destructor wakes the thread.
    changed.wait(lock, [&] { return stop || phase == AttemptPhase::kUploading; });
    if (phase != AttemptPhase::kUploading) return;
    lock.unlock();
    attempt();
    lock.lock();
    if (stop) return;
  }
}

void LogPublisher::State::attempt() {
  const steady_clock::time_point start = steady_clock::now();
  std::optional<LogCommit> commit;
  std::optional<Error> failure;
  try {
    commit = writer.publish(*delta, label);
  } catch (const Error& thrown) {
    failure = thrown;
  } catch (const std::exception& thrown) {
    failure = Error(ErrorCode::kIo, thrown.what(), store->location());
  }
  const std::lock_guard lock(mutex);
  upload_seconds = seconds_since(start);
  if (commit) durable = *commit;
  error = std::move(failure);
  told = false;
  phase = commit ? AttemptPhase::kDurable : AttemptPhase::kUnsettled;
  changed.notify_all();
}

void LogPublisher::State::start(const std::shared_ptr<State>& self, std::unique_ptr<Detector> detector,
                                const EncodeOptions& encode) {
  self->begin(std::move(detector), encode);
  start_threads(self);
  if (self->maintenance) self->maintenance->request();
}

void LogPublisher::State::start_threads(const std::shared_ptr<State>& self) {
  const auto leave = [](State& state, bool State::*gone) {
    const std::lock_guard lock(state.mutex);
    state.*gone = true;
    state.changed.notify_all();
  };
  self->uploader = std::thread([self, leave] {
    self->run_uploader();
    leave(*self, &State::uploader_gone);
  });
  if (!self->maintenance) return;
  try {
    self->maintainer = std::thread([self, leave] {
      self->maintenance->run();
      leave(*self, &State::maintainer_gone);
    });
  } catch (...) {
    self->end_threads(steady_clock::now() + self->options.deadline);
    throw;
  }
}

void LogPublisher::State::end_threads(steady_clock::time_point until) {
  if (maintenance) maintenance->stop();
  {
    std::unique_lock lock(mutex);
    stop = true;
    changed.notify_all();
    changed.wait_until(lock, until, [&] {
      return (!uploader.joinable() || uploader_gone) && (!maintainer.joinable() || maintainer_gone);
    });
  }
  const auto let_go = [this](std::thread& thread, bool State::*gone) {
    if (!thread.joinable()) return;
    std::unique_lock lock(mutex);
    const bool ended = this->*gone;
    lock.unlock();
    ended ? thread.join() : thread.detach();
  };
  let_go(uploader, &State::uploader_gone);
  let_go(maintainer, &State::maintainer_gone);
}

LogPublisher::LogPublisher(std::shared_ptr<ObjectStore> store, FileSystem& fs, const LogTrust& trust,
                           std::shared_ptr<const TensorTable> table, std::vector<TensorRef> live,
                           LogPublisherOptions options, EncodeOptions encode)
    : state_(std::make_shared<State>(std::move(store), fs, trust, std::move(table), std::move(options))) {
  State::start(state_, make_detector(state_->table, std::move(live), state_->options.detection), encode);
}

LogPublisher::LogPublisher(std::shared_ptr<ObjectStore> store, FileSystem& fs, const LogTrust& trust,
                           std::shared_ptr<const TensorTable> table, std::unique_ptr<Detector> detector,
                           LogPublisherOptions options, EncodeOptions encode)
    : state_(std::make_shared<State>(std::move(store), fs, trust, std::move(table), std::move(options))) {
  State::start(state_, std::move(detector), encode);
}

LogPublisher::~LogPublisher() {
  if (state_->process.is_here()) {
    state_->end_threads(steady_clock::now() + state_->options.deadline);
  } else {
    // NOLINTNEXTLINE(bugprone-unhandled-exception-at-new): without memory the child ends, as it should.
    new std::shared_ptr<State>(state_);  // In a forked child the threads exist only in the parent. The state is leaked,
                                         // because their std::thread objects cannot be destroyed.
  }
}

LogPublisher::State& LogPublisher::here() const {
  state_->process.require_here(state_->store->location());
  return *state_;
}

std::uint64_t LogPublisher::publish(const std::string& label, CUevent_st* weights_ready) {
  State& state = here();
  state.settle(steady_clock::now() + state.options.deadline);
  const steady_clock::time_point start = steady_clock::now();
  const Delta& delta = state.publisher->publish(weights_ready);
  {
    const std::lock_guard lock(state.mutex);
    state.delta = &delta;
    state.label = label;
    state.encode_seconds = seconds_since(start);
  }
  state.start_upload();
  return delta.info.version;
}

Publication LogPublisher::wait(std::chrono::milliseconds timeout) {
  State& state = here();
  const steady_clock::time_point until = steady_clock::now() + timeout;
  if (state.fenced) throw *state.fenced;
  bool again = false;
  {
    const std::lock_guard lock(state.mutex);
    again = state.phase == State::AttemptPhase::kUnsettled && state.told;
  }
  if (again) state.start_upload();
  state.finish_attempt(until);
  if (!state.last) throw Error(ErrorCode::kUsage, "nothing has been published yet", state.store->location());
  return *state.last;
}

bool LogPublisher::wait_maintenance(std::chrono::milliseconds timeout) {
  return !here().maintenance || state_->maintenance->wait(steady_clock::now() + timeout);
}

std::optional<Error> LogPublisher::maintenance_error() const {
  return here().maintenance ? state_->maintenance->error() : std::nullopt;
}

LogCommit LogPublisher::head() const {
  const std::lock_guard lock(here().mutex);
  return state_->durable;
}

bool LogPublisher::in_flight() const {
  const std::lock_guard lock(here().mutex);
  return state_->phase == State::AttemptPhase::kUploading;
}

}  // namespace sparsecast
