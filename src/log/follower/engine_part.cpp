// SPDX-License-Identifier: Apache-2.0
#include "log/follower/engine_part.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

namespace sparsecast {
namespace {

constexpr std::uint64_t kReadBytes = std::uint64_t{4} << 20;

/// Returns the layout of a rank that holds all tensors whole.
Layout whole_layout(const TensorTable& table) {
  LayoutBuilder builder({Mesh{{"rank", 1}}});
  for (const TensorSpec& spec : table) builder.tensor(spec).add(spec.name, {spec.name}, Cut::replicate());
  return builder.build();
}

}  // namespace

FanoutPlan plan_from_log(const TensorTable& table, std::shared_ptr<const Layout> engine) {
  std::vector<int> ranks(engine->ranks().size());
  for (std::size_t r = 0; r < ranks.size(); ++r) ranks[r] = static_cast<int>(r);
  const Participant log{
      "the log", std::make_shared<const Layout>(whole_layout(table)), {static_cast<int>(ranks.size())}};
  FanoutPlan plan(log, {{"engine", std::move(engine), std::move(ranks)}});
  if (!(plan.table().hash() == table.hash())) {
    throw Error(ErrorCode::kUsage,
                fmt::format("the engine holds {} of the log's {} tensors", plan.table().size(), table.size()));
  }
  return plan;
}

EnginePart::EnginePart(std::shared_ptr<const TensorTable> table, std::shared_ptr<const FanoutPlan> plan,
                       const Layout& layout, std::size_t rank, std::vector<TensorRef> local,
                       const SubscriberOptions& options, const DeviceOptions& device)
    : table_(std::move(table)),
      plan_(std::move(plan)),
      memory_(make_shard_memory(layout, rank, std::move(local), false, device)),
      rank_(static_cast<int>(rank)),
      routes_(make_destination_routes(*plan_, rank_, *memory_, options)) {}

void EnginePart::stage(const DeltaFile& delta) {
  if (!routes_.subscriber) return;
  SubscriberState& subscriber = *routes_.subscriber;
  // A log knows versions by their digests; the number that the weights have had until now may be any.
  if (!subscriber.dirty() && subscriber.version() != delta.header().base_version) {
    subscriber.reset(delta.header().base_version);
  }
  std::vector<CutStream> streams;
  for (std::size_t s = 0; s < routes_.places.size(); ++s) {
    streams.push_back(
        {subscriber.tables().table(s), plan_->routes()[routes_.places[s].route].regions, subscriber.digest(s)});
  }
  cut(delta, streams, [&](std::size_t stream, Bytes&& record) { subscriber.stage(stream, record); });
  subscriber.verify();
}

void EnginePart::discard() noexcept {
  if (routes_.subscriber) routes_.subscriber->discard();
}

void EnginePart::apply() {
  if (routes_.subscriber) routes_.subscriber->apply({}, false);
}

void EnginePart::undo_last() {
  if (routes_.subscriber) routes_.subscriber->undo_last();
}

void EnginePart::audit() {
  if (routes_.subscriber) routes_.subscriber->audit();
}

void EnginePart::audit_next() {
  if (routes_.subscriber) routes_.subscriber->audit_next();
}

void EnginePart::overwrite(const CheckpointStore& store, std::uint64_t version) {
  if (!routes_.subscriber) return;
  std::size_t stream = 0;
  for (std::uint32_t l = 0; l < plan_->routes().size(); ++l) {
    for (const Destination& destination : own_destinations(plan_->routes()[l], rank_)) {
      const std::vector<Region>& regions = plan_->routes()[l].regions;
      const std::unique_ptr<RegionWriter> writer = memory_->memory().make_writer(
          *routes_.subscriber->tables().table(stream++), destination_tensors(*plan_, l, destination, *memory_));
      for (std::size_t r = 0; r < regions.size(); ++r) write_region(store, regions[r], r, *writer);
      writer->finish();
    }
  }
  routes_.subscriber->reset(version);
}

void EnginePart::write_region(const CheckpointStore& store, const Region& region, std::size_t number,
                              RegionWriter& writer) const {
  const TensorSpec& spec = (*table_)[region.tensor];
  const std::uint64_t element_bytes = element_size(spec.dtype);
  const std::uint64_t elements = region.box.elements();
  const BoxRuns runs(spec.shape, region.box);
  const std::uint64_t most = std::min(kReadBytes / element_bytes, elements);
  Bytes window(static_cast<std::size_t>(most * element_bytes));
  for (std::uint64_t begin = 0; begin < elements; begin += most) {
    const std::uint64_t end = std::min(begin + most, elements);
    for (std::uint64_t at = begin; at < end;) {
      const std::uint64_t in_run = at % runs.length();
      const std::uint64_t count = std::min(runs.length() - in_run, end - at);
      const auto part = MutableBytes(window).subspan(static_cast<std::size_t>((at - begin) * element_bytes),
                                                     static_cast<std::size_t>(count * element_bytes));
      store.read(region.tensor, (runs.first(at / runs.length()) + in_run) * element_bytes, part);
      at += count;
    }
    writer.write(number, begin, ConstBytes(window).first(static_cast<std::size_t>((end - begin) * element_bytes)));
  }
}

}  // namespace sparsecast
