// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include "bindings.hpp"
#include "ends.hpp"
#include "memory.hpp"
#include "publisher_detector.hpp"
#include "sparsecast/detector.hpp"
#include "sparsecast/publisher.hpp"
#include "sparsecast/subscriber.hpp"

namespace sparsecast::python {
namespace {

CUevent_st* event_of(std::uintptr_t event) {
  // NOLINTNEXTLINE(performance-no-int-to-ptr): torch and cupy give events as numbers.
  return reinterpret_cast<CUevent_st*>(event);
}

std::vector<nb::bytes> records_of(const Delta& delta) {
  std::vector<nb::bytes> records{to_python(delta.header)};
  for (const Bytes& frame : delta.frames) records.push_back(to_python(frame));
  records.push_back(to_python(delta.commit));
  return records;
}

nb::list tensors_of(const Delta& delta, const TensorTable& table) {
  DeltaReport report;
  {
    const GilRelease release;
    report = report_of(delta, table);
  }
  nb::list out;
  for (const DeltaReport::Tensor& tensor : report.tensors) {
    nb::dict entry;
    entry["name"] = table[tensor.index].name;
    entry["elements"] = table[tensor.index].elements();
    entry["changed"] = tensor.changed;
    entry["bytes"] = tensor.bytes;
    entry["blocks"] = tensor.blocks;
    entry["dense_blocks"] = tensor.dense_blocks;
    out.append(entry);
  }
  return out;
}

/// A Publisher, and the memory of the tensors that it reads, which it keeps alive.
class PythonPublisher {
 public:
  PythonPublisher(const TensorTable& table, const DetectorRequest& request, std::uint64_t version,
                  const std::optional<std::string>& stream_id, const EncodeOptions& encode)
      : table_(std::make_shared<const TensorTable>(table)), kept_(request.all()) {
    PublisherOptions options;
    options.version = version;
    options.encode = encode;
    if (stream_id) options.stream = hash_from_python(*stream_id, "stream_id");
    auto detector = make_detector(table_, request);
    if (request.name == "mask") mask_ = detector.get();
    const GilRelease release;
    publisher_ = std::make_unique<Publisher>(table_, std::move(detector), options);
  }

  Publisher& get() noexcept { return *publisher_; }
  const TensorTable& table() const noexcept { return *table_; }
  Detector* mask() const noexcept { return mask_; }

 private:
  std::shared_ptr<const TensorTable> table_;
  std::vector<Memory> kept_;
  Detector* mask_ = nullptr;  ///< The publisher's detector if it is "mask", else null.
  std::unique_ptr<Publisher> publisher_;
};

/// A copy of a delta, and the table that says what it is of; Python owns both.
struct PythonDelta {
  Delta delta;
  std::shared_ptr<const TensorTable> table;
};

class PythonSubscriber {
 public:
  PythonSubscriber(const TensorTable& table, const std::vector<Memory>& tensors, const SubscriberOptions& options,
                   std::uintptr_t stream, double device_timeout, std::optional<std::uint64_t> entry_bytes)
      : table_(std::make_shared<const TensorTable>(table)), kept_(tensors) {
    std::vector<TensorRef> live = tensors_for(*table_, tensors, true, "tensor");
    const DeviceOptions device = device_options(device_of(live), stream, device_timeout, entry_bytes);
    const GilRelease release;
    subscriber_ = std::make_unique<Subscriber>(table_, std::move(live), options, device);
  }
  Subscriber& get() noexcept { return *subscriber_; }

