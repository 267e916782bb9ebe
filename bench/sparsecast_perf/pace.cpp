// SPDX-License-Identifier: Apache-2.0
#include "sparsecast_perf/pace.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <thread>

namespace sparsecast::perf {
namespace {

/// A sleep ends this much too late at most, on a machine with an idle core.
constexpr std::chrono::microseconds kSpin{150};

std::uint64_t bytes_of(const std::vector<Bytes>& records) {
  std::uint64_t bytes = 0;
  for (const Bytes& record : records) bytes += record.size();
  return bytes;
}

/// Runs `send`, which takes until the link has passed `bytes` as well.
template <class Send>
void pass(PacedLink& link, std::uint64_t bytes, Payment payment, Deadline deadline, const Send& send) {
  const Deadline passed = link.take(bytes);
  if (payment == Payment::kBefore) PacedLink::wait(passed, deadline);
  send();
  PacedLink::wait(passed, deadline);
}

/// Paces what this rank is the source of; as a receiver it has nothing to pay.
class PacedTransport final : public Transport {
 public:
  PacedTransport(Transport& transport, std::shared_ptr<PacedLink> link, Payment payment)
      : transport_(transport), link_(std::move(link)), payment_(payment) {}
  PacedTransport(std::unique_ptr<Transport> transport, std::shared_ptr<PacedLink> link, Payment payment)
      : owned_(std::move(transport)), transport_(*owned_), link_(std::move(link)), payment_(payment) {}

  void broadcast(std::vector<Bytes>& records, int source, Deadline deadline) override {
    if (rank() != source) return transport_.broadcast(records, source, deadline);
    pass(*link_, bytes_of(records), payment_, deadline, [&] { transport_.broadcast(records, source, deadline); });
  }
  ControlChannel& control() const noexcept override { return transport_.control(); }

 private:
  std::unique_ptr<Transport> owned_;  ///< Null where somebody else owns it.
  Transport& transport_;
  std::shared_ptr<PacedLink> link_;
  Payment payment_;
};

class PacedWire final : public Wire {
 public:
  PacedWire(std::unique_ptr<Wire> wire, double gigabits_per_second, bool publishes,
            std::unique_ptr<MemoryBroadcast> dense)
      : wire_(std::move(wire)),
        dense_(std::move(dense)),
        link_(std::make_shared<PacedLink>(gigabits_per_second)),
        transport_(wire_->transport(), link_, Payment::kBefore),
        publishes_(publishes) {}

  void start_timing() noexcept override { timing_ = true; }
  Transport& transport() noexcept override {
    if (timing_) return transport_;
    return wire_->transport();
  }
  void broadcast(std::vector<Bytes>& records, Deadline deadline) override {
    if (!timing_ || !publishes_) return carry(records, deadline);
    pass(*link_, bytes_of(records), Payment::kAlongside, deadline, [&] { carry(records, deadline); });
  }
  std::vector<std::string> libraries() const override { return wire_->libraries(); }
  const char* dense_call() const noexcept override {
    return dense_ ? "a copy through shared memory, but no sooner than over the link" : wire_->dense_call();
  }

 private:
  void carry(std::vector<Bytes>& records, Deadline deadline) {
    if (!dense_) return wire_->broadcast(records, deadline);
    for (Bytes& record : records) dense_->broadcast(record, deadline);
  }

  std::unique_ptr<Wire> wire_;
  std::unique_ptr<MemoryBroadcast> dense_;
  std::shared_ptr<PacedLink> link_;
  PacedTransport transport_;
  bool publishes_;
  bool timing_ = false;
};

}  // namespace

TokenBucket::TokenBucket(double bytes_per_second, double burst_bytes, Clock::time_point now)
    : bytes_per_second_(bytes_per_second), burst_bytes_(burst_bytes), tokens_(burst_bytes), counted_(now) {
  if (!(bytes_per_second > 0) || !(burst_bytes >= 0)) {
    throw Error(ErrorCode::kUsage, "a link needs a positive rate, and a burst that is not negative");
  }
}

TokenBucket::Clock::time_point TokenBucket::take(std::uint64_t bytes, Clock::time_point now) {
  const double gained = std::chrono::duration<double>(now - counted_).count() * bytes_per_second_;
  tokens_ = std::min(burst_bytes_, tokens_ + gained) - static_cast<double>(bytes);
  counted_ = now;
  if (tokens_ >= 0) return now;
  return now + std::chrono::ceil<Clock::duration>(std::chrono::duration<double>(-tokens_ / bytes_per_second_));
}

PacedLink::PacedLink(double gigabits_per_second)
    : bucket_(gigabits_per_second * 1e9 / 8, kBurstBytes, TokenBucket::Clock::now()) {}

Deadline PacedLink::take(std::uint64_t bytes) {
  const std::lock_guard lock(mutex_);
  return bucket_.take(bytes, TokenBucket::Clock::now());
}

void PacedLink::wait(Deadline passed, Deadline deadline) {
  const auto now = TokenBucket::Clock::now();
  if (passed <= now) return;
  if (passed > deadline) {
    const double seconds = std::chrono::duration<double>(passed - now).count();
    throw Error(ErrorCode::kTimeout,
                fmt::format("the paced link needs {:.1f} s for what it has to carry, which is more than the timeout "
                            "leaves; --timeout and --link-gbps set them",
                            seconds));
  }
  std::this_thread::sleep_until(passed - kSpin);
  while (TokenBucket::Clock::now() < passed) {
  }
}

std::unique_ptr<Transport> make_paced_transport(std::unique_ptr<Transport> transport, std::shared_ptr<PacedLink> link,
                                                Payment payment) {
  return std::make_unique<PacedTransport>(std::move(transport), std::move(link), payment);
}

GroupOpener paced_groups(GroupOpener open, std::shared_ptr<PacedLink> link, Payment payment) {
  return [open = std::move(open), link = std::move(link), payment](ControlChannel& world, const FanoutPlan& plan,
                                                                   Deadline deadline) {
    std::vector<std::unique_ptr<Transport>> groups = open(world, plan, deadline);
    for (std::unique_ptr<Transport>& group : groups) {
      if (group) group = make_paced_transport(std::move(group), link, payment);
    }
    return groups;
  };
}

std::unique_ptr<Wire> make_paced_wire(std::unique_ptr<Wire> wire, double gigabits_per_second, bool publishes,
                                      std::unique_ptr<MemoryBroadcast> dense) {
  return std::make_unique<PacedWire>(std::move(wire), gigabits_per_second, publishes, std::move(dense));
}

}  // namespace sparsecast::perf
