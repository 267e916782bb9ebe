// SPDX-License-Identifier: Apache-2.0

// Delta logs from Python: creates one, publishes to it, and follows it with live tensors or a checkpoint.

#include <fmt/format.h>

#include <exception>
#include <functional>
#include <memory>
#include <utility>

#include "bindings.hpp"
#include "checkpoint/table_difference.hpp"
#include "memory.hpp"
#include "path_text.hpp"
#if SPARSECAST_HAVE_LOG
#include "publisher_detector.hpp"
#include "sparsecast/delta_log.hpp"
#include "sparsecast/digest.hpp"
#include "sparsecast/log_follower.hpp"
#include "sparsecast/log_publisher.hpp"
#include "sparsecast/safetensors.hpp"
#include "sparsecast/tensor.hpp"
#include "stores.hpp"

namespace sparsecast::python {
namespace {

FileSystem& files() { return FileSystem::posix(); }

LogTrust trust_of(const std::vector<std::string>& keys) {
  LogTrust trust;
  for (const std::string& key : keys) trust.pinned.push_back(public_key_from_string(key));
  return trust;
}

std::shared_ptr<const SigningKey> signing_key(const std::optional<PathText>& path) {
  return path ? SigningKey::load(files(), *path) : nullptr;
}

/// Returns the bytes of the tensors for a log. Throws Error{kUnsupported} for device memory, and Error{kUsage} naming a
/// tensor that does not fit the table or is not contiguous.
std::vector<MutableBytes> host_tensors(const TensorTable& table, const std::vector<Memory>& memory, bool writable) {
  if (device_of(tensors_for(table, memory, writable, "tensor")) != kHostMemory) {
    throw Error(ErrorCode::kUnsupported, "a log takes tensors from host memory");
  }
  return contiguous_bytes(table, memory);
}

/// Writes the tensors into one safetensors file, which appears under its name whole or not at all.
void write_checkpoint(const TensorTable& table, const std::vector<MutableBytes>& tensors, const std::string& path) {
  SafetensorsWriter writer(files(), path, {table.begin(), table.end()});
  for (const MutableBytes tensor : tensors) writer.append(tensor);
  writer.finish();
}

/// Creates a log with its first version and anchor and returns that version; returns the head version if the log
/// exists.
std::uint64_t create_log(const StoreLocation& location, const TensorTable& table, const std::vector<Memory>& memory,
                         const PathText& anchor_path, std::uint64_t version, const std::optional<PathText>& key,
                         const std::string& label, int threads, double timeout) {
  const std::vector<MutableBytes> tensors = host_tensors(table, memory, false);
  const GilRelease release;
  LogReader reader(location.open(milliseconds(timeout)));
  LogWriterOptions options;
  options.key = signing_key(key);
  options.threads = threads;
  LogWriter writer(reader, options);
  const StateDigest digest = sum(digest_tensors(table, refs_to(table, tensors), threads));
  if (files().exists(anchor_path) && !is_checkpoint_of(files(), anchor_path, table.hash())) {
    throw Error(ErrorCode::kUsage,
                "the first anchor of the log would replace it, and it is no checkpoint of these tensors: take another "
                "path for the mirror, or remove it",
                anchor_path);
  }
  write_checkpoint(table, tensors, anchor_path);
  const LogCommit commit = writer.create({{}, version, std::make_shared<const TensorTable>(table), digest, {}, label});
  writer.write_anchor(files(), anchor_path, commit.version);
  return commit.version;
}

class PythonLogPublisher {
 public:
  PythonLogPublisher(const StoreLocation& location, const TensorTable& table, const DetectorRequest& request,
                     LogPublisherOptions options, const std::vector<std::string>& trusted, const EncodeOptions& encode)
      : table_(std::make_shared<const TensorTable>(table)), kept_(request.all()) {
    auto detector = make_detector(table_, request);
    const GilRelease release;
    publisher_ = std::make_unique<LogPublisher>(location.open(options.deadline), files(), trust_of(trusted), table_,
                                                std::move(detector), std::move(options), encode);
  }
  ~PythonLogPublisher() {
    const GilRelease release;
    publisher_.reset();
  }
  PythonLogPublisher(const PythonLogPublisher&) = delete;
  PythonLogPublisher& operator=(const PythonLogPublisher&) = delete;

