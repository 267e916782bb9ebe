// SPDX-License-Identifier: Apache-2.0

// Bytes that sharded syncs between hosts take from the heap, all ranks together. This file counts for the whole
// program; sanitizers have allocators of their own, and there the tests are skipped.

#include <gtest/gtest.h>
#include <malloc.h>

#include <atomic>
#include <cstdlib>
#include <iostream>
#include <new>

#include "codec/block.hpp"
#include "sparsecast/sharded.hpp"
#include "support/many_routes.hpp"
#include "transport/tcp/meeting.hpp"

#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)

namespace {

std::atomic<std::int64_t> heap_bytes{0};
std::atomic<std::int64_t> most_heap_bytes{0};

void* count(void* at) {
  if (at == nullptr) throw std::bad_alloc();
  const auto bytes = static_cast<std::int64_t>(malloc_usable_size(at));
  const std::int64_t now = heap_bytes.fetch_add(bytes, std::memory_order_relaxed) + bytes;
  std::int64_t most = most_heap_bytes.load(std::memory_order_relaxed);
  while (now > most && !most_heap_bytes.compare_exchange_weak(most, now, std::memory_order_relaxed)) {
  }
  return at;
}

void release(void* at) noexcept {
  if (at != nullptr) heap_bytes.fetch_sub(static_cast<std::int64_t>(malloc_usable_size(at)), std::memory_order_relaxed);
  std::free(at);
}

}  // namespace

// What is not replaced here calls one of these.
void* operator new(std::size_t bytes) { return count(std::malloc(bytes == 0 ? 1 : bytes)); }
void* operator new(std::size_t bytes, std::align_val_t alignment) {
  const auto multiple = static_cast<std::size_t>(alignment);
  return count(std::aligned_alloc(multiple, (bytes + multiple - 1) / multiple * multiple));
}
void operator delete(void* at) noexcept { release(at); }
void operator delete(void* at, std::size_t) noexcept { release(at); }
void operator delete(void* at, std::align_val_t) noexcept { release(at); }
void operator delete(void* at, std::size_t, std::align_val_t) noexcept { release(at); }

namespace sparsecast::test {
namespace {

using namespace std::chrono_literals;

/// Many ranks and routes take their time on a machine that is busy.
constexpr std::chrono::milliseconds kPatience = 300s;

/// Of all ranks, beyond their weights.
struct HeldOnHosts {
  std::int64_t built = 0;  ///< After regroup().
  std::int64_t most = 0;   ///< During syncs.
  std::int64_t after = 0;
  std::int64_t delta = 0;  ///< Bytes of the largest delta.
};

HeldOnHosts held_on_hosts(const ManyRoutes& routes) {
  HeldOnHosts held;
  Meeting meeting(meeting_options(routes.ranks(), kPatience));
  meeting.run([&](const std::shared_ptr<Rendezvous>& channel) {
    const int r = channel->rank();
    const std::shared_ptr<const Layout>& layout = routes.layouts[static_cast<std::size_t>(r)];
    LocalStorage weights = routes.weights.make(*layout, 0, 0);
    const auto all_are_here = [&] { channel->all_gather({}, in(kPatience)); };
    const auto run = [&](auto& end) {
      end.regroup(channel, open_control_groups(), kPatience);
      all_are_here();
      if (r == 0) held.built += heap_bytes;
      for (std::uint64_t step = 1; step <= 3; ++step) {
        if (r == 0) routes.weights.train(*layout, 0, step, weights);
        all_are_here();
        if (r == 0 && step == 1) most_heap_bytes = heap_bytes.load();
        all_are_here();
        const ShardedReport report = end.sync(kPatience);
        if (r == 0) held.delta = std::max(held.delta, static_cast<std::int64_t>(report.sent_bytes));
      }
      all_are_here();
      if (r == 0) held.after += heap_bytes;
      if (r == 0) held.most += most_heap_bytes;
      all_are_here();
    };
    all_are_here();
    if (r == 0) held.built = held.most = held.after = -heap_bytes;
    all_are_here();
    if (r == 0) {
      ShardedPublisher publisher(layout, 0, refs_of(*layout, 0, weights), ShardedOptions{});
      run(publisher);
    } else {
      ShardedSubscriber subscriber("engine " + std::to_string(r), layout, 0, refs_of(*layout, 0, weights),
                                   ShardedOptions{});
      run(subscriber);
    }
    EXPECT_EQ(routes.weights.count_wrong(*layout, 0, 3, weights), 0U);
  });
  return held;
}

TEST(HostMemory, IsThatOfTheFormulaWhateverTheNumberOfRoutes) {
  if (!rendezvous_available()) GTEST_SKIP() << "the ranks meet over TCP; built without libsodium";
  constexpr std::int64_t kElements = std::int64_t{2} * kSectionElems;
  constexpr std::int64_t kBytes = 2 * kElements;
  for (const std::int64_t count : {1, 4, 16, 64}) {
    const ManyRoutes routes(static_cast<std::uint32_t>(count), kElements);
    const std::int64_t ranks = routes.ranks();
    const HeldOnHosts held = held_on_hosts(routes);
    std::cout << count << " routes, " << ranks << " ranks: built " << held.built << ", in syncs " << held.most
              << ", after " << held.after << " bytes of the heap for " << kBytes << " of weights, delta " << held.delta
              << '\n';
    // One snapshot; every rank has the plan, which describes every route.
    EXPECT_GE(held.built, kBytes);
    EXPECT_LE(held.built, kBytes + ranks * (16384 + 8192 * count)) << count;
    // The trainer codes a section at a time, into a frame with room for two bits an element.
    const std::int64_t section = std::min(std::int64_t{kSectionElems}, kElements / count) * 2;
    EXPECT_LE(held.most, held.built + section + kElements / 4 + (2 * ranks + 4) * held.delta + (1 << 20)) << count;
    EXPECT_LE(held.after, held.built + 2 * ranks * held.delta) << count;
  }
}

}  // namespace
}  // namespace sparsecast::test

#endif
