// SPDX-License-Identifier: Apache-2.0

// Contiguous tensors that are aligned to their elements alone, on a device, emulated or real: compared by vectors where
// the snapshot lies behind a multiple of 16 bytes as the tensor does, which those of the library do, and with the
// frames and digests of the CPU.

#include <gtest/gtest.h>

#include "cuda/apply/device_applier.hpp"
#include "cuda/backend/device_detector.hpp"
#include "cuda/detect/snapshot_prefetch.hpp"
#include "cuda/differential.hpp"
#include "cuda/encode/encoder_tensors.hpp"
#include "cuda/viewed_tensors.hpp"

namespace sparsecast::test {
namespace {

/// Every skew of every element size is that of one of the parameters.
constexpr int kParameters = 4;

class DeviceLeads : public testing::TestWithParam<int> {
 protected:
  DeviceLeads() : random_(case_seed(run_seed(), static_cast<std::uint64_t>(GetParam()))) {}
  ~DeviceLeads() override { set_thread_order(0); }
  void SetUp() override {
    if (!device_present()) GTEST_SKIP() << "no device";
  }

  /// Calls body(skew) with the threads in another order each time.
  template <class Body>
  void for_skews(const Body& body) {
    for (std::size_t skew = GetParam() + 1; skew <= 16; skew += kParameters) {
      SCOPED_TRACE(seed_note() + ", skew " + std::to_string(skew));
      set_thread_order(random_.next());
      body(skew % 16);
    }
  }

  /// Tensors that end within a word of the mask, at its end and behind it; with and without whole tiles.
  RandomDelta draw() {
    std::vector<TensorSpec> specs;
    const auto add = [&](DType dtype, std::uint64_t elements) {
      specs.push_back({"t" + std::to_string(specs.size()), dtype, {elements}});
    };
    for (const DType dtype : {DType::kF8E4M3, DType::kBF16, DType::kF32, DType::kF64}) {
      for (const std::uint64_t elements : {1, 16, 17, 31, 32, 33, 47, 63, 64, 1000}) add(dtype, elements);
      add(dtype, kTileElems + random_.between(0, 40));
    }
    add(DType::kBF16, 3 * kTileElems - random_.between(0, 40));
    RandomDelta delta;
    delta.table = std::make_shared<const TensorTable>(specs);
    delta.old_state = random_state(random_, *delta.table);
    delta.new_state = delta.old_state;
    change_randomly(random_, *delta.table, delta.new_state);
    delta.options = random_options(random_);
    delta.options.zstd_level = 0;
    return delta;
  }

