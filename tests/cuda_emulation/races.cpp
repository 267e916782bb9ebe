// SPDX-License-Identifier: Apache-2.0
#include "cuda_emulation/races.hpp"

#include <algorithm>
#include <array>
#include <memory>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "cuda_emulation/reports.hpp"
#include "cuda_emulation/scheduler.hpp"

namespace sparsecast::emulation::races {
namespace {

constexpr unsigned kWarp = 32;
constexpr unsigned kMostThreads = 1024;
constexpr std::size_t kPageBytes = 1024;
/// Shadow memory is given back between grids when there is more of it.
constexpr std::size_t kMostPages = 4096;

/// Thread and time of an access to a byte.
struct Stamp {
  std::uint32_t grid = 0;  ///< 0: nobody has.
  std::uint32_t block = 0;
  std::uint32_t barriers = 0;  ///< Number of barriers of the CTA before the access.
  std::uint16_t thread = 0;
  std::uint16_t syncs = 0;  ///< Number of syncs of the warp of the thread since that barrier.
  std::uint32_t place = 0;  ///< Offset in the program.
};

/// Accesses to a byte: of reads and atomic operations the last two by different threads, so that one of them is not the
/// next thread.
struct Byte {
  Stamp write;
  std::array<Stamp, 2> reads;
  std::array<Stamp, 2> atomics;
};

using Page = std::array<Byte, kPageBytes>;

struct Warp {
  std::array<std::uint16_t, kWarp> syncs{};  ///< Number of syncs of each lane.
  /// after[i][j]: lane i comes after what lane j did before so many of its syncs.
  std::array<std::array<std::uint16_t, kWarp>, kWarp> after{};
};

std::unordered_map<std::uintptr_t, std::unique_ptr<Page>> pages;
std::array<std::pair<std::uintptr_t, Page*>, 256> recent_pages;
std::array<Warp, kMostThreads / kWarp> warps;
std::array<bool, kMostThreads> in_collective;
std::vector<std::pair<const void*, std::uint32_t>>
    collectives;  ///< Collectives of the CTA: storage, and `barriers` at its use.
std::set<std::string> met_barriers;
std::string doubted_barrier;
Stamp now;
const std::byte* own_stack = nullptr;
std::size_t own_stack_bytes = 0;
/// Kernels run on one thread of the host at a time; what others do is not looked at.
thread_local bool running = false;

Byte& shadow_of(std::uintptr_t at) {
  const std::uintptr_t page = at / kPageBytes;
  auto& [recent, memory] = recent_pages[page % recent_pages.size()];
  if (memory == nullptr || recent != page) {
    std::unique_ptr<Page>& kept = pages[page];
    if (!kept) kept = std::make_unique<Page>();
    recent = page;
    memory = kept.get();
  }
  return (*memory)[at % kPageBytes];
}

void drop_shadow() {
  recent_pages.fill({});
  pages.clear();
}

bool is_ordered(const Stamp& before, std::uintptr_t at) {
  if (before.grid != now.grid || (before.thread == now.thread && before.block == now.block)) return true;
  // Shared memory lies at one place for all blocks here.
  if (before.block != now.block) return is_shared(reinterpret_cast<const void*>(at));
  if (before.barriers < now.barriers) return true;
  if (before.thread / kWarp != now.thread / kWarp) return false;
  return warps[now.thread / kWarp].after[now.thread % kWarp][before.thread % kWarp] > before.syncs;
}

const char* name_of(Access access) {
  switch (access) {
    case Access::kRead:
      return "read";
    case Access::kWrite:
      return "written";
    default:
      return "used by an atomic operation";
  }
}

std::string who(const Stamp& stamp, Access access) {
  return std::string(name_of(access)) + " by thread " + std::to_string(stamp.thread) + " of block " +
         std::to_string(stamp.block) + " at " + source_of(stamp.place);
}

void check(const Stamp& before, Access earlier, std::uintptr_t at, Access access) {
  if (before.grid == 0 || is_ordered(before, at)) return;
  report({before.place, now.place},
         [&] { return "a byte is " + who(before, earlier) + ", and " + who(now, access) + ", with nothing between"; });
}

void keep(std::array<Stamp, 2>& last) {
  if (last[0].grid != now.grid || last[0].thread != now.thread || last[0].block != now.block) last[1] = last[0];
  last[0] = now;
}

void touch_byte(std::uintptr_t at, Access access) {
  Byte& byte = shadow_of(at);
  check(byte.write, Access::kWrite, at, access);
  if (access != Access::kAtomic) {
    for (const Stamp& atomic : byte.atomics) check(atomic, Access::kAtomic, at, access);
  }
  if (access != Access::kRead) {
    for (const Stamp& read : byte.reads) check(read, Access::kRead, at, access);
  }
  if (access == Access::kWrite) byte.write = now;
  if (access == Access::kRead) keep(byte.reads);
  if (access == Access::kAtomic) keep(byte.atomics);
}

}  // namespace

void begin_grid() {
  if (++now.grid == 0 || pages.size() > kMostPages) drop_shadow();
  if (now.grid == 0) now.grid = 1;
}

void begin_block(std::uint32_t block) {
  now.block = block;
  now.barriers = 0;
  warps.fill({});
  in_collective.fill(false);
  collectives.clear();
}

void run_thread(unsigned thread, const std::byte* stack, std::size_t stack_bytes) {
  now.thread = static_cast<std::uint16_t>(thread);
  now.syncs = warps[thread / kWarp].syncs[thread % kWarp];
  own_stack = stack;
  own_stack_bytes = stack_bytes;
  running = true;
}

void stop_thread() { running = false; }

void order_block() {
  ++now.barriers;
  warps.fill({});
}

void order_block_at(const std::string& barrier) {
  met_barriers.insert(barrier);
  if (barrier != doubted_barrier) order_block();
}

std::set<std::string> barriers() { return met_barriers; }
void doubt(const std::string& barrier) { doubted_barrier = barrier; }

void order_lanes_at(const std::string& barrier, unsigned first, std::uint32_t lanes) {
  met_barriers.insert(barrier);
  if (barrier != doubted_barrier) order_lanes(first, lanes);
}

void order_lanes(unsigned first, std::uint32_t lanes) {
  Warp& warp = warps[first / kWarp];
  std::array<std::uint16_t, kWarp> all{};
  for (unsigned lane = 0; lane < kWarp; ++lane) {
    if ((lanes >> lane & 1) == 0) continue;
    warp.after[lane][lane] = ++warp.syncs[lane];
    for (unsigned j = 0; j < kWarp; ++j) all[j] = std::max(all[j], warp.after[lane][j]);
  }
  for (unsigned lane = 0; lane < kWarp; ++lane) {
    if ((lanes >> lane & 1) != 0) warp.after[lane] = all;
  }
}

void touch(const void* at, std::size_t bytes, Access access, const void* place) {
  if (!running || in_collective[now.thread]) return;
  const auto* const begin = static_cast<const std::byte*>(at);
  if (begin >= own_stack && begin < own_stack + own_stack_bytes) return;
  now.place = offset_in_program(place);
  for (std::size_t i = 0; i < bytes; ++i) touch_byte(reinterpret_cast<std::uintptr_t>(begin + i), access);
}

Collective::Collective(const void* storage, std::size_t bytes)
    : storage_(storage), bytes_(bytes), place_(__builtin_return_address(0)) {
  claim();
  in_collective[now.thread] = true;
  if (now.thread != 0) return;
  const std::pair<const void*, std::uint32_t> use{storage, now.barriers};
  if (std::ranges::find(collectives, use) != collectives.end()) {
    const std::uint32_t second = offset_in_program(place_);
    report({second, second}, [second] {
      return "temporary storage is used by a second collective, without a barrier between, at " + source_of(second);
    });
  }
  collectives.push_back(use);
}

Collective::~Collective() {
  in_collective[now.thread] = false;
  claim();
}

/// Two threads do, for all: whoever else uses the storage in another way races with one of them at the least.
void Collective::claim() const {
  if (now.thread == 0 || now.thread == blockDim.x - 1) touch(storage_, bytes_, Access::kAtomic, place_);
}

}  // namespace sparsecast::emulation::races
