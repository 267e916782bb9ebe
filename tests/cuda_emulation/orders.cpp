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

constexpr std::size_t kHost = 0;
constexpr std::size_t kGranule = 8;

/// Last accesses to a few bytes. Of reads it keeps the last two by different agents, so that one of them is not the
/// next agent.
struct Granule {
  std::uint32_t writer = 0;  ///< Number of an operation; 0: nobody.
  std::array<std::uint32_t, 2> readers{};
  std::uint32_t write_place = 0;
  std::uint32_t read_place = 0;
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

void check(std::uint32_t before, std::uint32_t place_before, const char* did, const Agent& agent, const char* does,
           std::uint32_t place) {
  if (is_ordered(before, agent)) return;
  report({place_before, place}, [&] {
    return "memory is " + std::string(did) + " by " + name_of(history().operations[before].agent) + " at " +
           source_of(place_before) + ", and " + does + " by " + name_of(agent.index) + " at " + source_of(place) +
           ", which does not wait for it";
  });
}

void touch_granule(Granule& granule, const Agent& agent, std::uint32_t operation, bool writes, std::uint32_t place) {
  const char* const does = writes ? "written" : "read";
  check(granule.writer, granule.write_place, "written", agent, does, place);
  if (writes) {
    for (const std::uint32_t reader : granule.readers) check(reader, granule.read_place, "read", agent, does, place);
    granule.writer = operation;
    granule.write_place = place;
    return;
  }
  if (history().operations[granule.readers[0]].agent != agent.index) granule.readers[1] = granule.readers[0];
  granule.readers[0] = operation;
  granule.read_place = place;
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

void touch(const void* at, std::size_t bytes, bool writes, const void* place) {
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
    touch_granule(*shadow_of(offset), agent, operation, writes, offset_in_program(place));
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