  Random random_;
};
INSTANTIATE_TEST_SUITE_P(Random, DeviceLeads, testing::Range(0, kParameters));

TEST_P(DeviceLeads, AreComparedAsOnTheCpu) {
  for_skews([&](std::size_t skew) {
    const RandomDelta delta = draw();
    const std::uint64_t entries = random_.chance(0.5) ? 0 : random_.between(1, 500);
    expect_compare_agrees(delta, random_, {.entries = entries}, skew);
    expect_cast_agrees(delta, random_, {}, skew);
  });
}

TEST_P(DeviceLeads, AreDigestedAsOnTheCpu) {
  for_skews([&](std::size_t skew) {
    const RandomDelta delta = draw();
    const TensorTable& table = *delta.table;
    DeviceState live(element_sizes(table), delta.new_state, skew);
    std::vector<TensorRef> refs;
    for (std::size_t t = 0; t < table.size(); ++t) refs.push_back(ref_to(table[t], live[t], 0));
    cuda::DeviceApplier applier(table, refs);
    const std::vector<StateDigest> digests = applier.digests(0, table.size(), nullptr);
    for (std::size_t t = 0; t < table.size(); ++t) {
      EXPECT_EQ(digests[t], digest_by_element(table, t, delta.new_state[t])) << "tensor " << t;
    }
  });
}

/// Requires that both pointers of each tile are where a vector begins, behind the lead.
void expect_vectors(const cuda::TilePlan& plan, std::size_t skew) {
  for (const cuda::TileEntry& tile : plan.tiles) {
    const std::size_t size = std::size_t{1} << tile.element_shift;
    EXPECT_TRUE(tile.vectors);
    EXPECT_EQ(tile.lead, skew % (16 / size));
    EXPECT_EQ((reinterpret_cast<std::uintptr_t>(tile.current) - tile.lead * size) % 16, 0);
    EXPECT_EQ((reinterpret_cast<std::uintptr_t>(tile.old) - tile.lead * size) % 16, 0);
  }
}

TEST_P(DeviceLeads, AreOfVectorsWhereBothSidesHaveTheSame) {
  for_skews([&](std::size_t skew) {
    const RandomDelta delta = draw();
    const TensorTable& table = *delta.table;
    DeviceState current(element_sizes(table), delta.new_state, skew);
    const auto plan_with = [&](std::size_t old_skew) {
      DeviceState old(element_sizes(table), delta.old_state, old_skew);
      std::vector<cuda::CompareTensor> tensors;
      for (std::size_t t = 0; t < table.size(); ++t) tensors.push_back({current[t], old[t]});
      cuda::TilePlan plan = cuda::plan_tiles(table, kDefaultChunkBytes);
      EXPECT_EQ(cuda::enter_tensors(plan, table, tensors), cuda::DetectSource::kCompare);
      cuda::enter_tiles(plan, cuda::DetectSource::kCompare);
      return plan;
    };
    expect_vectors(plan_with(skew), skew);
    for (const cuda::TileEntry& tile : plan_with(skew + 1).tiles) {
      EXPECT_FALSE(tile.vectors);
      EXPECT_EQ(tile.lead, 0);
    }
  });
}

TEST_P(DeviceLeads, AreThoseOfPrefetchedSnapshots) {
  for_skews([&](std::size_t skew) {
    const RandomDelta delta = draw();
    const TensorTable& table = *delta.table;
    DeviceState current(element_sizes(table), delta.new_state, skew);
    DeviceState old(element_sizes(table), delta.old_state, random_.below(16));
    std::vector<cuda::PinnedTensor> tensors;
    for (std::size_t t = 0; t < table.size(); ++t) tensors.push_back({current[t], old[t]});
    cuda::TilePlan plan = cuda::plan_tiles(table, random_.between(1, 200'000));
    cuda::enter_tensors(plan, table, tensors);
    const cuda::SnapshotPrefetch prefetch(plan, cuda::HostWait(std::chrono::seconds(20)));
    expect_vectors(plan, skew);
  });
}

TEST_P(DeviceLeads, AreThoseOfTheLibrarysSnapshots) {
  for_skews([&](std::size_t skew) {
    const auto table = std::make_shared<const TensorTable>(TensorTable({{"fp8", DType::kF8E4M3, {100}},
                                                                        {"bf16", DType::kBF16, {3, 7}},
                                                                        {"f32", DType::kF32, {40}},
                                                                        {"f64", DType::kF64, {9}},
                                                                        {"none", DType::kBF16, {0}}}));
    for (const bool pinned : {false, true}) {
      for (const bool masters : {false, true}) {
        std::vector<TensorSpec> held(table->begin(), table->end());
        if (masters) held[1].dtype = DType::kF32;
        const TensorTable trained(held);
        DeviceState live(element_sizes(trained), random_state(random_, trained), skew);
        std::vector<TensorRef> refs;
        for (std::size_t t = 0; t < table->size(); ++t) refs.push_back(ref_to(trained[t], live[t], 0));
        DetectorOptions options;
        options.pinned = pinned;
        const auto detector = make_detector(table, refs, options);
        const std::vector<TensorRef> state = dynamic_cast<DeviceDetector&>(*detector).state();
        for (std::size_t t = 0; t + 1 < table->size(); ++t) {
          const std::size_t size = element_size((*table)[t].dtype);
          const std::size_t together = 16 / element_size(trained[t].dtype);
          EXPECT_EQ(reinterpret_cast<std::uintptr_t>(state[t].data) / size % together, skew % together)
              << "tensor " << t;
        }
      }
    }
  });
}

}  // namespace
}  // namespace sparsecast::test
