// SPDX-License-Identifier: Apache-2.0

// A trainer and its engines, each rank with its own shards of weights that are computed from names and indices
// (HashedWeights). Engines start empty and are seeded by anchors; after each sync every engine rank computes what it
// must hold, and compares all of it, so that correctness does not rest on our own digest.

#include <fmt/format.h>

#include "common/hashed_weights.hpp"
#include "sparsecast/mpi_transport.hpp"
#include "sparsecast/nccl_transport.hpp"
#include "sparsecast/sharded.hpp"
#include "sparsecast_perf/dense_routes.hpp"
#include "sparsecast_perf/machine.hpp"
#include "sparsecast_perf/pace.hpp"
#include "sparsecast_perf/run.hpp"
#include "sparsecast_perf/wire.hpp"

namespace sparsecast::perf {
namespace {

using std::chrono::milliseconds;
using std::chrono::steady_clock;

GroupOpener opener_of(Carrier carrier, int device) {
  if (carrier == Carrier::kMpi) return open_mpi_groups();
  if (carrier == Carrier::kTcp) return open_control_groups();
  NcclOptions options;
  options.device = device;
  return open_nccl_groups(options);
}

/// This rank's shards and its ends of the stream, of the trainer, of an engine, or of both.
class Ends {
 public:
  Ends(const Options& options, const LayoutPair& layouts, const Roster& roster, int process)
      : layouts_(layouts),
        weights_(options.model.seed, options.fanout.density),
        trainer_(roster.trainer_rank(process)),
        engine_(roster.engine_rank(process)) {
    ShardedOptions settings;
    settings.encode = options.encode;
    settings.threads = options.encode.threads;
    settings.needs_anchor = engine_.has_value();
    if (trainer_) {
      trained_ = weights_.make(*layouts.trainer, *trainer_, 0);
      ShardedOptions own = settings;
      own.needs_anchor = false;
      publisher_.emplace(layouts.trainer, *trainer_, bench::refs_of(*layouts.trainer, *trainer_, trained_), own);
    }
    if (engine_) {
      served_ = weights_.make_empty(*layouts.engine, engine_->rank);
      subscriber_.emplace(fmt::format("engine{}", engine_->engine), layouts.engine, engine_->rank,
                          bench::refs_of(*layouts.engine, engine_->rank, served_), settings);
    }
  }

  void regroup(std::shared_ptr<ControlChannel> world, const GroupOpener& open, milliseconds timeout) {
    if (publisher_ && subscriber_)
      return ColocatedRank(*publisher_, *subscriber_).regroup(std::move(world), open, timeout);
    if (publisher_) return publisher_->regroup(std::move(world), open, timeout);
    subscriber_->regroup(std::move(world), open, timeout);
  }

  ShardedReport sync(milliseconds timeout) {
    if (publisher_ && subscriber_) return ColocatedRank(*publisher_, *subscriber_).sync(timeout);
    return publisher_ ? publisher_->sync(timeout) : subscriber_->sync(timeout);
  }

  void train(std::uint64_t step) {
    if (trainer_) weights_.train(*layouts_.trainer, *trainer_, step, trained_);
  }
  std::uint64_t count_wrong(std::uint64_t step) const {
    return engine_ ? weights_.count_wrong(*layouts_.engine, engine_->rank, step, served_) : 0;
  }
  const FanoutPlan& plan() const { return publisher_ ? publisher_->plan() : subscriber_->plan(); }

 private:
  const LayoutPair& layouts_;
  bench::HashedWeights weights_;
  std::optional<std::size_t> trainer_;
  std::optional<Roster::EngineRank> engine_;
  bench::LocalStorage trained_;
  bench::LocalStorage served_;
  std::optional<ShardedPublisher> publisher_;
  std::optional<ShardedSubscriber> subscriber_;
};

class Fanout final : public Benchmark {
 public:
  Fanout(const Options& options, const Plan& plan, const LayoutPair& layouts, const Roster& roster, Group& group)
      : options_(options),
        transport_(plan.transport),
        roster_(roster),
        group_(group),
        timeout_(static_cast<std::int64_t>(options.timeout_seconds * 1000)),
        ends_(options, layouts, roster, group.rank()) {
    if (needs_device(options, plan)) machine_ = survey_machine();
    device_ = device_of(options, group.local_rank(), machine_.survey.devices.size());
    const GroupOpener open = opener_of(transport_, device_);
    GroupOpener sparse = open;
    GroupOpener dense = open;
    if (options.link_gbps != 0) {
      const auto link = std::make_shared<PacedLink>(options.link_gbps);
      sparse = paced_groups(open, link, Payment::kBefore);
      dense = paced_groups(open, link, Payment::kAlongside);
    }
    std::shared_ptr<ControlChannel> world = group.open_control();
    regroup_seconds_ = group.time_of_all([&] { ends_.regroup(std::move(world), sparse, timeout_); });
    dense_world_ = group.open_control();
    dense_.emplace(ends_.plan(), *dense_world_, dense, steady_clock::now() + timeout_);
    for (const Route& route : ends_.plan().routes()) {
      elements_ += route.elements;
      bytes_ += route.bytes;
    }
  }

