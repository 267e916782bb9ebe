// SPDX-License-Identifier: Apache-2.0

// Publishers and subscribers beside the caller's own streams: events alone order them, and without the event there is a
// race, which is found.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <utility>
#include <vector>

#include "cuda/common/device_memory.hpp"
#include "cuda/common/streams.hpp"
#include "cuda/device_access.hpp"
#include "cuda_emulation/races.hpp"
#include "cuda_emulation/reports.hpp"
#include "sparsecast/device.hpp"
#include "sparsecast/publisher.hpp"
#include "sparsecast/subscriber.hpp"
#include "support/detectors.hpp"

namespace sparsecast::test {
namespace {

using cuda::DeviceMemory;
using cuda::Event;
using cuda::PinnedMemory;
using cuda::Stream;
using emulation::take_reports;
using testing::Contains;
using testing::HasSubstr;
using testing::IsEmpty;

constexpr std::uint64_t kElements = 40'000;

/// Those of a step: every 100th differs from the last step's.
template <class Element>
Element weight(unsigned step, std::uint64_t i) {
  return static_cast<Element>(i % 100 == 0 ? i / 100 + step : i);
}

/// Weights on the device, and a stream of the caller's that writes and reads them.
template <class Element>
class Weights {
 public:
  Weights() {
    write(0);
    wait();
  }

  Element* get() const { return d_weights_.as<Element>(); }
  /// Recorded behind each write and read.
  CUevent_st* done() { return done_.get(); }
  void wait() { static_cast<void>(cudaStreamQuery(stream_.get())); }
  void wait_behind(const Event& event) { cuda::wait_behind(stream_.get(), event.get()); }

  void write(unsigned step) {
    wait();
    for (std::uint64_t i = 0; i < kElements; ++i) h_weights_.as<Element>()[i] = weight<Element>(step, i);
    cuda::copy_async(d_weights_.as(), h_weights_.as(), kBytes, cudaMemcpyHostToDevice, stream_.get());
    cuda::record(done_.get(), stream_.get());
  }
  void read() {
    cuda::copy_async(h_read_.as(), d_weights_.as(), kBytes, cudaMemcpyDeviceToHost, stream_.get());
    cuda::record(done_.get(), stream_.get());
  }

 private:
  static constexpr std::size_t kBytes = kElements * sizeof(Element);

  DeviceMemory d_weights_{kBytes};
  PinnedMemory h_weights_{kBytes};
  PinnedMemory h_read_{kBytes};
  Stream stream_;
  Event done_;
};

class OrderOfEnds : public testing::Test {
 protected:
  void SetUp() override {
    if (!emulation::races::kWatched) GTEST_SKIP() << "this program does not look for races";
  }

  template <class Element>
  void expect_event_is_needed(std::unique_ptr<Detector> detector, Weights<Element>& trained) {
    Publisher publisher(table, std::move(detector), {});
    for (unsigned version = 1; version <= 3; ++version) {
      trained.write(version);
      publisher.publish(trained.done());
      publisher.commit(version);
      EXPECT_THAT(take_reports(), IsEmpty()) << "version " << version;
    }
    trained.write(9);
    publisher.publish();
    EXPECT_THAT(take_reports(), Contains(HasSubstr("which does not wait for it")));
  }

  const std::shared_ptr<const TensorTable> table =
      std::make_shared<const TensorTable>(std::vector<TensorSpec>{{"w", DType::kBF16, {kElements}}});
  const DeviceOptions options{.chunk_bytes = 1 << 14};
};

TEST_F(OrderOfEnds, ASnapshotIsComparedBehindTheCallersEvent) {
  Weights<std::uint16_t> trained;
  expect_event_is_needed(device_snapshot(table, {trained.get()}, options), trained);
}

TEST_F(OrderOfEnds, APinnedSnapshotIsComparedBehindTheCallersEvent) {
  Weights<std::uint16_t> trained;
  expect_event_is_needed(pinned_snapshot(table, {trained.get()}, options), trained);
}

TEST_F(OrderOfEnds, MastersAreCastBehindTheCallersEvent) {
  Weights<float> masters;
  Weights<std::uint16_t> bf16;
  expect_event_is_needed(device_fused_cast(table, {masters.get()}, {bf16.get()}, options), masters);
}

/// Version 1 of the weights, from version 0.
Delta one_step(std::shared_ptr<const TensorTable> table) {
  std::vector<std::byte> bytes(kElements * 2);
  auto* const weights = reinterpret_cast<std::uint16_t*>(bytes.data());
  for (std::uint64_t i = 0; i < kElements; ++i) weights[i] = weight<std::uint16_t>(0, i);
  Publisher publisher(table, host_snapshot(*table, {bytes}), {});
  for (std::uint64_t i = 0; i < kElements; ++i) weights[i] = weight<std::uint16_t>(1, i);
  return publisher.publish();
}

TEST_F(OrderOfEnds, AnApplyWritesBehindTheCallersReadsAndBeforeThem) {
  Weights<std::uint16_t> generating;
  Subscriber subscriber(table, device_refs(*table, {generating.get()}), {}, options);
  subscriber.stage(one_step(table));
  const Event written;
  generating.read();
  subscriber.apply({.after = generating.done(), .written = written.get()});
  generating.wait_behind(written);
  generating.read();
  EXPECT_THAT(take_reports(), IsEmpty());
}

TEST_F(OrderOfEnds, AnApplyThatIsNotToldOfReadsRacesWithThem) {
  Weights<std::uint16_t> generating;
  Subscriber subscriber(table, device_refs(*table, {generating.get()}), {}, options);
  subscriber.stage(one_step(table));
  generating.read();
  subscriber.apply();
  EXPECT_THAT(take_reports(), Contains(HasSubstr("which does not wait for it")));
}

}  // namespace
}  // namespace sparsecast::test
