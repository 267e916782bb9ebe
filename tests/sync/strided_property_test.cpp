// SPDX-License-Identifier: Apache-2.0

// Publisher and Subscriber over tensors that are views of larger memory do what they do over contiguous ones.

#include <gtest/gtest.h>

#include "reference/reference_encoder.hpp"
#include "sparsecast/publisher.hpp"
#include "sparsecast/subscriber.hpp"
#include "support/detectors.hpp"
#include "support/expect_error.hpp"
#include "support/strided_state.hpp"

namespace sparsecast::test {
namespace {

/// Returns the origin of a box somewhere in a larger tensor, or of a whole tensor.
DigestOrigin random_origin(Random& random, const TensorTable& table, std::size_t t) {
  if (random.chance(0.3)) return table.digest_origin(t);
  DigestOrigin origin{{random.next(), random.next()}, random.below(1'000'000), {}};
  if (random.chance(0.7)) origin.strides = random_placement(random, table[t].shape).strides;
  return origin;
}

RandomDelta random_boxes(Random& random, ValueCodec values, int threads) {
  RandomDelta delta;
  const TensorTable plain(random_specs(random));
  std::vector<DigestOrigin> origins;
  for (std::size_t t = 0; t < plain.size(); ++t) origins.push_back(random_origin(random, plain, t));
  delta.table = std::make_shared<const TensorTable>(std::vector<TensorSpec>(plain.begin(), plain.end()), origins);
  delta.old_state = random_state(random, plain);
  delta.new_state = delta.old_state;
  change_randomly(random, plain, delta.new_state);
  delta.options = random_options(random, values == ValueCodec::kUlp);
  delta.options.values = values;
  delta.options.threads = threads;
  return delta;
}

void expect_same(const Delta& found, const Delta& expected) {
  EXPECT_EQ(found.header, expected.header);
  EXPECT_TRUE(found.frames == expected.frames);
  EXPECT_EQ(found.commit, expected.commit);
}

class StridedProperty : public testing::TestWithParam<ValueCodec> {};
INSTANTIATE_TEST_SUITE_P(Values, StridedProperty, testing::Values(ValueCodec::kRaw, ValueCodec::kXor, ValueCodec::kUlp),
                         [](const auto& codec) { return std::string(to_string(codec.param)); });

TEST_P(StridedProperty, FramesAreThoseOfContiguousTensorsAndSoIsWhatBecomesOfThem) {
  SCOPED_TRACE(seed_note());
  for (std::uint64_t n = 0; n < 120 && !HasFailure(); ++n) {
    SCOPED_TRACE("case " + std::to_string(n));
    Random random(case_seed(run_seed(), n));
    const int threads = n % 2 == 0 ? 1 : 3;
    const RandomDelta delta = random_boxes(random, GetParam(), threads);
    const TensorTable& table = *delta.table;
    PublisherOptions options;
    options.encode = delta.options;

    TensorState weights = delta.old_state;
    Publisher plain(delta.table, host_snapshot(table, views(weights)), options);
    for (std::size_t t = 0; t < table.size(); ++t) std::ranges::copy(delta.new_state[t], weights[t].begin());
    // The live tensors have moved on already: the base is what the snapshot holds.
    StridedState live(random, table, delta.new_state);
    StridedState snapshot(random, table, delta.old_state);
    Publisher strided(delta.table, host_snapshot_over(table, live.tensors(), snapshot.tensors()), options);
    ASSERT_EQ(strided.digest(), plain.digest());
    const Delta& expected = plain.publish();
    const Delta& published = strided.publish();
    expect_same(published, expected);
    ASSERT_TRUE(live.holds(delta.new_state));
    options.encode.positions = published.info.positions;  // What the objective made of `auto`.
    const std::vector<Bytes> reference =
        reference_encode(table, views(delta.old_state), views(delta.new_state), published.info, options.encode);
    ASSERT_EQ(published.commit, reference.back());
    ASSERT_TRUE(published.frames == std::vector<Bytes>(reference.begin() + 1, reference.end() - 1));

    StridedState engine(random, table, delta.old_state);
    SubscriberOptions receive;
    receive.threads = threads;
    Subscriber subscriber(delta.table, engine.tensors(), receive);
    ASSERT_EQ(subscriber.digest(), published.info.base_digest);
    subscriber.stage(published);
    ASSERT_TRUE(engine.holds(delta.old_state));
    subscriber.apply();
    ASSERT_TRUE(engine.holds(delta.new_state));
    subscriber.audit();
    subscriber.undo_last();
    ASSERT_TRUE(engine.holds(delta.old_state));
    ASSERT_EQ(subscriber.digest(), published.info.base_digest);
    subscriber.audit();

    plain.abort(1);
    strided.abort(1);
    ASSERT_TRUE(snapshot.holds(delta.old_state));
    expect_same(strided.publish(), plain.publish());
    strided.commit(2);
    ASSERT_TRUE(snapshot.holds(delta.new_state));
    ASSERT_TRUE(live.holds(delta.new_state));
  }
}

TEST_P(StridedProperty, NanMaskedDeltasReachStridedTensorsToo) {
  SCOPED_TRACE(seed_note());
  for (std::uint64_t n = 0; n < 60 && !HasFailure(); ++n) {
    Random random(case_seed(run_seed(), n));
    const int threads = n % 2 == 0 ? 1 : 3;
    RandomDelta delta = random_boxes(random, GetParam(), threads);
    keep_to_numbers(delta, false);
    const TensorTable& table = *delta.table;
    PublisherOptions options;
    options.encode = delta.options;
    StridedState live(random, table, delta.new_state);
    StridedState snapshot(random, table, delta.old_state);
    Publisher publisher(delta.table, host_snapshot_over(table, live.tensors(), snapshot.tensors()), options);
    StridedState engine(random, table, delta.old_state);
    SubscriberOptions receive;
    receive.threads = threads;
    Subscriber subscriber(delta.table, engine.tensors(), receive);
    subscriber.stage(publisher.publish());
    subscriber.apply_nan_masked([&](std::size_t t, const std::byte* tensor, CUstream_st*) {
      masked_copy({table[t].dtype, table[t].shape, {}, engine.place(t).strides}, tensor, engine.data(t));
    });
    ASSERT_TRUE(engine.holds(delta.new_state));
  }
}

/// Splits 0 to extent into pieces.
std::vector<std::uint64_t> random_cuts(Random& random, std::uint64_t extent) {
  std::vector<std::uint64_t> cuts{0};
  while (cuts.back() != extent) cuts.push_back(cuts.back() + random.between(1, extent - cuts.back()));
  return cuts;
}

/// A tensor cut into a grid of boxes: their table, and where each starts in the tensor.
struct Grid {
  Grid(Random& random, const TensorTable& whole) : strides(row_major(whole[0].shape)) {
    std::vector<std::vector<std::uint64_t>> cuts;
    for (const std::uint64_t extent : whole[0].shape) cuts.push_back(random_cuts(random, extent));
    std::vector<std::size_t> at(cuts.size());
    for (bool more = true; more;) {
      TensorSpec spec{"box" + std::to_string(specs.size()), whole[0].dtype, {}};
      std::uint64_t first = 0;
      for (std::size_t d = 0; d < at.size(); ++d) {
        spec.shape.push_back(cuts[d][at[d] + 1] - cuts[d][at[d]]);
        first += cuts[d][at[d]] * static_cast<std::uint64_t>(strides[d]);
      }
      specs.push_back(spec);
      firsts.push_back(first);
      more = false;
      for (std::size_t d = at.size(); d > 0 && !more; --d) {
        more = ++at[d - 1] + 1 < cuts[d - 1].size();
        if (!more) at[d - 1] = 0;
      }
    }
    for (const std::uint64_t first : firsts) origins.push_back({whole.digest_key(0), first, strides});
  }