  LogPublisher& get() noexcept { return *publisher_; }

 private:
  std::shared_ptr<const TensorTable> table_;
  std::vector<Memory> kept_;
  std::unique_ptr<LogPublisher> publisher_;
};

/// Calls `pause`, a callable or None, as the library's callback for writes of the weights. Returns false if its result
/// is False. The library's callback must not throw: an exception of Python also means false, and is passed to `failed`.
template <class Failed>
bool tell(const nb::object& pause, bool paused, const Failed& failed) {
  const GilAcquire acquire;
  try {
    return !pause(paused).is(nb::bool_(false));
  } catch (...) {
    failed(std::current_exception());
    return false;
  }
}

/// Tells Python's garbage collector of the member `pause_` of an object, a callable that may own the object through
/// others.
template <class Owner>
struct PauseSlots {
  static int traverse(PyObject* self, visitproc visit, void* arg) {
    Py_VISIT(Py_TYPE(self));
    if (nb::inst_ready(self)) {
      const PyObject* const pause = nb::inst_ptr<Owner>(self)->pause_.ptr();
      Py_VISIT(const_cast<PyObject*>(pause));
    }
    return 0;
  }
  static int clear(PyObject* self) {
    if (nb::inst_ready(self)) nb::inst_ptr<Owner>(self)->pause_ = nb::none();
    return 0;
  }
  static inline PyType_Slot slots[] = {{Py_tp_traverse, reinterpret_cast<void*>(&traverse)},
                                       {Py_tp_clear, reinterpret_cast<void*>(&clear)},
                                       {0, nullptr}};
};

/// A rank of an engine, and the memory that it writes.
class PythonEngineRank {
 public:
  PythonEngineRank(std::shared_ptr<ControlChannel> ranks, const TensorTable& table,
                   const std::shared_ptr<const Layout>& layout, const std::vector<Memory>& tensors,
                   SubscriberOptions subscribing, nb::object pause, double timeout, std::uintptr_t stream,
                   double device_timeout)
      : memory_(rank_memory(*layout, static_cast<std::size_t>(ranks->rank()), tensors, true)),
        pause_(std::move(pause)) {
    EngineRank::Options options;
    options.subscriber = subscribing;
    if (!pause_.is_none()) {
      // An exception is Python's own to show: step() belongs to another object, and serve() to other ranks, too.
      options.pause = [this](bool paused) {
        return tell(pause_, paused, [](const std::exception_ptr& failure) { show(failure); });
      };
    }
    options.timeout = milliseconds(timeout);
    options.device = device_options(memory_.device(), stream, device_timeout);
    const auto shared_table = std::make_shared<const TensorTable>(table);
    const GilRelease release;
    rank_ = std::make_unique<EngineRank>(std::move(ranks), shared_table, layout, memory_.tensors, files(),
                                         std::move(options));
  }

  EngineRank& get() noexcept { return *rank_; }

 private:
  friend struct PauseSlots<PythonEngineRank>;
  static void show(const std::exception_ptr& failure) {
    try {
      std::rethrow_exception(failure);
    } catch (nb::python_error& error) {
      error.discard_as_unraisable("pause");
    } catch (...) {  // Not of Python; the refusal is told without it.
    }
  }

