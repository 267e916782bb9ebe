// SPDX-License-Identifier: Apache-2.0
#include "sparsecast/sharded.hpp"

#include <fmt/format.h>

#include "bindings.hpp"
#include "ends.hpp"
#include "memory.hpp"
#include "sparsecast/layout.hpp"

namespace sparsecast::python {
namespace {

class PythonShardedPublisher {
 public:
  PythonShardedPublisher(std::shared_ptr<const Layout> layout, std::size_t rank, const std::vector<Memory>& tensors,
                         const ShardedOptions& options, bool masters, std::uintptr_t stream, double device_timeout)
      : memory_(rank_memory(*layout, rank, tensors, false, masters)) {
    const DeviceOptions device = device_options(memory_.device(), stream, device_timeout);
    const GilRelease release;
    publisher_ = std::make_unique<ShardedPublisher>(std::move(layout), rank, memory_.tensors, options, device);
  }
  ShardedPublisher& get() noexcept { return *publisher_; }
  int device() const noexcept { return memory_.device(); }

 private:
  RankMemory memory_;
  std::unique_ptr<ShardedPublisher> publisher_;
};

class PythonShardedSubscriber {
 public:
  PythonShardedSubscriber(const std::string& engine, std::shared_ptr<const Layout> layout, std::size_t rank,
                          const std::vector<Memory>& tensors, const ShardedOptions& options, std::uintptr_t stream,
                          double device_timeout, std::optional<std::uint64_t> entry_bytes)
      : rank_(rank),
        stream_(stream),
        device_timeout_(device_timeout),
        entry_bytes_(entry_bytes),
        memory_(rank_memory(*layout, rank, tensors, true)) {
    const DeviceOptions device = device_options(memory_.device(), stream, device_timeout, entry_bytes);
    const GilRelease release;
    subscriber_ =
        std::make_unique<ShardedSubscriber>(engine, std::move(layout), rank, memory_.tensors, options, device);
  }

  void replace(std::shared_ptr<const Layout> layout, const std::vector<Memory>& tensors) {
    RankMemory memory = rank_memory(*layout, rank_, tensors, true);
    subscriber_->replace(std::move(layout), memory.tensors,
                         device_options(memory.device(), stream_, device_timeout_, entry_bytes_));
    memory_ = std::move(memory);
  }

  ShardedSubscriber& get() noexcept { return *subscriber_; }
  int device() const noexcept { return memory_.device(); }

 private:
  std::size_t rank_;
  std::uintptr_t stream_;
  double device_timeout_;
  std::optional<std::uint64_t> entry_bytes_;
  RankMemory memory_;
  std::unique_ptr<ShardedSubscriber> subscriber_;
};

/// Rank that both publishes and subscribes: a publisher and a subscriber, which it keeps alive.
class PythonColocated {
 public:
  PythonColocated(nb::object publisher, nb::object subscriber)
      : kept_(nb::make_tuple(publisher, subscriber)),
        device_(nb::cast<PythonShardedPublisher&>(publisher).device()),
        rank_(nb::cast<PythonShardedPublisher&>(publisher).get(),
              nb::cast<PythonShardedSubscriber&>(subscriber).get()) {}
  ColocatedRank& get() noexcept { return rank_; }
  int device() const noexcept { return device_; }

