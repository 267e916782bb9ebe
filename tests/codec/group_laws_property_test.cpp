// SPDX-License-Identifier: Apache-2.0

// Deltas under compose and invert: a group for xor and ulp, and a chain that applies alike for raw.

#include <gtest/gtest.h>

#include "sparsecast/subscriber.hpp"
#include "support/delta_bytes.hpp"
#include "support/random_delta.hpp"

namespace sparsecast::test {
namespace {

constexpr int kChains = 1'500;

/// States 0 .. n of one table, and the delta files between them.
struct Chain {
  std::shared_ptr<const TensorTable> table;
  std::vector<TensorState> states;
  std::vector<Bytes> deltas;
  EncodeOptions options;
};

Chain random_chain(Random& random, ValueCodec values, std::size_t steps) {
  Chain chain;
  const RandomLimits limits{3, 60'000, 0.02};
  chain.table = std::make_shared<const TensorTable>(random_table(random, limits));
  chain.options = random_options(random, true);
  chain.options.values = values;
  if (values != ValueCodec::kUlp) chain.options.positions = PositionMode::kAuto;
  chain.options.zstd_level = 0;
  chain.states.push_back(random_state(random, *chain.table));
  for (std::size_t v = 0; v < steps; ++v) {
    TensorState next = chain.states.back();
    change_randomly(random, *chain.table, next);
    // Now and then a value goes back to what it was, so that changes cancel.
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

/// Applies `delta` to a copy of `base` and verifies the digest; returns the result.
TensorState applied(const Chain& chain, const TensorState& base, const Bytes& delta) {
  TensorState live = base;
  SubscriberOptions options;
  options.version = DeltaFile::over(delta, "delta").header().base_version;
  options.allow_rollback = true;
  Subscriber subscriber(chain.table, refs_to(*chain.table, live_views(live)), options);
  for (const Bytes& record : split(delta)) subscriber.stage(record);
  const ApplyReport report = subscriber.apply();
  EXPECT_EQ(report.digest, sum(digest_tensors(*chain.table, refs_to(*chain.table, views(live)))));
  return live;
}

/// Joins the deltas [begin, end) in a random association.
Bytes fold(const Chain& chain, std::size_t begin, std::size_t end, Random& random) {
  if (end - begin == 1) return chain.deltas[begin];
  const std::size_t middle = begin + 1 + random.below(end - begin - 1);
  return composed(fold(chain, begin, middle, random), fold(chain, middle, end, random), chain.options,
                  chain.states[begin]);
}

std::string codec_name(const ::testing::TestParamInfo<ValueCodec>& parameter) {
  return std::string(to_string(parameter.param));
}

class GroupLawsProperty : public ::testing::TestWithParam<ValueCodec> {
 protected:
  /// Calls body(chain, random) for random chains of two to five deltas.
  template <class Body>
  void for_chains(const Body& body) {
    SCOPED_TRACE(seed_note());
    for (int i = 0; i < kChains && !HasFailure(); ++i) {
      SCOPED_TRACE("chain " + std::to_string(i));
      Random random(case_seed(run_seed(), static_cast<std::uint64_t>(i)));
      const std::size_t steps = random.between(2, 5);
      body(random_chain(random, GetParam(), steps), random);
    }
  }
};

TEST_P(GroupLawsProperty, AComposedDeltaDoesWhatItsPartsDoInTurn) {
  for_chains([](const Chain& chain, Random& random) {
    const Bytes whole = fold(chain, 0, chain.deltas.size(), random);
    EXPECT_EQ(applied(chain, chain.states.front(), whole), chain.states.back());
  });
}

TEST_P(GroupLawsProperty, AnInverseRestoresTheBase) {
  for_chains([](const Chain& chain, Random&) {
    const Bytes back = inverted(chain.deltas[0], chain.options, chain.states[0]);
    EXPECT_EQ(applied(chain, chain.states[1], back), chain.states[0]);
  });
}

TEST_P(GroupLawsProperty, ADeltaFollowedByItsInverseChangesNothing) {
  for_chains([](const Chain& chain, Random&) {
    const Bytes back = inverted(chain.deltas[0], chain.options, chain.states[0]);
    const Bytes nothing = composed(chain.deltas[0], back, chain.options, chain.states[0]);
    TensorState state = chain.states[0];
    apply_blocks(nothing, state);
    EXPECT_EQ(state, chain.states[0]);
    const DeltaFile file = DeltaFile::over(nothing, "nothing");
    EXPECT_EQ(file.header().base_digest, file.commit().result_digest);
    if (GetParam() != ValueCodec::kRaw) {
      EXPECT_EQ(file.frames(), 0U) << "what cancels is not sent";
    }
  });
}

INSTANTIATE_TEST_SUITE_P(AllCodecs, GroupLawsProperty,
                         ::testing::Values(ValueCodec::kRaw, ValueCodec::kXor, ValueCodec::kUlp), codec_name);

/// Words that add up: they say what cancels, so that equal changes have equal bytes.
class AdditiveGroupProperty : public GroupLawsProperty {};

TEST_P(AdditiveGroupProperty, AComposedDeltaIsByteForByteTheDirectOne) {
  for_chains([](const Chain& chain, Random& random) {
    const Bytes whole = fold(chain, 0, chain.deltas.size(), random);
    EXPECT_TRUE(whole == encode_file(*chain.table, chain.states.front(), chain.states.back(), chain.options,
                                     {0, chain.deltas.size()}));
  });
}

TEST_P(AdditiveGroupProperty, AnInverseIsByteForByteTheDeltaBack) {
  for_chains([](const Chain& chain, Random&) {
    EXPECT_TRUE(inverted(chain.deltas[0], chain.options, chain.states[0]) ==
                encode_file(*chain.table, chain.states[1], chain.states[0], chain.options, {1, 0}));
  });
}

TEST_P(AdditiveGroupProperty, AnInverseOfAnInverseIsTheDelta) {
  for_chains([](const Chain& chain, Random&) {
    const Bytes back = inverted(chain.deltas[0], chain.options, chain.states[0]);
    EXPECT_TRUE(inverted(back, chain.options, chain.states[1]) == chain.deltas[0]);
  });
}

INSTANTIATE_TEST_SUITE_P(AllCodecs, AdditiveGroupProperty, ::testing::Values(ValueCodec::kXor, ValueCodec::kUlp),
                         codec_name);

}  // namespace
}  // namespace sparsecast::test