  Header header() const override {
    const FanoutPlan& plan = ends_.plan();
    Header header;
    header.source = fmt::format("{} to {}, scaled down by {}: hashed weights, {:g} % changed in a step, seed {}",
                                options_.fanout.trainer, options_.fanout.engine, options_.fanout.scale_down,
                                100 * options_.fanout.density, options_.model.seed);
    header.ranks = group_.size();
    header.roles = describe(roster_, options_.fanout);
    header.transport = to_string(transport_);
    if (transport_ == Carrier::kMpi) header.libraries.push_back(mpi_library());
    if (transport_ == Carrier::kNccl) {
      header.libraries.push_back(fmt::format("NCCL {}", nccl_version_text(machine_.nccl_version)));
      header.device = machine_.survey.devices[static_cast<std::size_t>(device_)].name;
    }
    header.dense_call = "all routes of the plan, dense, by the transport's own broadcast";
    header.detector = "host snapshot";
    header.tensors = plan.table().size();
    header.elements = plan.table().elements();
    header.fanout = {plan.routes().size(),    plan.groups().size(), plan.rounds(),
                     plan.transfers().size(), to_hex(plan.hash()),  regroup_seconds_};
    return header;
  }

  void warm_up() override {
    for (int i = 0; i < options_.warmup; ++i) {
      ends_.sync(timeout_);
      broadcast_dense();
    }
  }

  bool step(Row& row) override {
    ends_.train(++step_);
    row.step = fmt::format("{}", step_);
    row.elements = elements_;
    row.dense_bytes = bytes_;
    ShardedReport report;
    row.total = group_.time_of_all([&] { report = ends_.sync(timeout_); });
    row.changed = group_.sum(report.changed);
    row.wire_bytes = group_.sum(report.sent_bytes);
    row.encode = group_.slowest(report.encode_seconds);
    row.wire = group_.slowest(report.wire_seconds);
    row.apply = group_.slowest(report.apply_seconds);
    row.by_rank = gather(report);
    row.dense = group_.time_of_all([&] { broadcast_dense(); });
    row.wrong = group_.sum(options_.check ? ends_.count_wrong(step_) : 0);
    return true;
  }

 private:
  void broadcast_dense() { dense_->broadcast(steady_clock::now() + timeout_); }

  RankBytes gather(const ShardedReport& report) {
    const std::vector<std::uint64_t> sent = group_.all_gather(report.sent_bytes);
    const std::vector<std::uint64_t> received = group_.all_gather(report.received_bytes);
    RankBytes bytes;
    bytes.foreign = group_.all_gather(report.foreign_bytes);
    for (int process = 0; process < group_.size(); ++process) {
      const auto p = static_cast<std::size_t>(process);
      if (roster_.trainer_rank(process)) bytes.sent.push_back(sent[p]);
      if (roster_.engine_rank(process)) bytes.received.push_back(received[p]);
    }
    return bytes;
  }

  const Options& options_;
  Carrier transport_;
  const Roster& roster_;
  Group& group_;
  milliseconds timeout_;
  Ends ends_;
  Machine machine_;  ///< Empty for runs without a device.
  int device_ = 0;
  double regroup_seconds_ = 0;
  std::uint64_t elements_ = 0;  ///< Of all routes.
  std::uint64_t bytes_ = 0;     ///< Dense, of all routes.
  std::uint64_t step_ = 0;
  std::shared_ptr<ControlChannel> dense_world_;
  std::optional<DenseRoutes> dense_;
};

}  // namespace

std::unique_ptr<Benchmark> make_fanout(const Options& options, const Plan& plan, const LayoutPair& layouts,
                                       const Roster& roster, Group& group) {
  return std::make_unique<Fanout>(options, plan, layouts, roster, group);
}

}  // namespace sparsecast::perf
