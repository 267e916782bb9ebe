// SPDX-License-Identifier: Apache-2.0
#pragma once

// Finds unordered accesses of streams and the host to device memory and pinned memory: a kernel that reads the result
// of a copy on another stream, or a host that reads before it has waited. Ordered are: operations of one stream, after
// earlier actions of the host; work after an event that was recorded and waited for; the host after its wait for a
// stream. All threads of the host count as one. As with races.hpp the order in which the emulation runs, which is that
// of the calls, does not matter, and only a program compiled for it checks.

#include <cstddef>
#include <cstdint>
#include <vector>

#include "cuda_emulation/races.hpp"

namespace sparsecast::emulation::orders {

/// Vector clock: for each stream, and first for the host, the time up to which its operations happened before.
using Clock = std::vector<std::uint32_t>;

/// A stream.
struct Agent {
  std::size_t index = 0;
  Clock clock;
};

Agent make_agent();

/// Attributes the accesses of this host thread, during its lifetime, to an operation that the host enqueues on the
/// stream.
class Operation {
 public:
  explicit Operation(Agent& stream);
  ~Operation();
  Operation(const Operation&) = delete;
  Operation& operator=(const Operation&) = delete;
};

/// Records an access to device or pinned memory by the running operation, or by the host; other memory is ignored.
/// Atomic operations need no order between them.
void touch(const void* at, std::size_t bytes, races::Access access, const void* place);

void record(Agent& stream, Clock& event);
void wait(Agent& stream, const Clock& event);
void host_waits_for(const Agent& stream);
void host_waits_for(const Clock& event);
/// Records the release of memory, which waits for all work.
void host_waits_for_all();

}  // namespace sparsecast::emulation::orders
