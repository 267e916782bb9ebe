// SPDX-License-Identifier: Apache-2.0
#pragma once

// Finds data races of kernels: two threads of a grid access one byte, at least one of them writes it, and nothing
// orders them. Ordering is as in CUDA: a barrier orders the threads of a CTA (__syncthreads) or lanes of a warp
// (__syncwarp); shuffles and votes order nothing, nor does anything between CTAs; atomic operations do not race with
// each other. The order in which the emulation runs the threads does not matter. Races are reported (reports.hpp).
//
// The compiler tells what kernels read and write: a program that looks for races is compiled, but not linked, with
// -fsanitize=thread and SPARSECAST_EMULATION_RACES, and its code calls race_hooks.cpp.

#include <cstddef>
#include <cstdint>
#include <set>
#include <string>

namespace sparsecast::emulation::races {

#if defined(SPARSECAST_EMULATION_RACES)
inline constexpr bool kWatched = true;
#else
inline constexpr bool kWatched = false;
#endif

void begin_grid();
void begin_block(std::uint32_t block);
/// Attributes later accesses to this thread of the CTA, except those on its own stack.
void run_thread(unsigned thread, const std::byte* stack, std::size_t stack_bytes);
void stop_thread();

/// Records that all threads of the CTA have met at a barrier at "FILE:LINE", or the lanes `lanes` of the warp that
/// begins with thread `first`.
void order_block();
void order_block_at(const std::string& barrier);
void order_lanes(unsigned first, std::uint32_t lanes);
void order_lanes_at(const std::string& barrier, unsigned first, std::uint32_t lanes);

enum class Access : std::uint8_t { kRead, kWrite, kAtomic };

/// Returns the barriers at which kernels have met.
std::set<std::string> barriers();
/// Makes this barrier order nothing, though threads still wait there, to check that the races it prevents are found;
/// empty: none.
void doubt(const std::string& barrier);

/// Records an access of the running thread, if there is one; `place` is the address of the instruction.
void touch(const void* at, std::size_t bytes, Access access, const void* place);

/// Records that the running thread takes part in a collective of CUB with that temporary storage, which needs a barrier
/// before its next use of any kind. Accesses of the collective itself are ignored.
class Collective {
 public:
  Collective(const void* storage, std::size_t bytes);
  ~Collective();
  Collective(const Collective&) = delete;
  Collective& operator=(const Collective&) = delete;

 private:
  void claim() const;

  const void* storage_;
  std::size_t bytes_;
  const void* place_;
};

}  // namespace sparsecast::emulation::races
