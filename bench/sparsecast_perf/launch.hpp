// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "sparsecast/tcp_transport.hpp"

namespace sparsecast::perf {

/// Where a rank meets the others.
struct Place {
  int rank = 0;
  int size = 0;
  std::string host;
  std::uint16_t port = 0;
  std::string secret;
  std::unique_ptr<RendezvousListener> listener;  ///< Rank 0 of a run that was forked here; null otherwise.
};

/// Forks `ranks` processes that will meet on the loopback interface, with a secret that only their memory holds. In
/// each of them it returns its place; in the parent nothing, when all of them have ended, with `exit_code` to end with:
///   0    every rank ended with 0
///   1    every rank ended with 0 or 1
///   3    a rank was ended by a signal, ended with another code, or the limit passed; a line on stderr says which
///   128 + the signal that asked this process to end
/// When a rank dies, the others have a moment to notice and say so; then they are killed. No rank outlives the parent.
/// To be called with a single thread and before CUDA is touched. Throws Error{kIo}.
std::optional<Place> launch(int ranks, std::chrono::milliseconds limit, int& exit_code);

/// 256 random bits in hexadecimal. Throws Error{kIo}.
std::string fresh_secret();

}  // namespace sparsecast::perf
