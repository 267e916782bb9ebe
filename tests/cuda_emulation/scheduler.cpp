// SPDX-License-Identifier: Apache-2.0
#include "cuda_emulation/scheduler.hpp"

#include "cuda_emulation/races.hpp"
#include "cuda_emulation/reports.hpp"
#include "cuda_emulation/runtime.hpp"

#include <setjmp.h>
#include <ucontext.h>

#include <algorithm>
#include <cstring>
#include <exception>
#include <memory>
#include <mutex>
#include <numeric>
#include <string>
#include <vector>

namespace sparsecast::emulation {
namespace {

constexpr std::size_t kStackBytes = std::size_t{1} << 18;
constexpr unsigned kWarp = 32;

enum class State { kReady, kAtBlockBarrier, kAtWarpBarrier, kDone };

/// A place to go on from. swapcontext() asks the system to exchange signal masks each time, which takes longer than
/// most fibers run, so that it only enters a fiber; jumps between started ones leave the masks alone. The sanitizers
/// take a jump to another stack for one that unwinds its own.
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr bool kJumps = false;
#else
constexpr bool kJumps = true;
#endif
struct Place {
  ucontext_t context;
  jmp_buf jump;
  bool started = false;  ///< `jump` is set.
};

/// Goes on at `to`; returns when something goes on at `from`.
void go(Place& from, Place& to) {
  if constexpr (!kJumps) {
    swapcontext(&from.context, &to.context);
  } else if (_setjmp(from.jump) == 0) {
    from.started = true;
    if (to.started) _longjmp(to.jump, 1);
    setcontext(&to.context);
  }
}

struct Fiber {
  Place place;
  std::unique_ptr<std::byte[]> stack;
  State state = State::kDone;
  std::uint32_t lanes = 0;  ///< At a warp barrier: the set that it waits for.
  Order order = Order::kNothing;
  std::source_location where;
  std::uint64_t put = 0;
  std::uint64_t shown = 0;  ///< `put` at the last barrier passed.
};

struct Block {
  Place scheduler;
  std::vector<std::unique_ptr<Fiber>> fibers;
  unsigned threads = 0;
  unsigned running = 0;
  const std::function<void()>* kernel = nullptr;
  std::exception_ptr failure;
  std::uint64_t random = 0;
  bool shuffled = false;
  bool active = false;
};

thread_local Block block;

std::vector<std::pair<void*, std::size_t>>& shared_variables() {
  static std::vector<std::pair<void*, std::size_t>> variables;
  return variables;
}

/// SplitMix64.
std::uint64_t next_random() {
  std::uint64_t z = block.random += 0x9E3779B97F4A7C15U;
  z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9U;
  z = (z ^ (z >> 27)) * 0x94D049BB133111EBU;
  return z ^ (z >> 31);
}

std::string describe(const Fiber& fiber) {
  // From the folder of the kernels on: a compiler's cache may have given objects of one program different paths.
  const std::string file = fiber.where.file_name();
  const std::size_t folder = file.rfind("/cuda/");
  return (folder == std::string::npos ? file : file.substr(folder + 1)) + ":" + std::to_string(fiber.where.line());
}

void switch_to_scheduler(Fiber& fiber) { go(fiber.place, block.scheduler); }

void run_fiber() {
  Fiber& fiber = *block.fibers[block.running];
  try {
    (*block.kernel)();
  } catch (...) {
    if (!block.failure) block.failure = std::current_exception();
  }
  fiber.state = State::kDone;
  switch_to_scheduler(fiber);  // Never resumed.
}

void wait(State state, std::uint32_t lanes, Order order, const std::source_location& where) {
  if (!block.active) throw EmulationError("a barrier outside of a kernel");
  Fiber& fiber = *block.fibers[block.running];
  fiber.state = state;
  fiber.lanes = lanes;
  fiber.order = order;
  fiber.where = where;
  switch_to_scheduler(fiber);
}

/// Only called when no thread can run: so whatever a thread showed before was read by all who may read it.
void release(Fiber& fiber) {
  fiber.state = State::kReady;
  fiber.shown = fiber.put;
}

void start_fibers() {
  while (block.fibers.size() < block.threads) {
    block.fibers.push_back(std::make_unique<Fiber>());
    block.fibers.back()->stack = std::make_unique_for_overwrite<std::byte[]>(kStackBytes);
  }
  for (unsigned t = 0; t < block.threads; ++t) {
    Fiber& fiber = *block.fibers[t];
    ucontext_t& context = fiber.place.context;
    getcontext(&context);
    context.uc_stack.ss_sp = fiber.stack.get();
    context.uc_stack.ss_size = kStackBytes;
    context.uc_link = nullptr;
    makecontext(&context, run_fiber, 0);
    fiber.place.started = false;
    fiber.state = State::kReady;
  }
}

void run_ready(std::vector<unsigned>& ready) {
  if (block.shuffled) {
    for (std::size_t i = ready.size(); i > 1; --i) std::swap(ready[i - 1], ready[next_random() % i]);
  }
  for (const unsigned t : ready) {
    block.running = t;
    threadIdx = {t, 0, 0};
    if constexpr (races::kWatched) races::run_thread(t, block.fibers[t]->stack.get(), kStackBytes);
    go(block.scheduler, block.fibers[t]->place);
    if constexpr (races::kWatched) races::stop_thread();
    if (block.failure) std::rethrow_exception(block.failure);
  }
}

/// Frees the lanes of each warp whose whole set has come.
bool release_warps() {
  bool released = false;
  for (unsigned base = 0; base < block.threads; base += kWarp) {
    for (unsigned t = base; t < std::min(base + kWarp, block.threads); ++t) {
      const Fiber& first = *block.fibers[t];
      if (first.state != State::kAtWarpBarrier) continue;
      const std::uint32_t lanes = first.lanes;
      if ((lanes >> (t - base) & 1) == 0) throw EmulationError("a lane is not in its own set at " + describe(first));
      bool complete = true;
      for (unsigned lane = 0; lane < kWarp; ++lane) {
        if ((lanes >> lane & 1) == 0) continue;
        if (base + lane >= block.threads) throw EmulationError("a set names absent lanes at " + describe(first));
        const Fiber& other = *block.fibers[base + lane];
        complete = complete && other.state == State::kAtWarpBarrier && other.lanes == lanes &&
                   other.where.line() == first.where.line();
      }
      if (!complete) continue;
      if (races::kWatched && first.order == Order::kMemory) races::order_lanes_at(describe(first), base, lanes);
      for (unsigned lane = 0; lane < kWarp; ++lane) {
        if ((lanes >> lane & 1) != 0) release(*block.fibers[base + lane]);
      }
      released = true;
    }
  }
  return released;
}

void release_block() {
  const Fiber& first = *block.fibers[0];
  for (unsigned t = 0; t < block.threads; ++t) {
    const Fiber& fiber = *block.fibers[t];
    if (fiber.state == State::kDone) {
      throw EmulationError("thread " + std::to_string(t) + " ended while others wait at a barrier");
    }
    if (fiber.state == State::kAtWarpBarrier) {
      throw EmulationError("thread " + std::to_string(t) + " waits for lanes that do not come at " + describe(fiber));
    }
    if (fiber.where.line() != first.where.line() ||
        std::strcmp(fiber.where.file_name(), first.where.file_name()) != 0) {
      throw EmulationError("threads wait at different barriers: " + describe(first) + " and " + describe(fiber));
    }
  }
  if (races::kWatched && first.order == Order::kMemory) races::order_block_at(describe(first));
  if (races::kWatched && first.order == Order::kVote) races::order_block();
  for (unsigned t = 0; t < block.threads; ++t) release(*block.fibers[t]);
}

void run_block() {
  for (const auto& [at, bytes] : shared_variables()) {
    const std::uint64_t noise = next_random();
    auto* memory = static_cast<std::byte*>(at);
    for (std::size_t i = 0; i < bytes; ++i) memory[i] = static_cast<std::byte>(noise >> (i % 8 * 8));
  }
  if constexpr (races::kWatched) races::begin_block(blockIdx.x);
  start_fibers();
  std::vector<unsigned> ready;
  for (;;) {
    ready.clear();
    bool done = true;
    for (unsigned t = 0; t < block.threads; ++t) {
      done = done && block.fibers[t]->state == State::kDone;
      if (block.fibers[t]->state == State::kReady) ready.push_back(t);
    }
    if (done) return;
    if (!ready.empty()) {
      run_ready(ready);
    } else if (!release_warps()) {
      release_block();
    }
  }
}

}  // namespace

void set_order(std::uint64_t seed) {
  block.random = seed;
  block.shuffled = seed != 0;
}

void run_grid(CUstream_st* stream, unsigned blocks, unsigned threads, const std::function<void()>& kernel) {
  if (blocks == 0 || threads == 0 || threads > 1024) throw EmulationError("an impossible grid");
  if (block.active) throw EmulationError("a launch from within a kernel");
  finish_copies();
  const OnStream on_stream(stream);
  // Kernels' shared variables are static: threads that launch take turns.
  static std::mutex turn;
  const std::lock_guard lock(turn);
  block.threads = threads;
  block.kernel = &kernel;
  block.failure = nullptr;
  gridDim = {blocks, 1, 1};
  blockDim = {threads, 1, 1};
  std::vector<unsigned> order(blocks);
  std::iota(order.begin(), order.end(), 0U);
  if (block.shuffled) {
    for (std::size_t i = order.size(); i > 1; --i) std::swap(order[i - 1], order[next_random() % i]);
  }
  struct Active {
    Active() { block.active = true; }
    ~Active() { block.active = false; }
  } active;
  if constexpr (races::kWatched) races::begin_grid();
  for (const unsigned index : order) {
    blockIdx = {index, 0, 0};
    run_block();
  }
}

void block_barrier(Order order, const std::source_location& where) { wait(State::kAtBlockBarrier, 0, order, where); }

void warp_barrier(std::uint32_t lanes, Order order, const std::source_location& where) {
  wait(State::kAtWarpBarrier, lanes, order, where);
}

void put_value(std::uint64_t value) { block.fibers[block.running]->put = value; }

std::uint64_t value_of(unsigned thread) { return block.fibers[thread]->shown; }

SharedMemory::SharedMemory(void* at, std::size_t bytes) {
  shared_variables().emplace_back(at, bytes);
  const Unwatched noise;
  std::memset(at, 0xA5, bytes);
}

bool is_shared(const void* at) {
  const auto* const byte = static_cast<const std::byte*>(at);
  return std::ranges::any_of(shared_variables(), [byte](const auto& variable) {
    const auto* const begin = static_cast<const std::byte*>(variable.first);
    return byte >= begin && byte < begin + variable.second;
  });
}

}  // namespace sparsecast::emulation
