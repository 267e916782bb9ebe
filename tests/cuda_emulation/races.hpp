#pragma once

// Finds data races of kernels: two threads of a grid touch one byte, at least one of them to write it, and nothing
// orders them. What orders, as CUDA has it: a barrier orders the threads of a block (__syncthreads) or lanes of a warp
// (__syncwarp); shuffles and votes order nothing, nor does anything between blocks; atomic operations do not race with
// each other. In which order the emulation runs the threads does not matter. Races are reported (reports.hpp).
//
// The compiler says what kernels read and write: a program that looks for races is compiled, but not linked, with
// -fsanitize=thread and SPARSECAST_EMULATION_RACES, and race_hooks.cpp is what its code calls.

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

/// All threads of the block have met, at a barrier at "FILE:LINE"; the lanes of `lanes` of the warp that begins with
/// thread `first`.
void order_block();
void order_block_at(const std::string& barrier);
void order_lanes(unsigned first, std::uint32_t lanes);

enum class Access : std::uint8_t { kRead, kWrite, kAtomic };

/// Those that kernels have met at.
std::set<std::string> barriers();
/// Makes this barrier order nothing, though threads still wait there, to check that the races it prevents are found;
/// empty: none.
void doubt(const std::string& barrier);

/// Records an access of the running thread, if there is one; `place` is the address of the instruction.
void touch(const void* at, std::size_t bytes, Access access, const void* place);

/// The running thread takes part in a collective of CUB with that temporary storage, which needs a barrier before its
/// next use of any kind. Of the collective itself nothing is looked at.
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