 private:
  nb::object kept_;
  int device_;
  ColocatedRank rank_;
};

template <class End>
void regroup(End& self, std::shared_ptr<ControlChannel> world, const std::string& channels, double timeout) {
  const GroupOpener open = opener_of(channels, self.device());
  const GilRelease release;
  self.get().regroup(std::move(world), open, milliseconds(timeout));
}

template <class End>
ShardedReport sync(End& self, double timeout) {
  const GilRelease release;
  return self.get().sync(milliseconds(timeout));
}

constexpr const char* kRegroup =
    "Meets as a group; collective over `world`, all ranks of the trainer and of all engines, in any order. Replaces"
    " the previous group. Exchanges the layouts, settles a sync whose outcome was in doubt, plans, opens the "
    "channels ('control': over the world itself, 'mpi', 'nccl'), seeds engines that have no anchor or another "
    "version, and verifies that every destination holds the committed version. GroupMismatchError, WrongBaseError "
    "and DigestMismatchError name the rank or engine. Elements that the trainer's layout describes in several places "
    "are copies, which must be equal now: before anything is written to an engine, DigestMismatchError on every rank "
    "names the tensor, the box and two trainer ranks whose copies differ. Each trainer rank reads its copies once for "
    "that; what is in one place alone costs nothing.";

void bind_report(nb::module_& m) {
  nb::class_<SentTensor>(m, "SentTensor", "Numbers of a canonical tensor that a rank has sent.")
      .def_ro("name", &SentTensor::name)
      .def_ro("elements", &SentTensor::elements, "Number of elements of the boxes that this rank sends.")
      .def_ro("changed", &SentTensor::changed)
      .def_ro("bytes", &SentTensor::bytes)
      .def_ro("dense_blocks", &SentTensor::dense_blocks)
      .def_ro("blocks", &SentTensor::blocks)
      .def("__repr__", [](const SentTensor& self) {
        return fmt::format("<sparsecast.SentTensor '{}': {} of {} changed, {} bytes>", self.name, self.changed,
                           self.elements, self.bytes);
      });
  nb::class_<ShardedReport>(m, "ShardedReport", "Report of one sync on this rank.")
      .def_ro("version", &ShardedReport::version)
      .def_ro("changed", &ShardedReport::changed, "Elements in the deltas that it sent.")
      .def_ro("applied", &ShardedReport::applied, "Elements in those that it applied.")
      .def_ro("sent_bytes", &ShardedReport::sent_bytes)
      .def_ro("received_bytes", &ShardedReport::received_bytes)
      .def_ro("foreign_bytes", &ShardedReport::foreign_bytes)
      .def_ro("encode_seconds", &ShardedReport::encode_seconds)
      .def_ro("wire_seconds", &ShardedReport::wire_seconds)
      .def_ro("stage_seconds", &ShardedReport::stage_seconds)
      .def_ro("apply_seconds", &ShardedReport::apply_seconds, "Seconds of the pause.")
      .def_ro("total_seconds", &ShardedReport::total_seconds)
      .def_prop_ro(
          "blocks_by_codec",
          [](const ShardedReport& self) {
            nb::dict out;
            for (std::size_t i = 0; i < std::size(self.blocks_by_codec); ++i) {
              out[nb::str(std::string(to_string(static_cast<PositionCodec>(i))).c_str())] = self.blocks_by_codec[i];
            }
            return out;
          },
          nb::for_getter(nb::sig("def blocks_by_codec(self, /) -> dict[str, int]")),
          "Number of sent blocks by position codec; needs report_tensors.")
      .def_prop_ro(
          "tensors", [](const ShardedReport& self) { return self.tensors; }, "With report_tensors.")
      .def("__repr__", [](const ShardedReport& self) {
        return fmt::format("<sparsecast.ShardedReport version {}: {} elements sent, {} applied>", self.version,
                           self.changed, self.applied);
      });
}

void bind_publisher(nb::module_& m) {
  nb::class_<PythonShardedPublisher>(
      m, "ShardedPublisher",
      "Publisher on one rank of many: publishes its own shards. Call regroup(), then sync() any number of times, "
      "and regroup() again whenever an engine joins, leaves, fails or changes its layout. Not thread-safe.")
      .def(
          "__init__",
          [](PythonShardedPublisher* self, std::shared_ptr<Layout> layout, std::size_t rank,
             const std::vector<Memory>& tensors, std::uint64_t version, const std::optional<std::string>& stream_id,
             const std::string& positions, const std::string& values, const std::optional<std::string>& objective,
             std::uint32_t block_changes, int zstd_level, int threads, const std::vector<std::string>& unsent,
             bool report_tensors, bool masters, const std::string& detector, std::uintptr_t stream,
             double device_timeout) {
            if (detector != "snapshot" && detector != "pinned") {
              throw Error(ErrorCode::kUsage,
                          fmt::format("there is no detector '{}' over shards: snapshot, pinned", detector));
            }
            ShardedOptions options;
            options.pinned_snapshot = detector == "pinned";
            options.report_tensors = report_tensors;
            options.version = version;
            if (stream_id) options.stream = hash_from_python(*stream_id, "stream_id");
            options.encode = encode_options(positions, values, objective, block_changes, zstd_level,
                                            EncodeOptions{}.frame_capacity, threads);
            options.plan.unsent = unsent;
            new (self)
                PythonShardedPublisher(std::move(layout), rank, tensors, options, masters, stream, device_timeout);
          },
          nb::arg("layout"), nb::arg("rank"), nb::arg("tensors"), nb::kw_only(), nb::arg("version") = 0,
          nb::arg("stream_id") = nb::none(), nb::arg("positions") = "auto", nb::arg("values") = "ulp",
          nb::arg("objective") = nb::none(), nb::arg("block_changes") = kBlockChanges, nb::arg("zstd_level") = 0,
          nb::arg("threads") = 1, nb::arg("unsent") = std::vector<std::string>{}, nb::arg("report_tensors") = false,
          nb::arg("masters") = false, nb::arg("detector") = "snapshot", nb::arg("stream") = 0,
          nb::arg("device_timeout") = 60.0,
          "`tensors` are the memory of layout.ranks[rank].tensors, contiguous, in host memory or on one CUDA "
          "device. They must keep their addresses, and hold `version` when regroup() is first called, which takes "
          "the snapshot. With `masters`, a tensor that is BF16 in the layout may be given as F32: its fp32 master,"
          " whose cast engines get (round to nearest, ties to even); the snapshot is then its only copy in BF16. "
          "Without, F32 for BF16 is an error. Detectors: 'snapshot' (a copy beside the tensors), 'pinned' (CUDA "
          "tensors, the copy in pinned host memory). `objective`: what positions='auto' saves: 'speed' (the default), "
          "'size' (receivers decode on the host), or the rate of the slowest link, '100Mb/s'. `unsent`: patterns of "
          "tensors that need no engine. `stream`: "
          "handle of a CUDA stream, on which the tensors are complete when regroup() or sync() is called.")
      .def("regroup", &regroup<PythonShardedPublisher>, nb::arg("world"), nb::arg("channels") = "control",
           nb::arg("timeout") = 60.0, kRegroup)
      .def("sync", &sync<PythonShardedPublisher>, nb::arg("timeout") = 60.0,
           "Sends the current weights to every engine; collective over the world. If it raises, no rank claims the "
           "new version, and regroup() with the remaining ranks must follow.")
      .def_prop_ro(
          "version", [](PythonShardedPublisher& self) { return self.get().version(); }, "Last committed.")
      .def_prop_ro(
          "digest", [](PythonShardedPublisher& self) { return to_hex(self.get().digest().value); },
          "State digest of the canonical tensors at that version.")
      .def_prop_ro(
          "snapshot_bytes", [](PythonShardedPublisher& self) { return self.get().snapshot_bytes(); },
          "Bytes of the snapshot, the only copy of the tensors that is kept, in the same kind of memory unless it is "
          "pinned.");
}

void bind_subscriber(nb::module_& m) {
  nb::class_<PythonShardedSubscriber>(m, "ShardedSubscriber",
                                      "Subscriber on one rank of an engine. Not thread-safe; receive() may run in "
                                      "another thread than the rest, one call at a time.")
      .def(
          "__init__",
          [](PythonShardedSubscriber* self, const std::string& engine, std::shared_ptr<Layout> layout, std::size_t rank,
             const std::vector<Memory>& tensors, std::uint64_t version, bool needs_anchor,
             const std::optional<std::string>& stream_id, int threads, std::uint32_t audit_versions, double audit_time,
             std::uintptr_t stream, double device_timeout, std::optional<std::uint64_t> entry_bytes) {
            ShardedOptions options;
            options.version = version;
            options.needs_anchor = needs_anchor;
            if (stream_id) options.stream = hash_from_python(*stream_id, "stream_id");
            options.threads = threads;
            options.audit_versions = audit_versions;
            options.audit_time = microseconds(audit_time);
            new (self) PythonShardedSubscriber(engine, std::move(layout), rank, tensors, options, stream,
                                               device_timeout, entry_bytes);
          },
          nb::arg("engine"), nb::arg("layout"), nb::arg("rank"), nb::arg("tensors"), nb::kw_only(),
          nb::arg("version") = 0, nb::arg("needs_anchor") = false, nb::arg("stream_id") = nb::none(),
          nb::arg("threads") = 1, nb::arg("audit_versions") = 64, nb::arg("audit_time") = 0.0, nb::arg("stream") = 0,
          nb::arg("device_timeout") = 60.0, nb::arg("entry_bytes") = nb::none(),
          "`tensors` as for ShardedPublisher, writable. `engine` names the engine, whose ranks share the layout. "
          "With `needs_anchor` the memory holds no version yet, and the trainer seeds it in the next regroup(). "
          "`entry_bytes` is as for Subscriber.")
      .def("regroup", &regroup<PythonShardedSubscriber>, nb::arg("world"), nb::arg("channels") = "control",
           nb::arg("timeout") = 60.0, kRegroup)
      .def(
          "receive",
          [](PythonShardedSubscriber& self, double timeout) {
            const GilRelease release;
            self.get().receive(milliseconds(timeout));
          },
          nb::arg("timeout") = 60.0,
          "Runs the first half of sync(), while the engine continues generating: returns when every rank of the "
          "world has sent or staged everything. Only reads live memory. With NCCL channels, call it in the thread "
          "that called regroup().")
      .def(
          "apply",
          [](PythonShardedSubscriber& self, double timeout) {
            const GilRelease release;
            return self.get().apply(milliseconds(timeout));
          },
          nb::arg("timeout") = 60.0,
          "Runs the second half, the pause: writes, verifies, waits for every engine and the decision. Raises "
          "UsageError without a preceding receive().")
      .def("sync", &sync<PythonShardedSubscriber>, nb::arg("timeout") = 60.0)
      .def("replace", &PythonShardedSubscriber::replace, nb::arg("layout"), nb::arg("tensors"),
           "Replaces the tensors; call it before the regroup() of an engine that has moved its tensors with their "
           "contents.")
      .def(
          "audit_next", [](PythonShardedSubscriber& self) { return self.get().audit_next(); }, ReleaseGil())
      .def(
          "audit", [](PythonShardedSubscriber& self) { self.get().audit(); }, ReleaseGil(), "Re-reads every byte.")
      .def(
          "settle", [](PythonShardedSubscriber& self, bool committed) { self.get().settle(committed); },
          nb::arg("committed"), ReleaseGil(),
          "Settles a version in doubt without a regroup(), for an engine that goes on to serve though its trainer is "
          "gone: it stands, or the memory is rolled back. All ranks of an engine settle alike. Raises DirtyError if "
          "it could not be rolled back.")
      .def_prop_ro(
          "in_doubt", [](PythonShardedSubscriber& self) { return self.get().in_doubt(); },
          "Version that was applied and verified without hearing whether it was committed; 0: none. The memory holds "
          "its bytes, and `version` is the one before. The next regroup() settles it.")
      .def_prop_ro(
          "anchor_begun", [](PythonShardedSubscriber& self) { return self.get().anchor_begun(); },
          "Whether an anchor has overwritten the memory, or a part of it, since the last version that was verified: "
          "only "
          "a regroup() that succeeds makes it whole. Otherwise the memory is what it was.")
      .def_prop_ro(
          "version", [](PythonShardedSubscriber& self) { return self.get().version(); },
          "Version last "
          "verified.");
}

}  // namespace

void bind_sharded(nb::module_& m) {
  bind_report(m);
  bind_publisher(m);
  bind_subscriber(m);
  nb::class_<PythonColocated>(m, "ColocatedRank",
                              "A rank of the world that belongs to a trainer and an engine at once; what it sends "
                              "to itself stays in its memory.")
      .def(nb::init<nb::object, nb::object>(), nb::arg("publisher"), nb::arg("subscriber"),
           nb::sig("def __init__(self, publisher: ShardedPublisher, subscriber: ShardedSubscriber) -> None"))
      .def("regroup", &regroup<PythonColocated>, nb::arg("world"), nb::arg("channels") = "control",
           nb::arg("timeout") = 60.0)
      .def("sync", &sync<PythonColocated>, nb::arg("timeout") = 60.0);
}

}  // namespace sparsecast::python
