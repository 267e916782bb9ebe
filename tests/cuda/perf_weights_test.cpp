// SPDX-License-Identifier: Apache-2.0

// The weights of sparsecast_perf on a device, as its run loop uses them: three ranks, each a thread, over a channel in
// memory that takes frames and dense weights through the host.

#include <gtest/gtest.h>

#include <thread>

#include "common/count_differing.hpp"
#include "cuda/device_access.hpp"
#include "sparsecast_perf/weights.hpp"
#include "support/loopback_transport.hpp"

namespace sparsecast::perf {
namespace {

using namespace std::chrono_literals;
using std::chrono::steady_clock;

constexpr int kRanks = 3;
constexpr int kSteps = 3;

class LoopbackWire final : public Wire {
 public:
  LoopbackWire(test::LoopbackHub& syncs, test::LoopbackHub& dense, int rank)
      : transport_(syncs.endpoint(rank)), dense_(dense.endpoint(rank)) {}
  Transport& transport() noexcept override { return *transport_; }
  void broadcast(std::vector<Bytes>& records, Deadline deadline) override {
    dense_->broadcast(records, kPublisher, deadline);
  }
  std::vector<std::string> libraries() const override { return {}; }
  const char* dense_call() const noexcept override { return "loopback"; }

 private:
  std::unique_ptr<Transport> transport_;
  std::unique_ptr<Transport> dense_;
};

class PerfDeviceWeights : public testing::TestWithParam<DetectorKind> {
 protected:
  PerfDeviceWeights() {
    options_.detector = GetParam();
    options_.synthetic = true;
    options_.model.layers = 1;
    options_.model.width = 48;
    options_.model.vocabulary = 300;
    options_.model.learning_rate = 1e-4;
    source_ = make_synthetic(options_.model);
    table_ = std::make_shared<const TensorTable>(source_->table());
  }

  std::vector<std::byte> state() const {
    std::vector<std::byte> all;
    for (const MutableBytes tensor : source_->weights()) all.insert(all.end(), tensor.begin(), tensor.end());
    return all;
  }

  void run_rank(int rank) {
    LoopbackWire wire(syncs_, dense_, rank);
    const bool publishes = rank == kPublisher;
    const auto weights = make_device_weights({options_, wire, table_, publishes ? source_.get() : nullptr}, 0);
    const auto broadcast = [&] {
      if (publishes) weights->fill_dense();
      weights->broadcast_dense(steady_clock::now() + 60s);
    };
    broadcast();
    weights->open();
    for (int step = 0; step < kSteps; ++step) {
      if (publishes) {
        source_->next(weights->wants_cast());
        weights->take_step();
      }
      EXPECT_GT(weights->sync(60s).changed, 0U);
      broadcast();
      EXPECT_EQ(weights->count_wrong(), 0U) << "rank " << rank << ", step " << step;
    }
    // A step that no sync carries: now every changed element is a wrong one.
    if (publishes) {
      const std::vector<std::byte> before = state();
      source_->next(true);
      missed_ = bench::count_differing(before, state(), 2);
    }
    broadcast();
    wrong_[static_cast<std::size_t>(rank)] = weights->count_wrong();
  }

  Options options_;
  std::unique_ptr<WeightSource> source_;
  std::shared_ptr<const TensorTable> table_;
  test::LoopbackHub syncs_{kRanks};
  test::LoopbackHub dense_{kRanks};
  std::uint64_t missed_ = 0;
  std::uint64_t wrong_[kRanks] = {};
};

TEST_P(PerfDeviceWeights, AreRightAfterEachSyncAndEveryWrongElementIsCounted) {
  if (!test::device_present()) GTEST_SKIP() << "no device";
  {
    std::vector<std::jthread> threads;
    for (int rank = 0; rank < kRanks; ++rank) threads.emplace_back([this, rank] { run_rank(rank); });
  }
  EXPECT_GT(missed_, 0U);
  EXPECT_EQ(wrong_[0], 0U);
  EXPECT_EQ(wrong_[1], missed_);
  EXPECT_EQ(wrong_[2], missed_);
}

INSTANTIATE_TEST_SUITE_P(Detectors, PerfDeviceWeights,
                         testing::Values(DetectorKind::kSnapshot, DetectorKind::kPinned, DetectorKind::kFused));

}  // namespace
}  // namespace sparsecast::perf
