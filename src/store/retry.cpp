// SPDX-License-Identifier: Apache-2.0
#include "store/retry.hpp"

#include <algorithm>
#include <thread>

namespace sparsecast {
namespace {

using std::chrono::milliseconds;

constexpr milliseconds kFirstWait{100};
constexpr milliseconds kLongestWait{5'000};

}  // namespace

Retry::Retry(milliseconds deadline)
    : begin_(std::chrono::steady_clock::now()), deadline_(begin_ + deadline), jitter_(std::random_device{}()) {}

milliseconds Retry::elapsed() const {
  return std::chrono::duration_cast<milliseconds>(std::chrono::steady_clock::now() - begin_);
}

bool Retry::again() {
  const milliseconds ceiling = std::min(kLongestWait, kFirstWait * (1 << std::min(attempts_ - 1, 10)));
  // Between half and all of it: many that were refused together come back apart, and none at once.
  const milliseconds wait(
      std::uniform_int_distribution<milliseconds::rep>(ceiling.count() / 2, ceiling.count())(jitter_));
  if (std::chrono::steady_clock::now() + wait >= deadline_) return false;
  std::this_thread::sleep_for(wait);
  ++attempts_;
  return true;
}

}  // namespace sparsecast