  std::vector<TensorRef> in(Bytes& memory) const {
    std::vector<TensorRef> tensors;
    for (std::size_t b = 0; b < specs.size(); ++b) {
      tensors.push_back(
          ref_to(specs[b], memory.data() + firsts[b] * element_size(specs[b].dtype), kHostMemory, strides));
    }
    return tensors;
  }

  std::vector<std::int64_t> strides;
  std::vector<TensorSpec> specs;
  std::vector<std::uint64_t> firsts;
  std::vector<DigestOrigin> origins;
};

TensorTable random_whole(Random& random) {
  std::vector<TensorSpec> specs = random_specs(random);
  for (std::uint64_t& extent : specs[0].shape) extent = std::max<std::uint64_t>(extent, 1);
  return TensorTable({specs[0]});
}

TEST_P(StridedProperty, DigestsOfBoxesThatTileATensorAddUpToItsDigest) {
  SCOPED_TRACE(seed_note());
  for (std::uint64_t n = 0; n < 120 && !HasFailure(); ++n) {
    SCOPED_TRACE("case " + std::to_string(n));
    Random random(case_seed(run_seed(), n));
    const int threads = n % 2 == 0 ? 1 : 3;
    const TensorTable whole = random_whole(random);
    TensorState weights = random_state(random, whole);
    TensorState held = weights;
    TensorState engine = weights;
    const TensorState before = weights;
    change_randomly(random, whole, weights);
    const Grid grid(random, whole);
    if (grid.specs.size() > 200) continue;
    const auto table = std::make_shared<const TensorTable>(grid.specs, grid.origins);
    const StateDigest base = sum(digest_tensors(whole, refs_to(whole, views(before))));
    const StateDigest reached = sum(digest_tensors(whole, refs_to(whole, views(weights))));

    PublisherOptions options;
    options.encode = random_options(random);
    options.encode.values = GetParam();
    options.encode.threads = threads;
    SubscriberOptions receive;
    receive.threads = threads;
    Publisher publisher(table, host_snapshot_over(*table, grid.in(weights[0]), grid.in(held[0])), options);
    Subscriber subscriber(table, grid.in(engine[0]), receive);
    ASSERT_EQ(publisher.digest(), base);
    ASSERT_EQ(subscriber.digest(), base);
    subscriber.stage(publisher.publish());
    ASSERT_EQ(subscriber.apply().digest, reached);
    ASSERT_EQ(engine, weights);
    subscriber.audit();
    publisher.commit(1);
    ASSERT_EQ(held, weights);
  }
}

TEST(StridedTensors, ThatDoNotFitTheTableAreRefusedByName) {
  const auto table = std::make_shared<const TensorTable>(
      std::vector<TensorSpec>{{"a", DType::kF32, {2, 3}}, {"deep", DType::kI8, std::vector<std::uint64_t>(9, 1)}});
  Bytes memory(64);
  const auto make = [&](std::vector<TensorRef> tensors) { Subscriber(table, std::move(tensors), SubscriberOptions{}); };
  const auto a = [&](std::vector<std::int64_t> strides) {
    return ref_to((*table)[0], memory.data(), kHostMemory, std::move(strides));
  };
  const auto deep = [&](std::vector<std::int64_t> strides) {
    return ref_to((*table)[1], memory.data(), kHostMemory, std::move(strides));
  };
  expect_error(ErrorCode::kUsage, [&] { make({a({})}); }, {"1 live tensors", "2"});
  expect_error(ErrorCode::kUsage, [&] { make({ref_to((*table)[0], nullptr), deep({})}); }, {"null", "'a'"});
  expect_error(ErrorCode::kUsage, [&] { make({a({1}), deep({})}); }, {"stride", "'a'"});
  expect_error(ErrorCode::kUsage, [&] { make({a({0, 1}), deep({})}); }, {"overlap", "'a'"});
  expect_error(ErrorCode::kUsage, [&] { make({a({}), deep(std::vector<std::int64_t>(9, 1))}); }, {"8", "'deep'"});
  TensorRef other = a({});
  other.shape = {3, 2};
  expect_error(ErrorCode::kUsage, [&] { make({other, deep({})}); }, {"shape [3, 2]", "[2, 3]", "'a'"});
  other = a({});
  other.dtype = DType::kI32;
  expect_error(ErrorCode::kUsage, [&] { make({other, deep({})}); }, {"I32", "F32", "'a'"});
  other = a({});
  other.device = 1;
  expect_error(ErrorCode::kUsage, [&] { make({other, deep({})}); }, {"device 1", "the host"});
  expect_error(ErrorCode::kUsage,
               [&] {
                 host_snapshot_over(*table, {a({}), deep({})}, {a({3, 0}), deep({})});
               },
               {"snapshot", "overlap"});
  make({a({}), deep({})});
}

TEST(StridedTensors, AFlippedBitIsFoundByTheAudit) {
  const auto table = std::make_shared<const TensorTable>(std::vector<TensorSpec>{{"column", DType::kBF16, {40, 5}}});
  Bytes memory(std::size_t{40} * 16 * 2);
  Subscriber subscriber(table, {ref_to((*table)[0], memory.data() + 8, kHostMemory, {16, 1})}, SubscriberOptions{});
  memory[0] ^= std::byte{1};  // Not of the view.
  subscriber.audit();
  memory[8 + 3 * 32] ^= std::byte{1};
  expect_error(ErrorCode::kDirty, [&] { subscriber.audit(); }, {"'column'"});
}

}  // namespace
}  // namespace sparsecast::test
