// Whether the kernels need each of their barriers, and whether a missing one would be found: what they do for random
// steps is looked at once more for each barrier, as if that one were not there.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "cuda/differential.hpp"
#include "cuda_emulation/races.hpp"
#include "cuda_emulation/reports.hpp"
#include "sparsecast/publisher.hpp"
#include "sparsecast/subscriber.hpp"

namespace sparsecast::test {
namespace {

namespace races = emulation::races;

/// As an optimizer does: some elements move by one, few by more.
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

/// Version 1 and 2 from a trainer on the device to an engine on the device.
void two_versions(const RandomDelta& delta, Random& random) {
  const TensorTable& table = *delta.table;
  DeviceState trained(element_sizes(table), delta.old_state, 0);
  DeviceState generating(element_sizes(table), delta.old_state, 0);
  std::vector<const void*> d_trained;
  std::vector<DeviceTensor> d_generating;
  for (std::size_t t = 0; t < table.size(); ++t) {
    d_trained.push_back(trained[t]);
    d_generating.push_back({generating[t], {}});
  }
  PublisherOptions options;
  options.encode = delta.options;
  options.encode.zstd_level = 0;
  options.encode.values = ValueCodec::kUlp;
  Publisher publisher(delta.table, make_device_snapshot(delta.table, d_trained), options);
  Subscriber subscriber(delta.table, d_generating, {});
  TensorState state = delta.old_state;
  for (std::uint64_t version = 1; version <= 2; ++version) {
    step(random, state, element_sizes(table), version == 1 ? 0.02 : 0.3);
    for (std::size_t t = 0; t < table.size(); ++t) std::ranges::copy(state[t], trained[t]);
    subscriber.stage(publisher.publish());
    subscriber.apply();
    publisher.commit(version);
  }
  subscriber.audit();
}

void run_kernels() {
  for (std::uint64_t seed = 1; seed <= 3; ++seed) {
    Random random(seed);
    two_versions(random_delta(random, {.max_elements = 90'000, .large_chance = 0.5}), random);
  }
}

TEST(Barriers, WithoutAnyOneOfThemRacesAreFound) {
  if (!races::kWatched) GTEST_SKIP() << "this program does not look for races";
  run_kernels();
  EXPECT_THAT(emulation::take_reports(), testing::IsEmpty());
  for (const std::string& barrier : races::barriers()) {
    races::doubt(barrier);
    run_kernels();
    races::doubt("");
    EXPECT_THAT(emulation::take_reports(), testing::Not(testing::IsEmpty())) << "without the barrier at " << barrier;
  }
}

}  // namespace
}  // namespace sparsecast::test
