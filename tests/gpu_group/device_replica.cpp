// SPDX-License-Identifier: Apache-2.0
#include <optional>
#include "support/detectors.hpp"

#include "cuda/common/device_memory.hpp"
#include "cuda/common/device_stream.hpp"
#include "cuda/common/streams.hpp"
#include "gpu_group/replica.hpp"

namespace sparsecast::test {
namespace {

constexpr std::chrono::milliseconds kCopyDeadline{10'000};

class DeviceReplica final : public Replica {
 public:
  DeviceReplica(int rank, std::uint64_t seed, std::uint64_t width) : model_(seed, width) {
    for (const Bytes& tensor : model_.weights()) live_.emplace_back(tensor.size());
    upload(model_.weights());
    if (rank == 0) {
      std::vector<const void*> d_live;
      for (const cuda::DeviceMemory& tensor : live_) d_live.push_back(tensor.as());
      publisher_.emplace(model_.table(), device_snapshot(model_.table(), d_live), PublisherOptions{});
    } else {
      std::vector<const void*> d_live;
      for (const cuda::DeviceMemory& tensor : live_) d_live.push_back(tensor.as());
      subscriber_.emplace(model_.table(), device_refs(*model_.table(), d_live), SubscriberOptions{});
    }
  }
  void train() override {
    model_.train();
    upload(model_.weights());
  }
  SyncReport sync(GroupChannel& channel, std::chrono::milliseconds timeout) override {
    return publisher_ ? sync_send(*publisher_, channel.transport(), timeout)
                      : sync_receive(*subscriber_, channel.transport(), 0, timeout);
  }
  AnchorHead head() const override { return {publisher_->version(), publisher_->digest()}; }
  void bring_up(const Storage& weights, const AnchorHead& head) override {
    upload(weights);
    subscriber_->reset(head.version, head.digest);
  }
  Storage weights() const override {
    Storage found = model_.weights();
    for (std::size_t t = 0; t < live_.size(); ++t) {
      cuda::copy_async(found[t].data(), live_[t].as(), live_[t].bytes(), cudaMemcpyDeviceToHost, stream_.get());
    }
    cuda::HostWait(kCopyDeadline).wait(stream_.get(), "copy weights");
    return found;
  }
  const TensorTable& table() const override { return *model_.table(); }

 private:
  void upload(const Storage& weights) {
    for (std::size_t t = 0; t < live_.size(); ++t) {
      const Bytes& tensor = weights[t];
      cuda::copy_async(live_[t].as(), tensor.data(), tensor.size(), cudaMemcpyHostToDevice, stream_.get());
    }
    cuda::HostWait(kCopyDeadline).wait(stream_.get(), "copy weights");
  }

  TrainingModel model_;
  cuda::Stream stream_;
  std::vector<cuda::DeviceMemory> live_;
  std::optional<Publisher> publisher_;
  std::optional<Subscriber> subscriber_;
};

}  // namespace

std::unique_ptr<Replica> make_device_replica(int rank, std::uint64_t seed, std::uint64_t width) {
  return std::make_unique<DeviceReplica>(rank, seed, width);
}

}  // namespace sparsecast::test
