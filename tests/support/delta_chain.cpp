// SPDX-License-Identifier: Apache-2.0
#include "support/delta_chain.hpp"

#include "sparsecast/subscriber.hpp"
#include "support/delta_bytes.hpp"
#include "support/round_trip.hpp"

namespace sparsecast::test {

DeltaChain random_chain(Random& random, ValueCodec values, std::size_t steps, const RandomLimits& limits) {
  DeltaChain chain;
  chain.table = std::make_shared<const TensorTable>(random_table(random, limits));
  chain.options = random_options(random, true);
  chain.options.values = values;
  if (values != ValueCodec::kUlp) chain.options.positions = PositionMode::kAuto;
  chain.options.zstd_level = 0;
  chain.states.push_back(random_state(random, *chain.table));
  const bool trained = chain.options.positions == PositionMode::kContext && random.chance(0.7);
  if (trained) fill_with_weights(random, *chain.table, chain.states.back());
  for (std::size_t v = 0; v < steps; ++v) {
    TensorState next = chain.states.back();
    trained ? step_as_an_optimizer(random, *chain.table, next) : change_randomly(random, *chain.table, next);
    if (v > 0 && !next.empty() && random.chance(0.3)) next[0] = chain.states[random.below(v + 1)][0];
    chain.deltas.push_back(encode_file(*chain.table, chain.states.back(), next, chain.options, {v, v + 1}));
    chain.states.push_back(std::move(next));
  }
  return chain;
}

Bytes composed(const Bytes& first, const Bytes& second, const EncodeOptions& options, const TensorState& base) {
  std::vector<Bytes> records;
  const std::vector<ConstBytes> base_views = views(base);
  compose(
      DeltaFile::over(first, "first"), DeltaFile::over(second, "second"), options,
      [&](Bytes&& record) { records.push_back(std::move(record)); }, std::span<const ConstBytes>(base_views));
  return join(records);
}

Bytes inverted(const Bytes& delta, const EncodeOptions& options, const TensorState& base) {
  std::vector<Bytes> records;
  const std::vector<ConstBytes> base_views = views(base);
  invert(
      DeltaFile::over(delta, "delta"), options, [&](Bytes&& record) { records.push_back(std::move(record)); },
      std::span<const ConstBytes>(base_views));
  return join(records);
}

Bytes fold(const DeltaChain& chain, std::size_t begin, std::size_t end, Random& random) {
  if (end - begin == 1) return chain.deltas[begin];
  const std::size_t middle = begin + 1 + random.below(end - begin - 1);
  return composed(fold(chain, begin, middle, random), fold(chain, middle, end, random), chain.options,
                  chain.states[begin]);
}

TensorState applied(const DeltaChain& chain, const TensorState& base, const Bytes& delta) {
  TensorState live = base;
  SubscriberOptions options;
  options.version = DeltaFile::over(delta, "delta").header().base_version;
  options.allow_rollback = true;
  Subscriber subscriber(chain.table, refs_to(*chain.table, live_views(live)), options);
  for (const Bytes& record : split(delta)) subscriber.stage(record);
  const ApplyReport report = subscriber.apply();
  require(report.digest == sum(digest_tensors(*chain.table, refs_to(*chain.table, views(live)))),
          "the running digest is the full one");
  return live;
}

void check_group_laws(const DeltaChain& chain, Random& random) {
  const std::size_t steps = chain.deltas.size();
  const Bytes whole = fold(chain, 0, steps, random);
  require(applied(chain, chain.states.front(), whole) == chain.states.back(),
          "deltas joined do what they do one after another");
  const Bytes back = inverted(chain.deltas[0], chain.options, chain.states[0]);
  require(applied(chain, chain.states[1], back) == chain.states[0], "an inverse restores the base");
  if (chain.options.values == ValueCodec::kRaw) return;
  require(whole == encode_file(*chain.table, chain.states.front(), chain.states.back(), chain.options, {0, steps}),
          "deltas joined are the direct one, byte for byte");
  require(back == encode_file(*chain.table, chain.states[1], chain.states[0], chain.options, {1, 0}),
          "an inverse is the delta back, byte for byte");
  require(inverted(back, chain.options, chain.states[1]) == chain.deltas[0], "the inverse of an inverse is the delta");
}

}  // namespace sparsecast::test
