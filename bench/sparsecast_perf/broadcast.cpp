// SPDX-License-Identifier: Apache-2.0

// A source's weights, from rank 0 to all others. Correctness does not rest on our own digest: after each sync the same
// weights travel once more by a plain broadcast, and every receiver compares its live weights with what that
// brought.

#include "sparsecast_perf/run.hpp"

#include <fmt/format.h>

#include "sparsecast_perf/weights.hpp"

namespace sparsecast::perf {
namespace {

using std::chrono::milliseconds;
using std::chrono::steady_clock;

/// The longest that one message of Group may be without MPI; a table can be longer.
constexpr std::size_t kPiece = std::size_t{1} << 19;

std::shared_ptr<const TensorTable> share_table(Group& group, const WeightSource* source) {
  Bytes bytes;
  if (source != nullptr) bytes = source->table().serialize();
  const std::uint64_t size = group.largest(bytes.size());
  bytes.resize(size);
  for (std::size_t at = 0; at < size; at += kPiece) {
    const auto piece = std::span(bytes).subspan(at, std::min<std::size_t>(kPiece, size - at));
    const Bytes received = group.broadcast(Bytes(piece.begin(), piece.end()));
    if (received.size() != piece.size()) throw Error(ErrorCode::kGroupMismatch, "the ranks are at different steps");
    std::copy(received.begin(), received.end(), piece.begin());
  }
  return std::make_shared<const TensorTable>(TensorTable::parse(bytes));
}

class Broadcast final : public Benchmark {
 public:
  Broadcast(const Options& options, const Plan& plan, Group& group)
      : options_(options),
        transport_(plan.transport),
        group_(group),
        timeout_(static_cast<std::int64_t>(options.timeout_seconds * 1000)) {
    if (needs_device(options, plan)) machine_ = survey_machine();
    device_ = device_of(options, group.local_rank(), machine_.survey.devices.size());
    if (publishes())
      source_ = options.synthetic ? make_synthetic(options.model) : open_checkpoints(options.checkpoints);
    table_ = share_table(group, source_.get());
    wire_ = make_wire(plan.transport, group, options, device_);
    const WeightsSetting setting{options, *wire_, table_, source_.get()};
    const bool cuda = options.backend == Backend::kCuda;
    weights_ = cuda ? make_device_weights(setting, device_) : make_host_weights(setting);
    if (publishes()) weights_->fill_dense();
    broadcast_dense();
    weights_->open();
  }

  Header header() const override {
    Header header;
    header.source = source_->describe();
    header.ranks = group_.size();
    header.roles = fmt::format("1 publisher, {} receivers", group_.size() - 1);
    header.transport = to_string(transport_);
    header.libraries = wire_->libraries();
    header.dense_call = wire_->dense_call();
    header.detector = weights_->detector();
    header.tensors = table_->size();
    header.elements = table_->elements();
    if (!machine_.survey.devices.empty()) {
      header.device = machine_.survey.devices[static_cast<std::size_t>(device_)].name;
      const int version = machine_.survey.runtime_version;
      header.libraries.push_back(fmt::format("CUDA {}.{}", version / 1000, version % 1000 / 10));
    }
    return header;
  }

  void warm_up() override {
    for (int i = 0; i < options_.warmup; ++i) {
      weights_->sync(timeout_);
      broadcast_dense();
    }
    wire_->start_timing();
  }

  bool step(Row& row) override {
    if (publishes()) row.step = source_->next(weights_->wants_cast());
    if (group_.sum(row.step.empty() ? 0 : 1) == 0) return false;
    row.elements = table_->elements();
    row.dense_bytes = table_->bytes();
    if (publishes()) weights_->take_step();

    SyncReport report;
    row.total = group_.time_of_all([&] { report = weights_->sync(timeout_); });
    row.changed = group_.largest(report.changed);
    row.wire_bytes = group_.largest(report.wire_bytes);
    row.encode = group_.slowest(report.encode_seconds);
    row.wire = group_.slowest(publishes() ? report.wire_seconds : 0);
    row.apply = group_.slowest(report.apply_seconds);

    if (publishes()) weights_->fill_dense();
    row.dense = group_.time_of_all([&] { broadcast_dense(); });
    row.wrong = group_.sum(options_.check ? weights_->count_wrong() : 0);
    return true;
  }

 private:
  bool publishes() const { return group_.rank() == kPublisher; }
  void broadcast_dense() { weights_->broadcast_dense(steady_clock::now() + timeout_); }

  const Options& options_;
  Carrier transport_;
  Group& group_;
  milliseconds timeout_;
  Machine machine_;  ///< Empty for runs without a device.
  int device_ = 0;
  std::unique_ptr<WeightSource> source_;  ///< On the publisher.
  std::shared_ptr<const TensorTable> table_;
  std::unique_ptr<Wire> wire_;
  std::unique_ptr<Weights> weights_;
};

}  // namespace

std::unique_ptr<Benchmark> make_broadcast(const Options& options, const Plan& plan, Group& group) {
  return std::make_unique<Broadcast>(options, plan, group);
}

}  // namespace sparsecast::perf
