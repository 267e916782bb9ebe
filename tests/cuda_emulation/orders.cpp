// SPDX-License-Identifier: Apache-2.0
#include "cuda_emulation/orders.hpp"

#include <sys/mman.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <mutex>
#include <string>

#include "cuda_emulation/memory.hpp"
#include "cuda_emulation/reports.hpp"

namespace sparsecast::emulation::orders {
namespace {

using races::Access;

constexpr std::size_t kHost = 0;
constexpr std::size_t kGranule = 8;

/// Last access by an operation to some of the bytes of a granule.
struct Touch {
  std::uint32_t operation = 0;  ///< Its number; 0: none.
  std::uint32_t place = 0;
  std::uint8_t bytes = 0;  ///< A bit for each.
};

/// Last accesses to a few bytes. Of reads, and of atomic operations, it keeps the last two by different agents, so that
/// one of them is not the next agent.
struct Granule {
  Touch writer;
  std::array<Touch, 2> readers;
  std::array<Touch, 2> atomics;
};

struct Done {
  std::size_t agent = 0;
  std::uint32_t time = 0;
};

/// Made when it is first asked for, which may be before main().
struct History {
  std::mutex mutex;
  std::vector<Done> operations{1};  ///< Operations by number; those of the host are its actions between two calls.
  Agent host{kHost, {}};
  std::uint32_t host_operation = begin(host);
  Clock newest;  ///< The time of each agent.
  std::size_t agents = kHost;

  std::uint32_t begin(Agent& agent) {
    if (agent.clock.size() <= agent.index) agent.clock.resize(agent.index + 1);
    operations.push_back({agent.index, ++agent.clock[agent.index]});
    return static_cast<std::uint32_t>(operations.size() - 1);
  }
  /// Starts a new operation of the host, ordered after its earlier ones.
  void host_goes_on() { host_operation = begin(host); }
};

History& history() {
  static History all;
  return all;
}

thread_local Agent* acting = nullptr;  ///< Null: the host.
thread_local std::uint32_t own_operation = 0;

void join(Clock& clock, const Clock& other) {
  if (clock.size() < other.size()) clock.resize(other.size());
  for (std::size_t i = 0; i < other.size(); ++i) clock[i] = std::max(clock[i], other[i]);
}

Granule* shadow_of(std::uintptr_t offset) {
  static Granule* const shadow = [] {
    const MemoryRange range = all_memory();
    const std::size_t bytes = (range.end - range.begin) / kGranule * sizeof(Granule);
    void* const at = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (at == MAP_FAILED) std::abort();
    return static_cast<Granule*>(at);
  }();
  return shadow + offset / kGranule;
}

bool is_ordered(std::uint32_t operation, const Agent& agent) {
  const Done& done = history().operations[operation];
  return operation == 0 || done.agent == agent.index ||
         (done.agent < agent.clock.size() && agent.clock[done.agent] >= done.time);
}

std::string name_of(std::size_t agent) { return agent == kHost ? "the host" : "stream " + std::to_string(agent); }

void check(const Touch& before, const char* did, const Touch& now, const char* does, const Agent& agent) {
  if ((before.bytes & now.bytes) == 0 || is_ordered(before.operation, agent)) return;
  report({before.place, now.place}, [&] {
    return "memory is " + std::string(did) + " by " + name_of(history().operations[before.operation].agent) + " at " +
           source_of(before.place) + ", and " + does + " by " + name_of(agent.index) + " at " + source_of(now.place) +
           ", which does not wait for it";
  });
}

void replace(Touch& last, const Touch& now) {
  const std::uint8_t bytes = last.operation == now.operation ? last.bytes : 0;
  last = now;
  last.bytes |= bytes;
}

void keep(std::array<Touch, 2>& last, const Agent& agent, const Touch& now) {
  if (history().operations[last[0].operation].agent != agent.index) last[1] = last[0];
  replace(last[0], now);
}

void touch_granule(Granule& granule, const Agent& agent, Access access, const Touch& now) {
  const char* const does = access == Access::kRead ? "read" : "written";
  check(granule.writer, "written", now, does, agent);
  if (access != Access::kRead) {
    for (const Touch& reader : granule.readers) check(reader, "read", now, does, agent);
  }
  if (access != Access::kAtomic) {
    for (const Touch& atomic : granule.atomics) check(atomic, "written", now, does, agent);
  }
  switch (access) {
    case Access::kRead:
      return keep(granule.readers, agent, now);
    case Access::kAtomic:
      return keep(granule.atomics, agent, now);
    case Access::kWrite:
      return replace(granule.writer, now);
  }
}

/// Returns a bit for each byte of the granule at `offset` that [begin, end) has.
std::uint8_t bytes_in(std::uintptr_t offset, std::uintptr_t begin, std::uintptr_t end) {
  const std::uintptr_t first = std::max(begin, offset) - offset;
  const std::uintptr_t last = std::min(end, offset + kGranule) - offset;
  return static_cast<std::uint8_t>((0xFFU >> (kGranule - last)) & (0xFFU << first));
}

}  // namespace

Agent make_agent() {
  const std::lock_guard lock(history().mutex);
  return {++history().agents, {}};
}

Operation::Operation(Agent& stream) {
  History& all = history();
  all.mutex.lock();
  join(stream.clock, all.host.clock);
  all.host_goes_on();
  own_operation = all.begin(stream);
  join(all.newest, stream.clock);
  acting = &stream;
}

Operation::~Operation() {
  acting = nullptr;
  history().mutex.unlock();
}

void touch(const void* at, std::size_t bytes, Access access, const void* place) {
  static const MemoryRange range = all_memory();
  const auto address = reinterpret_cast<std::uintptr_t>(at);
  if (!range.contains(address) || bytes == 0) return;
  History& all = history();
  std::unique_lock lock(all.mutex, std::defer_lock);
  if (acting == nullptr) lock.lock();
  const Agent& agent = acting != nullptr ? *acting : all.host;
  const std::uint32_t operation = acting != nullptr ? own_operation : all.host_operation;
  const std::uintptr_t begin = address - range.begin;
  for (std::uintptr_t offset = begin / kGranule * kGranule; offset < begin + bytes; offset += kGranule) {
    touch_granule(*shadow_of(offset), agent, access,
                  {operation, offset_in_program(place), bytes_in(offset, begin, begin + bytes)});
  }
}

void record(Agent& stream, Clock& event) {
  const std::lock_guard lock(history().mutex);
  join(stream.clock, history().host.clock);
  event = stream.clock;
}

void wait(Agent& stream, const Clock& event) {
  const std::lock_guard lock(history().mutex);
  join(stream.clock, event);
}

void host_waits_for(const Agent& stream) {
  const std::lock_guard lock(history().mutex);
  join(history().host.clock, stream.clock);
  history().host_goes_on();
}

void host_waits_for(const Clock& event) {
  const std::lock_guard lock(history().mutex);
  join(history().host.clock, event);
  history().host_goes_on();
}

void host_waits_for_all() {
  const std::lock_guard lock(history().mutex);
  join(history().host.clock, history().newest);
  history().host_goes_on();
}

}  // namespace sparsecast::emulation::orders
