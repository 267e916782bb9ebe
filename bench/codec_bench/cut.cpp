// SPDX-License-Identifier: Apache-2.0

// What a rank of an engine spends on a delta of whole tensors, of which it holds a part: cutting the delta, and staging
// what it has cut, beside staging the whole delta.

#include <fmt/format.h>

#include <memory>
#include <numeric>

#include "codec_bench/commands.hpp"
#include "codec_bench/data.hpp"
#include "codec_bench/measure.hpp"
#include "common/clock.hpp"
#include "common/hashed_weights.hpp"
#include "endpoint/cut.hpp"
#include "sharded/route_endpoints.hpp"
#include "sparsecast/subscriber.hpp"

namespace sparsecast::bench {
namespace {

constexpr std::uint64_t kRowElements = 4096;
constexpr std::size_t kMatrices = 8;
constexpr double kShareChanged = 0.01;

/// Matrices before and after a step, and the delta between them.
struct Weights {
  explicit Weights(std::uint64_t mib) {
    const std::uint64_t rows = std::max<std::uint64_t>(8, (mib << 20) / (kMatrices * kRowElements * 2));
    std::vector<TensorSpec> specs;
    for (std::size_t t = 0; t < kMatrices; ++t) {
      specs.push_back({fmt::format("layers.{}.weight", t), DType::kBF16, {rows, kRowElements}});
      pairs.push_back(make_pair_of(rows * kRowElements, DType::kBF16, kShareChanged, ChangeKind::kAdamw, t));
      changed += pairs.back().changed;
    }
    table = std::make_shared<const TensorTable>(std::move(specs));
    std::vector<ConstBytes> before;
    std::vector<ConstBytes> after;
    for (const Pair& pair : pairs) {
      before.emplace_back(pair.before);
      after.emplace_back(pair.after);
    }
    const auto detector = make_compare_detector(*table, after, before);
    DeltaHeader header;
    header.version = 1;
    header.base_digest = sum(digest_tensors(*table, refs_to(*table, before), 1));
    encode_delta(*table, *detector, header, with(PositionMode::kPacked, ValueCodec::kUlp), true,
                 [&](Bytes&& record) { file.insert(file.end(), record.begin(), record.end()); });
  }

  std::vector<Pair> pairs;
  std::shared_ptr<const TensorTable> table;
  Bytes file;
  std::uint64_t changed = 0;
};

/// Returns the layout of an engine whose `ranks` each hold as many rows of every matrix, or as many columns.
std::shared_ptr<const Layout> cut_layout(const TensorTable& table, std::uint64_t ranks, bool columns) {
  std::vector<RankLayout> cut(ranks);
  for (std::uint64_t r = 0; r < ranks; ++r) {
    for (std::uint32_t t = 0; t < table.size(); ++t) {
      Box box = whole_box(table[t].shape);
      const std::size_t d = columns ? 1 : 0;
      box.extent[d] /= ranks;
      box.offset[d] = r * box.extent[d];
      cut[r].tensors.push_back({table[t].name, table[t].dtype, box.elements()});
      cut[r].shards.push_back({t, box, t, 0, {static_cast<std::int64_t>(box.extent[1]), 1}});
    }
  }
  return std::make_shared<const Layout>(Layout(table, std::move(cut)));
}

/// Rank 0 of an engine that holds a part of the matrices. Its weights have other bits than the delta's base, at which
/// staging does not look.
struct Part {
  Part(const Weights& weights, std::uint64_t ranks, bool columns)
      : layout(cut_layout(*weights.table, ranks, columns)),
        plan({"the log", cut_layout(*weights.table, 1, columns), {static_cast<int>(ranks)}},
             {{"engine", layout, world_ranks(ranks)}}),
        storage(HashedWeights(1).make(*layout, 0, 0)),
        memory(make_shard_memory(*layout, 0, refs_of(*layout, 0, storage), false, {})),
        routes(make_destination_routes(plan, 0, *memory, {})) {
    for (std::size_t s = 0; s < routes.places.size(); ++s) {
      streams.push_back({routes.subscriber->tables().table(s), plan.routes()[routes.places[s].route].regions,
                         routes.subscriber->digest(s)});
    }
  }

  static std::vector<int> world_ranks(std::uint64_t ranks) {
    std::vector<int> all(ranks);
    std::iota(all.begin(), all.end(), 0);
    return all;
  }

  void stage(const DeltaFile& delta) {
    cut(delta, streams, [&](std::size_t stream, const Bytes& record) { routes.subscriber->stage(stream, record); });
    routes.subscriber->verify();
    routes.subscriber->discard();
  }

  std::shared_ptr<const Layout> layout;
  FanoutPlan plan;
  LocalStorage storage;
  std::shared_ptr<ShardMemory> memory;
  DestinationRoutes routes;
  std::vector<CutStream> streams;
};

void stage_whole(Subscriber& subscriber, const DeltaFile& delta) {
  subscriber.stage(delta.header_record());
  for (std::size_t i = 0; i < delta.frames(); ++i) subscriber.stage(delta.frame(i));
  subscriber.stage(delta.commit_record());
  subscriber.discard();
}

}  // namespace

int run_cut(std::uint64_t mib, int repeat, Record& record) {
  const Weights weights(mib);
  const DeltaFile delta = DeltaFile::over(weights.file, "delta");
  std::vector<std::vector<std::byte>> live;
  for (const Pair& pair : weights.pairs) live.push_back(pair.before);
  Subscriber whole(weights.table, refs_to(*weights.table, std::vector<MutableBytes>(live.begin(), live.end())), {});
  fmt::print(
      "# a delta of {} changes in {} bf16 matrices, {} MiB, for one rank of an engine, on one thread; medians of {} "
      "rounds, in ms\n# {:<9} {:>6} {:>8} {:>8} {:>8} {:>8}\n",
      weights.changed, kMatrices, mib, repeat, "cut by", "ranks", "whole", "cut", "stage", "/whole");
  for (const bool columns : {false, true}) {
    for (const std::uint64_t ranks : {1, 2, 4, 8}) {
      Part part(weights, ranks, columns);
      std::vector<double> times[3];
      for (int round = 0; round <= repeat; ++round) {
        const double ms[] = {1e3 * timed([&] { stage_whole(whole, delta); }),
                             1e3 * timed([&] { cut(delta, part.streams, [](std::size_t, const Bytes&) {}); }),
                             1e3 * timed([&] { part.stage(delta); })};
        for (int i = 0; i < 3 && round > 0; ++i) times[i].push_back(ms[i]);  // Round 0 warms up.
      }
      const char* by = columns ? "columns" : "rows";
      fmt::print("  {:<9} {:>6} {:>8.2f} {:>8.2f} {:>8.2f} {:>8.2f}\n", by, ranks, median(times[0]), median(times[1]),
                 median(times[2]), median(times[2]) / median(times[0]));
      const std::string name = fmt::format("cut/{}/{} ranks/{} MiB/", by, ranks, mib);
      record.results.push_back(median_of(name + "whole", "ms", times[0]));
      record.results.push_back(median_of(name + "cut", "ms", times[1], name + "whole"));
      record.results.push_back(median_of(name + "stage", "ms", times[2], name + "whole"));
    }
  }
  return 0;
}

}  // namespace sparsecast::bench
