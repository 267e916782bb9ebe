// SPDX-License-Identifier: Apache-2.0

// scBroadcast's buffers in device memory: NCCL is its fake, the device is emulated, each rank is a thread.

#if defined(SPARSECAST_CUDA_EMULATION) && defined(SPARSECAST_HAVE_NCCL)

#include <gtest/gtest.h>

#include <map>
#include <mutex>

#include "capi/buffer.hpp"
#include "cuda_emulation/events.hpp"
#include "support/fake_nccl.hpp"
#include "support/random.hpp"
#include "transport/nccl/device_api.hpp"
#include "transport/tcp/meeting.hpp"

namespace sparsecast::test {
namespace {

using namespace std::chrono_literals;
using capi::BroadcastBuffer;
using capi::Communicator;

constexpr int kRanks = 2;
constexpr std::size_t kCount = 300'000;
using Weights = std::vector<std::uint16_t>;

/// Events of the emulated device, which publishers and subscribers wait for; all else is the fake's.
class MixedDevice final : public DeviceApi {
 public:
  explicit MixedDevice(DeviceApi& inner) : inner_(inner) {}

  int current_device() override { return inner_.current_device(); }
  void use_device(int device) override { inner_.use_device(device); }
  bool has_context(int device) override { return inner_.has_context(device); }
  std::string uuid(int device) override { return inner_.uuid(device); }
  bool holds(const void* d_pointer, int) override { return d_pointer != foreign; }
  void* allocate(std::uint64_t bytes) override { return inner_.allocate(bytes); }
  void free(void* d_pointer) noexcept override { inner_.free(d_pointer); }
  void* allocate_host(std::uint64_t bytes) override { return inner_.allocate_host(bytes); }
  void free_host(void* h_pointer) noexcept override { inner_.free_host(h_pointer); }
  void* create_stream() override { return inner_.create_stream(); }
  void destroy_stream(void* stream) noexcept override { inner_.destroy_stream(stream); }
  void* create_event() override {
    const std::lock_guard lock(mutex_);
    auto event = std::make_unique<emulation::TestEvent>();
    void* const handle = event->get();
    events_.emplace(handle, std::move(event));
    return handle;
  }
  void destroy_event(void* event) noexcept override {
    const std::lock_guard lock(mutex_);
    events_.erase(event);
  }
  void record(void*, void*) override { ++records; }
  void wait(void* stream, void* event) override { inner_.wait(stream, event); }
  bool finished(void*) override { return true; }
  void copy_to_device(void* d_to, const void* h_from, std::uint64_t bytes, void* stream) override {
    inner_.copy_to_device(d_to, h_from, bytes, stream);
  }
  void copy_to_host(void* h_to, const void* d_from, std::uint64_t bytes, void* stream) override {
    inner_.copy_to_host(h_to, d_from, bytes, stream);
  }
  void copy_on_device(void* d_to, const void* d_from, std::uint64_t bytes, void* stream) override {
    inner_.copy_on_device(d_to, d_from, bytes, stream);
  }

  std::atomic<int> records = 0;
  const void* foreign = nullptr;  ///< Does not lie on the device.

 private:
  DeviceApi& inner_;
  std::mutex mutex_;
  std::map<void*, std::unique_ptr<emulation::TestEvent>> events_;
};

/// The buffer of `weights` in device memory.
BroadcastBuffer register_weights(const std::shared_ptr<Communicator>& comm, Weights& weights) {
  auto table = std::make_shared<const TensorTable>(std::vector<TensorSpec>{{"buffer", DType::kBF16, {weights.size()}}});
  auto memory =
      std::make_unique<capi::BufferTensors>(*table, std::vector<void*>{weights.data()}, scMemoryDevice, *comm);
  return BroadcastBuffer(comm, table, scMemoryDevice, std::move(memory), nullptr);
}

void run_ranks(const std::function<void(const std::shared_ptr<Communicator>&, MixedDevice&)>& body) {
  if (!rendezvous_available()) GTEST_SKIP() << "the ranks meet over TCP; built without libsodium";
  FakeNccl fake;
  MixedDevice device(fake.device());
  Meeting meeting(meeting_options(kRanks));
  meeting.run([&](const std::shared_ptr<Rendezvous>& control) {
    NcclOptions options;
    options.device = control->rank();
    auto transport =
        std::make_unique<NcclTransport>(NcclGroup::form(fake.runtime(), control, options, nullptr, in(20s)));
    scConfig_t config = SC_CONFIG_INITIALIZER;
    config.timeout_ms = 30000;
    body(std::make_shared<Communicator>(control, config, std::move(transport), device), device);
  });
  EXPECT_EQ(fake.misuses(), "");
}

Weights weights_of(std::uint64_t seed) {
  Random random(seed);
  Weights weights(kCount);
  for (auto& w : weights) w = static_cast<std::uint16_t>(0x3C00 + random.below(1024));
  return weights;
}

TEST(CBufferOnDevice, AnchorsAndChangesLeaveAllRanksBitIdentical) {
  run_ranks([](const std::shared_ptr<Communicator>& comm, MixedDevice& device) {
    Weights expected = weights_of(1);
    Weights weights = comm->rank() == 0 ? expected : Weights(kCount);
    BroadcastBuffer buffer = register_weights(comm, weights);
    for (const int root : {0, 0, 0, 1, 1}) {
      for (std::size_t i = buffer.stats().version; i < kCount; i += 100) ++expected[i];
      if (comm->rank() == root) weights = expected;
      buffer.broadcast(root, nullptr);
      EXPECT_EQ(weights, expected);
      EXPECT_EQ(buffer.stats().dirty, 0);
      buffer.audit();
    }
    EXPECT_EQ(buffer.stats().version, 5U);
    EXPECT_EQ(buffer.stats().anchors, 2U);
    EXPECT_LT(buffer.stats().wire_bytes, kCount / 10);
    EXPECT_GE(device.records, 5);
  });
}

TEST(CBufferOnDevice, ForeignWritesAreFoundAndRepaired) {
  run_ranks([](const std::shared_ptr<Communicator>& comm, MixedDevice&) {
    Weights weights = weights_of(2);
    BroadcastBuffer buffer = register_weights(comm, weights);
    buffer.broadcast(0, nullptr);
    EXPECT_EQ(buffer.stats().wire_bytes, 0U);
    if (comm->rank() == 1) {
      weights[5] ^= 1;
      expect_error(ErrorCode::kDirty, [&] { buffer.audit(); });
    }
    buffer.broadcast(0, nullptr);
    EXPECT_EQ(weights, weights_of(2));
    EXPECT_EQ(buffer.stats().anchors, 2U);
  });
}

TEST(CBufferOnDevice, MemoryThatDoesNotLieThereIsUsage) {
  run_ranks([](const std::shared_ptr<Communicator>& comm, MixedDevice& device) {
    static Weights shared(8);
    device.foreign = shared.data();
    expect_error(ErrorCode::kUsage, [&] { register_weights(comm, shared); }, {"does not lie in memory of device"});
  });
}

}  // namespace
}  // namespace sparsecast::test

#endif