 private:
  std::shared_ptr<const TensorTable> table_;
  std::vector<Memory> kept_;
  std::unique_ptr<Subscriber> subscriber_;
};

void mark(PythonPublisher& self, std::size_t tensor,
          nb::ndarray<nb::ro, std::uint64_t, nb::ndim<1>, nb::c_contig> words) {
  if (self.mask() == nullptr) throw Error(ErrorCode::kUsage, "only a publisher with the 'mask' detector is marked");
  if (tensor >= self.table().size()) throw Error(ErrorCode::kUsage, "no such tensor");
  const std::uint64_t expected = (self.table()[tensor].elements() + 63) / 64;
  if (words.size() != expected) {
    throw Error(ErrorCode::kUsage, fmt::format("{} words for {}", words.size(), expected),
                fmt::format("mask of '{}'", self.table()[tensor].name));
  }
  self.mask()->mark(tensor, words.data());
}

void bind_publisher(nb::module_& m) {
  nb::class_<PythonDelta>(m, "Delta", "Everything that takes one version to another: a copy that Python keeps.")
      .def_prop_ro("version", [](const PythonDelta& self) { return self.delta.info.version; })
      .def_prop_ro("base_version", [](const PythonDelta& self) { return self.delta.info.base_version; })
      .def_prop_ro(
          "elements", [](const PythonDelta& self) { return self.delta.info.elements; },
          "Number of "
          "elements of the "
          "whole table.")
      .def_prop_ro(
          "changed", [](const PythonDelta& self) { return self.delta.result.changed; }, "Elements.")
      .def_prop_ro("wire_bytes", [](const PythonDelta& self) { return self.delta.wire_bytes(); })
      .def_prop_ro(
          "digest", [](const PythonDelta& self) { return to_hex(self.delta.result.result_digest.value); },
          "State digest that receivers must reach.")
      .def_prop_ro("stream_id", [](const PythonDelta& self) { return to_hex(self.delta.info.stream); })
      .def(
          "records", [](const PythonDelta& self) { return records_of(self.delta); },
          "Header, frames and commit record, each as bytes, for a transport of the caller.")
      .def(
          "tensors", [](const PythonDelta& self) { return tensors_of(self.delta, *self.table); },
          nb::sig("def tensors(self) -> list[dict[str, typing.Any]]"),
          "Returns a dict for each tensor that occurs: name, elements, changed, bytes, blocks, dense_blocks.");
  nb::class_<PythonPublisher>(
      m, "Publisher",
      "Publisher on one rank. Its base is what the receivers have committed: publish(), then commit() when every "
      "receiver has verified the delta, otherwise abort(). Not thread-safe.")
      .def(
          "__init__",
          [](PythonPublisher* self, const TensorTable& table, const std::vector<Memory>& tensors,
             const std::string& detector, const std::optional<std::vector<std::optional<Memory>>>& masters,
             std::uint64_t version, const std::optional<std::string>& stream_id, const std::string& positions,
             const std::string& values, const std::optional<std::string>& objective, std::uint32_t block_changes,
             int zstd_level, std::uint32_t frame_capacity, int threads, std::uintptr_t stream, double device_timeout) {
            const DetectorRequest request{detector, tensors, masters, stream, device_timeout};
            new (self) PythonPublisher(
                table, request, version, stream_id,
                encode_options(positions, values, objective, block_changes, zstd_level, frame_capacity, threads));
          },
          nb::arg("table"), nb::arg("tensors"), nb::kw_only(), nb::arg("detector") = "snapshot",
          nb::arg("masters") = nb::none(), nb::arg("version") = 0, nb::arg("stream_id") = nb::none(),
          nb::arg("positions") = "auto", nb::arg("values") = "ulp", nb::arg("objective") = nb::none(),
          nb::arg("block_changes") = kBlockChanges, nb::arg("zstd_level") = 0, nb::arg("frame_capacity") = 16U << 20,
          nb::arg("threads") = 1, nb::arg("stream") = 0, nb::arg("device_timeout") = 60.0,
          "`tensors` are parallel to the table, in host memory or on one CUDA device, and hold what receivers hold. "
          "Detectors: 'snapshot' (a copy beside the tensors), 'pinned' (CUDA tensors, the copy in pinned host memory), "
          "'fused_cast' (no copy: `masters[i]`, fp32 of the same shape or None, are cast to tensors[i], bf16, by "
          "publish() itself), 'mask' (the caller marks what changed; values='raw'). `objective`: what positions='auto' "
          "saves: 'speed' (the default), "
          "'size', or the rate of the slowest link, '100Mb/s'. `stream`: a CUDA stream's number.")
      .def(
          "publish",
          [](PythonPublisher& self, std::uintptr_t weights_ready) {
            PythonDelta out;
            out.table = std::make_shared<const TensorTable>(self.table());
            const GilRelease release;
            out.delta = self.get().publish(event_of(weights_ready));
            return out;
          },
          nb::arg("weights_ready") = 0,
          "Detects and encodes what changed since the committed version. On a device it begins when the CUDA event "
          "`weights_ready` (its number; 0: at once) has been reached.")
      .def(
          "commit", [](PythonPublisher& self, std::uint64_t version) { self.get().commit(version); },
          nb::arg("version"), ReleaseGil(), "Commits the pending delta, after every receiver has verified it.")
      .def(
          "abort", [](PythonPublisher& self, std::uint64_t version) { self.get().abort(version); }, nb::arg("version"),
          ReleaseGil(),
          "Aborts the pending delta, which has failed or whose outcome is "
          "unknown; the base stays.")
      .def(
          "sync",
          [](PythonPublisher& self, Transport& transport, double timeout) {
            const GilRelease release;
            return sync_send(self.get(), transport, milliseconds(timeout));
          },
          nb::arg("transport"), nb::arg("timeout") = 60.0,
          "Publishes, broadcasts, waits until every receiver has verified the delta, and commits; or aborts and "
          "raises.")
      .def("mark", &mark, nb::arg("tensor"), nb::arg("words"),
           "Sets bits of the mask of a tensor from a bit mask (uint64 words, least significant bit first); only "
           "with the 'mask' detector.")
      .def_prop_ro(
          "version", [](PythonPublisher& self) { return self.get().version(); }, "Last committed.")
      .def_prop_ro("digest", [](PythonPublisher& self) { return to_hex(self.get().digest().value); })
      .def_prop_ro("pending", [](PythonPublisher& self) { return self.get().pending(); });
}

void bind_subscriber(nb::module_& m) {
  nb::class_<ApplyReport>(m, "ApplyReport")
      .def_ro("version", &ApplyReport::version)
      .def_ro("changed", &ApplyReport::changed)
      .def_prop_ro("digest", [](const ApplyReport& self) { return to_hex(self.digest.value); });
  nb::class_<PythonSubscriber>(
      m, "Subscriber",
      "Subscriber on one rank: stage(), then apply(), which is the whole pause: it writes in place and verifies the"
      " result. A failure leaves the old version, or the state dirty, which the error says. Not thread-safe.")
      .def(
          "__init__",
          [](PythonSubscriber* self, const TensorTable& table, const std::vector<Memory>& tensors,
             std::uint64_t version, const std::optional<std::string>& stream_id, int threads,
             std::uint32_t audit_versions, double audit_time, bool allow_rollback, std::uintptr_t stream,
             double device_timeout, std::optional<std::uint64_t> entry_bytes) {
            SubscriberOptions options;
            options.version = version;
            options.threads = threads;
            options.audit_versions = audit_versions;
            options.audit_time = microseconds(audit_time);
            options.allow_rollback = allow_rollback;
            if (stream_id) options.stream = hash_from_python(*stream_id, "stream_id");
            new (self) PythonSubscriber(table, tensors, options, stream, device_timeout, entry_bytes);
          },
          nb::arg("table"), nb::arg("tensors"), nb::kw_only(), nb::arg("version") = 0,
          nb::arg("stream_id") = nb::none(), nb::arg("threads") = 1, nb::arg("audit_versions") = 64,
          nb::arg("audit_time") = 0.0, nb::arg("allow_rollback") = false, nb::arg("stream") = 0,
          nb::arg("device_timeout") = 60.0, nb::arg("entry_bytes") = nb::none(),
          "`tensors` are live, parallel to the table, writable, in host memory or on one CUDA device; they must "
          "keep their addresses. Reads all of them once. `entry_bytes`: most bytes of device memory for the decoded "
          "changes of a staged delta, so that the pause only writes them; a larger delta is decoded again in the "
          "pause. "
          "None: a sixteenth of the bytes of the tensors. Of no meaning on the host.")
      .def(
          "stage",
          [](PythonSubscriber& self, const nb::bytes& record) {
            const ConstBytes bytes = bytes_of(record);
            const GilRelease release;
            self.get().stage(bytes);
          },
          nb::arg("record"), "Takes one record, in any order after the header; verifies it, and writes nothing.")
      .def(
          "stage",
          [](PythonSubscriber& self, const PythonDelta& delta) {
            const GilRelease release;
            self.get().stage(delta.delta);
          },
          nb::arg("delta"))
      .def_prop_ro("ready", [](PythonSubscriber& self) { return self.get().ready(); })
      .def(
          "discard", [](PythonSubscriber& self) { self.get().discard(); }, "Forgets what is staged.")
      .def(
          "apply",
          [](PythonSubscriber& self, std::uintptr_t after, std::uintptr_t written) {
            const GilRelease release;
            return self.get().apply({event_of(after), event_of(written)});
          },
          nb::arg("after") = 0, nb::arg("written") = 0,
          "Applies and verifies the staged delta. On a device nothing is written before the CUDA event `after`, and"
          " `written` is recorded after the last write (handles; 0: none). Raises IncompleteError, "
          "DigestMismatchError (the old version stands), or DirtyError.")
      .def(
          "apply_nan_masked",
          [](PythonSubscriber& self,
             const nb::typed<nb::callable, void(std::size_t, std::uintptr_t, std::uintptr_t)>& load) {
            const GilRelease release;
            return self.get().apply_nan_masked([&](std::size_t index, const std::byte* tensor, CUstream_st* stream) {
              const GilAcquire acquire;
              load(index, reinterpret_cast<std::uintptr_t>(tensor), reinterpret_cast<std::uintptr_t>(stream));
            });
          },
          nb::arg("load"),
          "Applies the staged delta by calls load(index, address, stream), one for each tensor that it names: at the "
          "address lies the whole tensor, contiguous, NaN where nothing changes, until the call returns. Verifies the "
          "result by reading. Raises UnsupportedError for dtypes without NaNs and elements that become one (nothing "
          "was "
          "written), DigestMismatchError (nothing was written), DirtyError, or what `load` raises (dirty). "
          "sparsecast.engines.refresh.masked_loader.MaskedLoader is a `load` for the loader of an engine.")
      .def(
          "undo_last", [](PythonSubscriber& self) { self.get().undo_last(); }, ReleaseGil())
      .def(
          "sync",
          [](PythonSubscriber& self, Transport& transport, int source, double timeout) {
            const GilRelease release;
            return sync_receive(self.get(), transport, source, milliseconds(timeout));
          },
          nb::arg("transport"), nb::arg("source") = 0, nb::arg("timeout") = 60.0)
      .def(
          "audit_next", [](PythonSubscriber& self) { return self.get().audit_next(); }, ReleaseGil(),
          "Reads a slice of the tensors again and returns the bytes read. Raises DirtyError naming the tensor.")
      .def(
          "audit", [](PythonSubscriber& self) { self.get().audit(); }, ReleaseGil(), "Re-reads every byte.")
      .def(
          "reset",
          [](PythonSubscriber& self, std::uint64_t version, const std::string& digest) {
            const StateDigest expected{hash_from_python(digest, "digest")};
            const GilRelease release;
            self.get().reset(version, expected);
          },
          nb::arg("version"), nb::arg("digest"), "After the caller has written an anchor into the tensors.")
      .def_prop_ro("version", [](PythonSubscriber& self) { return self.get().version(); })
      .def_prop_ro("digest", [](PythonSubscriber& self) { return to_hex(self.get().digest().value); })
      .def_prop_ro("dirty", [](PythonSubscriber& self) { return self.get().dirty(); });
}

}  // namespace

void bind_sync(nb::module_& m) {
  nb::class_<SyncReport>(m, "SyncReport", "Report of one sync on this rank.")
      .def_ro("version", &SyncReport::version)
      .def_ro("changed", &SyncReport::changed)
      .def_ro("wire_bytes", &SyncReport::wire_bytes)
      .def_ro("encode_seconds", &SyncReport::encode_seconds)
      .def_ro("wire_seconds", &SyncReport::wire_seconds)
      .def_ro("stage_seconds", &SyncReport::stage_seconds)
      .def_ro("apply_seconds", &SyncReport::apply_seconds)
      .def_ro("total_seconds", &SyncReport::total_seconds);
  bind_publisher(m);
  bind_subscriber(m);
}

}  // namespace sparsecast::python
