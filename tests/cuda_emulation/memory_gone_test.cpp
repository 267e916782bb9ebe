// SPDX-License-Identifier: Apache-2.0

// Live tensors whose memory was taken away under a subscriber, as an engine that sleeps does: what would touch it is
// refused by the tensor's name, and goes on once the memory is back.

#include <gtest/gtest.h>

#include <cstring>
#include <memory>
#include <optional>

#include "cuda/device_access.hpp"
#include "sparsecast/publisher.hpp"
#include "sparsecast/subscriber.hpp"
#include "support/detectors.hpp"
#include "support/expect_error.hpp"
#include "support/oracle.hpp"

namespace sparsecast::test {
namespace {

constexpr std::size_t kElements = 500;
/// Far enough apart to be mapped one without the other.
constexpr std::size_t kApart = std::size_t{4} << 20;

class MemoryGone : public testing::Test {
 protected:
  MemoryGone()
      : table_(std::make_shared<const TensorTable>(
            TensorTable({{"a", DType::kBF16, {kElements}}, {"b", DType::kF32, {kElements}}}))),
        memory_(allocate_shared(kApart + 4 * kElements)),
        state_({Bytes(2 * kElements), Bytes(4 * kElements)}) {
    for (std::size_t t = 0; t < 2; ++t) {
      std::memcpy(at(t), state_[t].data(), state_[t].size());
      refs_.push_back(ref_to((*table_)[t], at(t), 0));
    }
    SubscriberOptions options;
    subscriber_.emplace(table_, refs_, options, DeviceOptions{});
  }
  ~MemoryGone() override { give_back(); }

  std::byte* at(std::size_t tensor) const { return memory_.get() + tensor * kApart; }
  void take_away(std::size_t tensor) { emulation::take_away(at(tensor), state_[tensor].size()); }
  void give_back() { emulation::take_away(nullptr, 0); }
  void change() {
    for (Bytes& tensor : state_) {
      for (std::size_t i = 0; i < tensor.size(); i += 40) tensor[i] ^= std::byte{1};
    }
  }
  void expect_holds(const TensorState& state) {
    for (std::size_t t = 0; t < 2; ++t) EXPECT_EQ(std::memcmp(at(t), state[t].data(), state[t].size()), 0);
  }

  std::shared_ptr<const TensorTable> table_;
  SharedBytes memory_;
  TensorState state_;
  std::vector<TensorRef> refs_;
  std::optional<Subscriber> subscriber_;
};

TEST_F(MemoryGone, IsNamedByAnApplyThatCanBeRepeated) {
  for (const std::size_t tensor : {0, 1}) {
    Publisher publisher(table_, host_snapshot(*table_, views(state_)), {});
    const TensorState before = state_;
    change();
    subscriber_->stage(publisher.publish());
    take_away(tensor);
    const char* const name = tensor == 0 ? "tensor 'a'" : "tensor 'b'";
    expect_error(ErrorCode::kUsage, [&] { subscriber_->apply(); }, {name, "its memory is gone"});
    expect_error(ErrorCode::kUsage, [&] { subscriber_->audit(); }, {name});
    give_back();
    expect_holds(before);
    subscriber_->apply();
    expect_holds(state_);
    subscriber_.emplace(table_, refs_, SubscriberOptions{}, DeviceOptions{});
  }
}

TEST_F(MemoryGone, IsNamedByTheStageOfADeltaThatIsReadAgainstIt) {
  PublisherOptions options;
  options.encode.positions = PositionMode::kContext;
  Publisher publisher(table_, host_snapshot(*table_, views(state_)), options);
  change();
  const Delta& delta = publisher.publish();
  take_away(1);
  expect_error(ErrorCode::kUsage, [&] { subscriber_->stage(delta); }, {"tensor 'b'"});
  give_back();
  subscriber_->stage(delta);
  subscriber_->apply();
  expect_holds(state_);
}

}  // namespace
}  // namespace sparsecast::test