  RankMemory memory_;
  nb::object pause_;  ///< A callable, or None.
  std::unique_ptr<EngineRank> rank_;
};

/// A follower of a log, the subscriber that is its target, and the memory that both write.
class PythonLogFollower {
 public:
  /// Makes the follower of an engine of several ranks, for its rank 0, which must outlive it.
  PythonLogFollower(const StoreLocation& location, const std::string& state_path, PythonEngineRank& rank,
                    const std::string& scratch, FollowerOptions options, std::chrono::milliseconds timeout)
      : rank_(&rank.get()) {
    const GilRelease release;
    const std::shared_ptr<ObjectStore> store = location.open(timeout);
    follower_ = std::make_unique<LogFollower>(store, files(), state_path, make_engine_target(rank.get(), scratch),
                                              std::move(options));
  }
  PythonLogFollower(const StoreLocation& location, const std::string& state_path, const TensorTable& table,
                    const std::vector<Memory>& memory, const std::string& scratch, const SubscriberOptions& subscribing,
                    FollowerOptions options, std::chrono::milliseconds timeout, nb::object pause, std::uintptr_t stream,
                    double device_timeout)
      : table_(std::make_shared<const TensorTable>(table)), kept_(memory), pause_(std::move(pause)) {
    std::vector<TensorRef> live = tensors_for(*table_, memory, true, "tensor");
    const DeviceOptions device = device_options(device_of(live), stream, device_timeout);
    const GilRelease release;
    const std::shared_ptr<ObjectStore> store = location.open(timeout);
    SubscriberOptions of_log = subscribing;
    LogReader reader(store, options.trust);
    const std::optional<LogCommit> head = reader.head();
    if (!head) throw Error(ErrorCode::kIncomplete, "there is no log here yet", location.text());
    of_log.stream = head->stream;
    subscriber_ = std::make_unique<Subscriber>(table_, live, of_log, device);
    follower_ = std::make_unique<LogFollower>(
        store, files(), state_path,
        make_subscriber_target(
            *subscriber_, table_, live, files(), scratch,
            pause_.is_none() ? std::function<bool(bool)>()
                             : [this](bool paused) {
                                 return tell(pause_, paused, [this](const std::exception_ptr& failure) {
                                   if (!failure_) failure_ = failure;
                                 });
                               },
            device),
        std::move(options));
  }

  FollowReport step(const std::optional<std::uint64_t>& version) {
    failure_ = nullptr;
    FollowReport report;
    try {
      const GilRelease release;
      report = follower_->step(version);
    } catch (...) {
      if (!failure_) throw;  // An exception of `pause` is the cause of the library's error.
    }
    if (failure_) std::rethrow_exception(std::exchange(failure_, nullptr));
    return report;
  }
  LogFollower& get() noexcept { return *follower_; }
  bool dirty() const noexcept { return rank_ != nullptr ? rank_->dirty() : subscriber_->dirty(); }

 private:
  friend struct PauseSlots<PythonLogFollower>;

