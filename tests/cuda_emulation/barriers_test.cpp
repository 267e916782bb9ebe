// SPDX-License-Identifier: Apache-2.0

// Whether the kernels need each of their barriers, and whether a missing one would be found: what they do for random
// steps is looked at once more for each barrier, as if that one were not there.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <iterator>
#include <string>
#include <vector>

#include "cuda/differential.hpp"
#include "cuda_emulation/races.hpp"
#include "cuda_emulation/reports.hpp"
#include "sparsecast/publisher.hpp"
#include "sparsecast/subscriber.hpp"
#include "support/detectors.hpp"

namespace sparsecast::test {
namespace {

namespace races = emulation::races;

/// Changes elements as an optimizer does: some by one ULP, a few by more.
void step(Random& random, TensorState& state, const std::vector<std::size_t>& element_bytes, double share) {
  for (std::size_t t = 0; t < state.size(); ++t) {
    for (std::size_t at = 0; at < state[t].size(); at += element_bytes[t]) {
      if (!random.chance(share)) continue;
      auto low = std::to_integer<unsigned>(state[t][at]);
      low += random.chance(0.9) ? 1 : static_cast<unsigned>(random.below(60));
      state[t][at] = static_cast<std::byte>(low);
    }
  }
}

/// Changes whole elements at random, which makes blocks dense.
void scatter(Random& random, TensorState& state) {
  for (std::vector<std::byte>& tensor : state) {
    for (std::byte& byte : tensor) byte = static_cast<std::byte>(random.below(256));
  }
}

/// A random model, and the steps from one version of it to the next.
struct Steps {
  std::uint64_t seed = 0;
  RandomLimits limits;
  bool context = false;  ///< In mode `context`, with as many tensors as the limits allow, of floating dtypes.
};

/// What `context` is for: weights as those of a trained model.
RandomDelta trained_model(Random& random, const RandomLimits& limits) {
  constexpr DType kDTypes[] = {DType::kBF16, DType::kF32, DType::kBF16, DType::kF8E4M3, DType::kF16, DType::kF64};
  std::vector<TensorSpec> specs;
  while (specs.size() < limits.max_tensors) {
    const std::uint64_t elements = random.between(limits.max_elements / 2, limits.max_elements);
    specs.push_back({"t" + std::to_string(specs.size()), kDTypes[specs.size() % std::size(kDTypes)], {elements}});
  }
  RandomDelta delta;
  delta.table = std::make_shared<const TensorTable>(std::move(specs));
  delta.old_state = random_state(random, *delta.table);
  fill_with_weights(random, *delta.table, delta.old_state);
  delta.options.positions = PositionMode::kContext;
  return delta;
}

/// Three versions from a trainer on the device to an engine on the device; the reports.
std::vector<std::string> three_versions(const Steps& steps) {
  Random random(steps.seed);
  const RandomDelta delta = steps.context ? trained_model(random, steps.limits) : random_delta(random, steps.limits);
  const std::vector<std::size_t> sizes = element_sizes(*delta.table);
  TensorState state = delta.old_state;
  DeviceState trained(sizes, state, 0);
  DeviceState generating(sizes, state, 0);
  std::vector<const void*> d_trained;
  std::vector<TensorRef> d_generating;
  for (std::size_t t = 0; t < sizes.size(); ++t) {
    d_trained.push_back(trained[t]);
    d_generating.push_back(ref_to((*delta.table)[t], generating[t], 0));
  }
  PublisherOptions options;
  options.encode = delta.options;
  options.encode.zstd_level = 0;
  options.encode.values = ValueCodec::kUlp;
  Publisher publisher(delta.table, device_snapshot(delta.table, d_trained), options);
  Subscriber subscriber(delta.table, d_generating, {});
  for (std::uint64_t version = 1; version <= 3; ++version) {
    if (version == 3) {
      scatter(random, state);
    } else if (steps.context) {
      step_as_an_optimizer(random, *delta.table, state);
    } else {
      step(random, state, sizes, version == 1 ? 0.02 : 0.3);
    }
    for (std::size_t t = 0; t < sizes.size(); ++t) std::ranges::copy(state[t], trained[t]);
    subscriber.stage(publisher.publish());
    subscriber.apply();
    publisher.commit(version);
  }
  subscriber.audit();
  return emulation::take_reports();
}

/// Returns the reports of the first random steps with any, with codecs of all kinds. Those in mode `context` come first
/// where a barrier of its code is looked at; those of hundreds of tensors, half of the time, only if `all` is asked
/// for.
std::vector<std::string> reports_of_kernels(bool all, const std::string& barrier = {}) {
  constexpr RandomLimits kSmall{.max_elements = 30'000, .large_chance = 0.2, .all_dtypes = false};
  constexpr RandomLimits kLarge{.max_elements = 90'000, .large_chance = 0.5, .all_dtypes = false};
  // More blocks than CTAs, and than warps.
  constexpr RandomLimits kMany{.max_tensors = 80, .max_elements = 600, .large_chance = 0, .all_dtypes = false};
  constexpr RandomLimits kMost{.max_tensors = 800, .max_elements = 600, .large_chance = 0, .all_dtypes = false};
  std::vector<Steps> steps{{1, kSmall}, {2, kSmall}, {3, kSmall}, {4, kSmall},
                           {1, kLarge}, {2, kLarge}, {3, kLarge}, {1, kMany}};
  if (all) steps.insert(steps.end(), {{2, kMost}, {3, kMost}});
  // Blocks of several tiles and several blocks of a section, then more blocks than CTAs.
  constexpr RandomLimits kTrained{.max_tensors = 2, .max_elements = 120'000};
  constexpr RandomLimits kManyTrained{.max_tensors = 140, .max_elements = 2'000};
  const bool first = barrier.find("context") != std::string::npos || barrier.find("class_") != std::string::npos;
  steps.insert(first ? steps.begin() : steps.end(),
               {{1, kTrained, true}, {2, kTrained, true}, {3, kTrained, true}, {1, kManyTrained, true}});
  for (const Steps& these : steps) {
    std::vector<std::string> reports = three_versions(these);
    if (!reports.empty()) return reports;
  }
  return {};
}

/// One of the barriers, chosen by the seed of the run; all of them with SPARSECAST_EVERY_BARRIER=1, which takes many
/// minutes, and those of a place with SPARSECAST_BARRIER=encode_blocks.cuh:306.
TEST(Barriers, WithoutAnyOneOfThemRacesAreFound) {
  if (!races::kWatched) GTEST_SKIP() << "this program does not look for races";
  SCOPED_TRACE(seed_note());
  const char* const place = std::getenv("SPARSECAST_BARRIER");
  const bool every = place != nullptr || std::getenv("SPARSECAST_EVERY_BARRIER") != nullptr;
  EXPECT_THAT(reports_of_kernels(every), testing::IsEmpty());
  // Between chunks one stands for sinks that would read other threads' entries; none does so far.
  std::vector<std::string> barriers;
  std::ranges::copy_if(races::barriers(), std::back_inserter(barriers), [place](const std::string& barrier) {
    return barrier.find("decode_blocks.cuh") == std::string::npos &&
           (place == nullptr || barrier.find(place) != std::string::npos);
  });
  EXPECT_GT(races::barriers().size(), 20U);
  if (!every) barriers = {barriers.at(Random(run_seed()).below(barriers.size()))};
  for (const std::string& barrier : barriers) {
    races::doubt(barrier);
    EXPECT_THAT(reports_of_kernels(true, barrier), testing::Not(testing::IsEmpty()))
        << "without the barrier at " << barrier;
    races::doubt("");
  }
}

}  // namespace
}  // namespace sparsecast::test
