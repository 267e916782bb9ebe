// SPDX-License-Identifier: Apache-2.0
#pragma once

// Threads of one process that meet on loopback.

#include <functional>
#include <future>
#include <string>
#include <thread>
#include <vector>

#include "sparsecast/tcp_transport.hpp"
#include "tests/support/expect_error.hpp"

namespace sparsecast::test {

inline Deadline in(std::chrono::milliseconds time) { return std::chrono::steady_clock::now() + time; }

inline RendezvousOptions meeting_options(int size, std::chrono::milliseconds timeout = std::chrono::seconds(20)) {
  RendezvousOptions options;
  options.size = size;
  options.secret = "a secret of sixteen characters or more";
  options.timeout = timeout;
  return options;
}

inline Bytes bytes_from(const std::string& text) {
  const auto bytes = std::as_bytes(std::span<const char>(text));
  return {bytes.begin(), bytes.end()};
}
inline std::string text_from(const Bytes& bytes) { return {reinterpret_cast<const char*>(bytes.data()), bytes.size()}; }

/// A port on loopback, open for rank 0.
class Meeting {
 public:
  explicit Meeting(RendezvousOptions options) : options_(std::move(options)), listener_(options_) {
    options_.port = listener_.port();
  }
  RendezvousOptions options(int rank) const {
    RendezvousOptions options = options_;
    options.rank = rank;
    return options;
  }
  std::shared_ptr<Rendezvous> meet(int rank) {
    return rank == 0 ? Rendezvous::meet(options(0), listener_) : Rendezvous::meet(options(rank));
  }
  std::uint16_t port() const { return listener_.port(); }
  RendezvousListener& listener() { return listener_; }

  /// Every rank on a thread of its own, the body with its channel. Exceptions fail the test.
  void run(const std::function<void(std::shared_ptr<Rendezvous>)>& body) {
    std::vector<std::jthread> threads;
    for (int r = 0; r < options_.size; ++r) {
      threads.emplace_back([this, r, &body] {
        try {
          body(meet(r));
        } catch (const std::exception& error) {
          ADD_FAILURE() << "rank " << r << ": " << error.what();
        }
      });
    }
  }

 private:
  RendezvousOptions options_;
  RendezvousListener listener_;
};

}  // namespace sparsecast::test