  std::shared_ptr<const TensorTable> table_;
  std::vector<Memory> kept_;
  nb::object pause_ = nb::none();  ///< A callable, or None.
  std::exception_ptr failure_;     ///< What `pause` raised in a step.
  std::unique_ptr<Subscriber> subscriber_;
  EngineRank* rank_ = nullptr;  ///< In place of subscriber_, for an engine of several ranks.
  std::unique_ptr<LogFollower> follower_;
};

void bind_publication(nb::module_& m) {
  nb::class_<Publication>(m, "Publication", "Result of one publication to a log.")
      .def_prop_ro("version", [](const Publication& self) { return self.commit.version; })
      .def_prop_ro("changed", [](const Publication& self) { return self.commit.changed; })
      .def_prop_ro("elements", [](const Publication& self) { return self.commit.elements; })
      .def_prop_ro(
          "wire_bytes", [](const Publication& self) { return self.commit.delta_bytes; },
          "Bytes of the object of the delta.")
      .def_prop_ro("digest", [](const Publication& self) { return to_hex(self.commit.digest.value); })
      .def_ro("encode_seconds", &Publication::encode_seconds)
      .def_ro("upload_seconds", &Publication::upload_seconds);
}

void bind_publisher(nb::module_& m) {
  nb::class_<PythonLogPublisher>(
      m, "LogPublisher",
      "Publisher to a delta log: detects and encodes in the thread of the caller; uploads, commits and maintains in"
      " threads of its own. One publication is in progress at a time. Not thread-safe.")
      .def(
          "__init__",
          [](PythonLogPublisher* self, const StoreLocation& location, const TensorTable& table,
             const std::vector<Memory>& tensors, const std::string& detector,
             const std::optional<std::vector<std::optional<Memory>>>& masters, const std::optional<PathText>& key,
             const std::vector<std::string>& trusted_keys, const PathText& mirror, bool merge, bool anchors,
             double deadline, const std::string& positions, const std::string& values,
             const std::optional<std::string>& objective, std::uint32_t block_changes, int zstd_level, int threads,
             std::uintptr_t stream, double device_timeout) {
            LogPublisherOptions options;
            options.writer.key = signing_key(key);
            options.writer.threads = threads;
            options.mirror = mirror;
            options.merge = merge;
            options.anchors = anchors;
            options.deadline = milliseconds(deadline);
            new (self) PythonLogPublisher(location, table, {detector, tensors, masters, stream, device_timeout},
                                          std::move(options), trusted_keys,
                                          encode_options(positions, values, objective, block_changes, zstd_level,
                                                         EncodeOptions{}.frame_capacity, threads));
          },
          nb::arg("location"), nb::arg("table"), nb::arg("tensors"), nb::kw_only(), nb::arg("detector") = "snapshot",
          nb::arg("masters") = nb::none(), nb::arg("key") = nb::none(),
          nb::arg("trusted_keys") = std::vector<std::string>{}, nb::arg("mirror") = "", nb::arg("merge") = true,
          nb::arg("anchors") = true, nb::arg("deadline") = 120.0, nb::arg("positions") = "auto",
          nb::arg("values") = "ulp", nb::arg("objective") = nb::none(), nb::arg("block_changes") = kBlockChanges,
          nb::arg("zstd_level") = 0, nb::arg("threads") = 1, nb::arg("stream") = 0, nb::arg("device_timeout") = 60.0,
          "Continues the existing log at `location` (a directory, s3://bucket/prefix or a "
          "sparsecast.stores.Store; see create_log). Raises "
          "WrongBaseError unless the tensors hold its newest version. `key`: path of a signing key; "
          "`trusted_keys`: public keys as 'ed25519:...'. `mirror`: path of a checkpoint from which anchors and "
          "merged deltas are made. `objective`: what positions='auto' saves: 'size' (the default), 'speed', or the "
          "rate of the slowest link, '100Mb/s'. `block_changes`: 4096 for smaller deltas of integer tensors and other "
          "positions than 'context', on the host only. CUDA tensors, and `stream` and `device_timeout`: as in "
          "Publisher; only frames come to the host.")
      .def(
          "publish",
          [](PythonLogPublisher& self, const std::string& label) {
            const GilRelease release;
            return self.get().publish(label);
          },
          nb::arg("label") = "",
          "Encodes the changes, passes them to the uploading thread, and returns the version that they become. "
          "FencedError is final; after any other error the call may be repeated.")
      .def(
          "wait",
          [](PythonLogPublisher& self, double timeout) {
            const GilRelease release;
            return self.get().wait(milliseconds(timeout));
          },
          nb::arg("timeout") = 120.0, "Until the newest publication is durable.")
      .def(
          "wait_maintenance",
          [](PythonLogPublisher& self, double timeout) {
            const GilRelease release;
            return self.get().wait_maintenance(milliseconds(timeout));
          },
          nb::arg("timeout") = 120.0)
      .def_prop_ro("maintenance_error",
                   [](PythonLogPublisher& self) -> std::optional<std::string> {
                     const std::optional<Error> error = self.get().maintenance_error();
                     return error ? std::optional<std::string>(error->what()) : std::nullopt;
                   })
      .def_prop_ro(
          "version", [](PythonLogPublisher& self) { return self.get().head().version; },
          "Version of the newest commit that is known to be durable.")
      .def_prop_ro(
          "digest", [](PythonLogPublisher& self) { return to_hex(self.get().head().digest.value); },
          "State digest of that commit.")
      .def_prop_ro("stream_id", [](PythonLogPublisher& self) { return to_hex(self.get().head().stream); })
      .def_prop_ro("in_flight", [](PythonLogPublisher& self) { return self.get().in_flight(); });
}

FollowerOptions follower_options(const std::vector<std::string>& trusted_keys, const std::string& lease, double max_age,
                                 bool allow_rollback) {
  FollowerOptions options;
  options.trust = trust_of(trusted_keys);
  options.trust.max_age = milliseconds(max_age);
  options.lease = lease;
  options.allow_rollback = allow_rollback;
  return options;
}

SubscriberOptions subscriber_options(int threads, std::uint32_t audit_versions, double audit_time) {
  SubscriberOptions options;
  options.threads = threads;
  options.audit_versions = audit_versions;
  options.audit_time = microseconds(audit_time);
  return options;
}

void bind_follower(nb::module_& m) {
  nb::class_<FollowReport>(m, "FollowReport", "Report of one step of a follower.")
      .def_ro("version", &FollowReport::version)
      .def_ro("head", &FollowReport::head)
      .def_ro("applied", &FollowReport::applied, "Deltas; merged ones count once.")
      .def_ro("reseeded", &FollowReport::reseeded, "From an anchor.")
      .def_ro("objects_read", &FollowReport::objects_read)
      .def_ro("bytes_read", &FollowReport::bytes_read)
      .def_ro("fetch_seconds", &FollowReport::fetch_seconds)
      .def_ro("apply_seconds", &FollowReport::apply_seconds);
  nb::class_<PythonLogFollower>(m, "LogFollower", nb::type_slots(PauseSlots<PythonLogFollower>::slots),
                                "Live tensors that follow a delta log. Not thread-safe, except stop() and look().")
      .def(
          "__init__",
          [](PythonLogFollower* self, const StoreLocation& location, const TensorTable& table,
             const std::vector<Memory>& tensors, const PathText& state_path, const PathText& scratch,
             const std::vector<std::string>& trusted_keys, const std::string& lease, double max_age,
             bool allow_rollback, int threads, std::uint32_t audit_versions, double audit_time, nb::object pause,
             double timeout, std::uintptr_t stream, double device_timeout) {
            new (self) PythonLogFollower(location, state_path, table, tensors, scratch,
                                         subscriber_options(threads, audit_versions, audit_time),
                                         follower_options(trusted_keys, lease, max_age, allow_rollback),
                                         milliseconds(timeout), std::move(pause), stream, device_timeout);
          },
          nb::arg("location"), nb::arg("table"), nb::arg("tensors"), nb::kw_only(), nb::arg("state_path"),
          nb::arg("scratch"), nb::arg("trusted_keys") = std::vector<std::string>{}, nb::arg("lease") = "",
          nb::arg("max_age") = 0.0, nb::arg("allow_rollback") = false, nb::arg("threads") = 1,
          nb::arg("audit_versions") = 64, nb::arg("audit_time") = 0.0, nb::arg("pause") = nb::none(),
          nb::arg("timeout") = 120.0, nb::arg("stream") = 0, nb::arg("device_timeout") = 60.0,
          "`tensors`: writable, parallel to the table. `state_path`: a file that remembers the "
          "versions that were seen; `scratch`: an existing directory for fetched objects. `pause(True)` is called "
          "before each write of the tensors and `pause(False)` after it, in the thread of step(); if the first returns "
          "False or raises, nothing is written, and step() raises DeadlineError or what `pause` raised. `timeout`: "
          "seconds for one request "
          "to a store, with its retries. CUDA tensors, and `stream` and `device_timeout`: as in Subscriber. Raises "
          "IncompleteError if there is no log yet.")
      .def(
          "__init__",
          [](PythonLogFollower* self, const StoreLocation& location, PythonEngineRank& rank, const PathText& state_path,
             const PathText& scratch, const std::vector<std::string>& trusted_keys, const std::string& lease,
             double max_age, bool allow_rollback, double timeout) {
            new (self) PythonLogFollower(location, state_path, rank, scratch,
                                         follower_options(trusted_keys, lease, max_age, allow_rollback),
                                         milliseconds(timeout));
          },
          nb::arg("location"), nb::arg("rank"), nb::kw_only(), nb::arg("state_path"), nb::arg("scratch"),
          nb::arg("trusted_keys") = std::vector<std::string>{}, nb::arg("lease") = "", nb::arg("max_age") = 0.0,
          nb::arg("allow_rollback") = false, nb::arg("timeout") = 120.0, nb::keep_alive<1, 3>(),
          "Follows with all ranks of an engine, of which `rank` is rank 0. `scratch` is a directory that all ranks can "
          "read under this path. step() waits for all ranks.")
      .def("step", &PythonLogFollower::step, nb::arg("version") = nb::none(),
           "Advances to the current head, or to `version`; does nothing if there is nothing newer.")
      .def("stop", [](PythonLogFollower& self) { self.get().stop(); })
      .def_prop_ro(
          "version", [](PythonLogFollower& self) { return self.get().version(); },
          "Version of the tensors; None until the first step has found it.")
      .def_prop_ro(
          "staged", [](PythonLogFollower& self) { return self.get().staged(); },
          "Version that step() is about to write, or is writing; None at any other time. For `pause`, in its thread.")
      .def(
          "look",
          [](PythonLogFollower& self) {
            const GilRelease release;
            return self.get().look();
          },
          "Returns the newest version of the log, and changes nothing. For any thread, also while step() waits in "
          "`pause`. Raises IncompleteError if there is no log yet, and as step() for one that must not be followed.")
      .def_prop_ro("dirty", &PythonLogFollower::dirty,
                   "Whether the tensors are known to be of no version, so that only an anchor helps. For the thread of "
                   "step() and for `pause`.");
}

void bind_engine_rank(nb::module_& m) {
  nb::class_<PythonEngineRank>(
      m, "EngineRank", nb::type_slots(PauseSlots<PythonEngineRank>::slots),
      "One rank of an engine whose ranks each hold a part of a log's tensors: all of them reach a version together, or "
      "none does. Rank 0 is followed with by LogFollower; the other ranks call serve(). Not thread-safe.")
      .def(
          "__init__",
          [](PythonEngineRank* self, std::shared_ptr<ControlChannel> ranks, const TensorTable& table,
             std::shared_ptr<Layout> layout, const std::vector<Memory>& tensors, int threads,
             std::uint32_t audit_versions, double audit_time, nb::object pause, double timeout, std::uintptr_t stream,
             double device_timeout) {
            new (self) PythonEngineRank(std::move(ranks), table, std::move(layout), tensors,
                                        subscriber_options(threads, audit_versions, audit_time), std::move(pause),
                                        timeout, stream, device_timeout);
          },
          nb::arg("ranks"), nb::arg("table"), nb::arg("layout"), nb::arg("tensors"), nb::kw_only(),
          nb::arg("threads") = 1, nb::arg("audit_versions") = 64, nb::arg("audit_time") = 0.0,
          nb::arg("pause") = nb::none(), nb::arg("timeout") = 120.0, nb::arg("stream") = 0,
          nb::arg("device_timeout") = 60.0,
          "Collective over `ranks`, the ranks of `layout`. `table`: the log's, all of whose tensors the layout must "
          "hold. `tensors`: writable, in the order of this rank's layout. `pause` is called as that of LogFollower, in "
          "the thread of step() or serve(); an exception refuses. `timeout`: seconds in which all ranks must have done "
          "a step. Raises UsageError naming a tensor of the log that the layout does not hold, and GroupMismatchError "
          "where ranks differ.")
      .def(
          "serve",
          [](PythonEngineRank& self) {
            const GilRelease release;
            self.get().serve();
          },
          "Takes part in what rank 0 does, and returns when rank 0's follower is gone. Raises PeerFailedError when the "
          "channel breaks.")
      .def_prop_ro(
          "dirty", [](PythonEngineRank& self) { return self.get().dirty(); },
          "Whether this rank's tensors are known to be of no version. For the thread of serve() and `pause`.");
}

}  // namespace

void bind_logs(nb::module_& m) {
  m.attr("has_log") = true;
  end_stores_with_the_program();
  bind_publication(m);
  bind_publisher(m);
  bind_engine_rank(m);
  bind_follower(m);
  m.def(
      "log_head",
      [](const StoreLocation& location, const std::vector<std::string>& trusted_keys,
         double timeout) -> std::optional<std::uint64_t> {
        const GilRelease release;
        LogReader reader(location.open(milliseconds(timeout)), trust_of(trusted_keys));
        const std::optional<LogCommit> head = reader.head();
        return head ? std::optional(head->version) : std::nullopt;
      },
      nb::arg("location"), nb::arg("trusted_keys") = std::vector<std::string>{}, nb::arg("timeout") = 120.0,
      "Returns the newest version of the log at `location`; None if there is no log.");
  m.def(
      "log_table_hash",
      [](const StoreLocation& location, const std::vector<std::string>& trusted_keys,
         double timeout) -> std::optional<std::string> {
        const GilRelease release;
        LogReader reader(location.open(milliseconds(timeout)), trust_of(trusted_keys));
        const std::optional<LogCommit> head = reader.head();
        return head ? std::optional(to_hex(head->table_hash)) : std::nullopt;
      },
      nb::arg("location"), nb::arg("trusted_keys") = std::vector<std::string>{}, nb::arg("timeout") = 120.0,
      "Returns TensorTable.hash of the tensors in the log at `location`, ordered by the bytes of their names; "
      "None if there is no log.");
  m.def("create_log", &create_log, nb::arg("location"), nb::arg("table"), nb::arg("tensors"), nb::kw_only(),
        nb::arg("anchor_path"), nb::arg("version") = 0, nb::arg("key") = nb::none(), nb::arg("label") = "",
        nb::arg("threads") = 1, nb::arg("timeout") = 120.0,
        "Creates a delta log with the tensors as its first version and anchor. Also writes them to `anchor_path` (a"
        " .safetensors file, which can be the mirror of the publisher). Raises UsageError if there is a log "
        "already.");
  m.def(
      "write_checkpoint",
      [](const TensorTable& table, const std::vector<Memory>& memory, const PathText& path) {
        const std::vector<MutableBytes> tensors = host_tensors(table, memory, false);
        const GilRelease release;
        write_checkpoint(table, tensors, path);
      },
      nb::arg("table"), nb::arg("tensors"), nb::arg("path"),
      "Writes contiguous tensors of host memory as one .safetensors file, atomically.");
  m.def(
      "generate_key",
      [](const PathText& path) {
        const std::shared_ptr<const SigningKey> key = SigningKey::generate();
        key->save(files(), path);
        return to_string(key->public_key());
      },
      nb::arg("path"), "Makes a signing key, saves it for its owner alone, and returns the public one.");
}

}  // namespace sparsecast::python
#else
namespace sparsecast::python {
void bind_logs(nb::module_& m) { m.attr("has_log") = false; }
}  // namespace sparsecast::python
#endif
