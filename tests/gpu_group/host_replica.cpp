// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <optional>
#include "support/detectors.hpp"

#include "gpu_group/replica.hpp"

namespace sparsecast::test {
namespace {

class HostReplica final : public Replica {
 public:
  HostReplica(int rank, std::uint64_t seed, std::uint64_t width) : model_(seed, width) {
    if (rank == 0) {
      publisher_.emplace(model_.table(), host_snapshot(*model_.table(), model_.live()), PublisherOptions{});
    } else {
      subscriber_.emplace(model_.table(), refs_to(*model_.table(), tensor_views(model_.weights())),
                          SubscriberOptions{});
    }
  }
  void train() override { model_.train(); }
  SyncReport sync(GroupChannel& channel, std::chrono::milliseconds timeout) override {
    return publisher_ ? sync_send(*publisher_, channel.transport(), timeout)
                      : sync_receive(*subscriber_, channel.transport(), 0, timeout);
  }
  AnchorHead head() const override { return {publisher_->version(), publisher_->digest()}; }
  void bring_up(const Storage& weights, const AnchorHead& head) override {
    for (std::size_t t = 0; t < weights.size(); ++t) std::ranges::copy(weights[t], model_.weights()[t].begin());
    subscriber_->reset(head.version, head.digest);
  }
  Storage weights() const override { return model_.weights(); }
  const TensorTable& table() const override { return *model_.table(); }

 private:
  TrainingModel model_;
  std::optional<Publisher> publisher_;
  std::optional<Subscriber> subscriber_;
};

}  // namespace

std::unique_ptr<Replica> make_host_replica(int rank, std::uint64_t seed, std::uint64_t width) {
  return std::make_unique<HostReplica>(rank, seed, width);
}

}  // namespace sparsecast::test
