// SPDX-License-Identifier: Apache-2.0

// Deltas under compose and invert: a group for xor and ulp, and a chain that applies alike for raw.

#include <gtest/gtest.h>

#include "support/delta_bytes.hpp"
#include "support/delta_chain.hpp"

namespace sparsecast::test {
namespace {

constexpr int kChains = 1'500;

const RandomLimits kLimits{3, 60'000, 0.02};

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
      body(random_chain(random, GetParam(), steps, kLimits), random);
    }
  }
};

TEST_P(GroupLawsProperty, AComposedDeltaDoesWhatItsPartsDoInTurn) {
  for_chains([](const DeltaChain& chain, Random& random) {
    const Bytes whole = fold(chain, 0, chain.deltas.size(), random);
    EXPECT_EQ(applied(chain, chain.states.front(), whole), chain.states.back());
  });
}

TEST_P(GroupLawsProperty, AnInverseRestoresTheBase) {
  for_chains([](const DeltaChain& chain, Random&) {
    const Bytes back = inverted(chain.deltas[0], chain.options, chain.states[0]);
    EXPECT_EQ(applied(chain, chain.states[1], back), chain.states[0]);
  });
}

TEST_P(GroupLawsProperty, ADeltaFollowedByItsInverseChangesNothing) {
  for_chains([](const DeltaChain& chain, Random&) {
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
  for_chains([](const DeltaChain& chain, Random& random) {
    const Bytes whole = fold(chain, 0, chain.deltas.size(), random);
    EXPECT_TRUE(whole == encode_file(*chain.table, chain.states.front(), chain.states.back(), chain.options,
                                     {0, chain.deltas.size()}));
  });
}

TEST_P(AdditiveGroupProperty, AnInverseIsByteForByteTheDeltaBack) {
  for_chains([](const DeltaChain& chain, Random&) {
    EXPECT_TRUE(inverted(chain.deltas[0], chain.options, chain.states[0]) ==
                encode_file(*chain.table, chain.states[1], chain.states[0], chain.options, {1, 0}));
  });
}

TEST_P(AdditiveGroupProperty, AnInverseOfAnInverseIsTheDelta) {
  for_chains([](const DeltaChain& chain, Random&) {
    const Bytes back = inverted(chain.deltas[0], chain.options, chain.states[0]);
    EXPECT_TRUE(inverted(back, chain.options, chain.states[1]) == chain.deltas[0]);
  });
}

INSTANTIATE_TEST_SUITE_P(AllCodecs, AdditiveGroupProperty, ::testing::Values(ValueCodec::kXor, ValueCodec::kUlp),
                         codec_name);

}  // namespace
}  // namespace sparsecast::test
