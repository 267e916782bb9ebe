#pragma once

// Finds what streams and the host do to device memory and pinned memory with nothing that orders it: a kernel that
// reads what a copy on another stream writes, the host that reads what it has not waited for. What orders: a stream's
// operations follow one another and what the host did before it enqueued them; an event that was recorded and waited
// for; the host's wait for a stream. All threads of the host count as one here. As with races.hpp the order in which
// the emulation does things, which is that of the calls, does not matter, and only a program that is compiled so looks.

#include <cstddef>
#include <cstdint>
#include <vector>

namespace sparsecast::emulation::orders {

/// Vector clock: for each stream, and first for the host, the time up to which its operations happened before.
using Clock = std::vector<std::uint32_t>;

/// A stream.
struct Agent {
  std::size_t index = 0;
  Clock clock;
};

Agent make_agent();

/// The host enqueues something on the stream. What this thread of the host touches while it lives, the stream does.
class Operation {
 public:
  explicit Operation(Agent& stream);
  ~Operation();
  Operation(const Operation&) = delete;
  Operation& operator=(const Operation&) = delete;
};

/// Records an access to device or pinned memory by the running operation, or by the host; other memory is ignored.
void touch(const void* at, std::size_t bytes, bool writes, const void* place);

void record(Agent& stream, Clock& event);
void wait(Agent& stream, const Clock& event);
void host_waits_for(const Agent& stream);
/// Memory is released, which waits for everything.
void host_waits_for_all();

}  // namespace sparsecast::emulation::orders
