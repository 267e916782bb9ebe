// SPDX-License-Identifier: Apache-2.0
#pragma once

// Turns the ranks of a `context` block into positions. All threads of a CTA work together, one tile after another.
// First they read every old word once and count the elements of each class, kScanned elements to a count. Then each
// change searches for the count that its rank falls into, and for its element among the elements of that count. So each
// element costs only its class and its share of a count; only changes cost a search.
//
//   words  --count_tile-->  counts of kScanned elements  --sum_groups, sum_warps-->  counts before each thread's group
//   ranks  --find_changes-->  changes of the tile  --deal-->  positions and keys, in order of tile and class

#include "cuda/apply/context_ranks.cuh"
#include "cuda/common/context_scan.cuh"

namespace sparsecast::cuda {

/// Number of counts in a tile. Each count covers kScanned elements.
inline constexpr std::uint32_t kTileCounts = kTileElems / kScanned;
/// Number of successive counts that one thread adds up. They form the thread's group.
inline constexpr std::uint32_t kGroupCounts = kTileCounts / kThreads;
static_assert(kGroupCounts * kScanned <= 255);

/// A change whose position is known but whose value is not decoded yet: the number of its entry in the block, and the
/// key of its old word.
struct PlacedChange {
  std::uint32_t entry = 0;
  std::uint32_t key = 0;

  /// Returns `entry` and `key` packed into one word. An entry number fits into 22 bits, because a section has at most
  /// 2^22 elements.
  __device__ std::uint32_t pack() const { return entry << 8 | key; }
  __device__ static PlacedChange unpack(std::uint32_t word) { return {word >> 8, word & 0xFF}; }
};

struct PlacesShared {
  /// Number of elements of each class among each kScanned elements of the tile, in 4 bits for each class: counts[0] for
  /// classes 0 to 7, counts[1] for classes 8 to 15.
  std::uint32_t counts[2][kTileCounts];
  /// For each class and warp: the number of elements of the class in the tile before the warp's range.
  std::uint16_t warps_before[kMostClasses][kThreads / 32];
  /// For each class and thread: the number of elements of the class between the start of the warp's range and the
  /// thread's group.
  std::uint16_t before[kMostClasses][kThreads];
  /// Number of elements of each class in the tiles before the current one.
  std::uint32_t in_earlier_tiles[kMostClasses];
  std::uint32_t in_tiles[kMostClasses];  ///< Number of elements of each class up to the current tile, inclusive.
  /// For each class: the number of its first change that is not placed yet. One of the two lists is for the state
  /// before the current tile, the other for the state after it; they swap roles after each tile.
  std::uint32_t next[2][kMostClasses];
  /// Number of changes that are placed, before and after the current tile. The two numbers swap roles after each tile.
  std::uint32_t placed[2];
};

/// Finds the positions of the changes of a block from their ranks. With `kManyClasses`, the block has more than 8
/// classes.
template <class T, bool kManyClasses>
class ChangePlacer {
 public:
  /// Makes a placer for the block whose old words are `old`. On entry, `changes` holds the ranks of the block's
  /// changes; place() replaces each rank by the packed PlacedChange. `positions` receives the positions of the block's
  /// entries.
  __device__ ChangePlacer(const OldWords<T>& old, const ExponentField& field, const ContextHead& head,
                          std::uint32_t* changes, std::uint32_t* positions, PlacesShared& shared, ScanShared& scan)
      : old_(old),
        field_(field),
        classes_(field, head.classes),
        head_(head),
        changes_(changes),
        positions_(positions),
        shared_(shared),
        scan_(scan) {}

  /// Finds the positions of all changes. Returns true, to all threads, if every change has a position and the check sum
  /// of the block's old words and positions is right.
  __device__ bool place() {
    if (threadIdx.x < kMostClasses) {
      shared_.in_tiles[threadIdx.x] = 0;
      shared_.next[0][threadIdx.x] = head_.begin[threadIdx.x];
    }
    if (threadIdx.x == 0) shared_.placed[0] = 0;
    std::uint32_t turn = 0;
    for (std::uint32_t first = 0; first < old_.span; first += kTileElems, turn ^= 1) {
      count_tile(first);
      __syncthreads();
      sum_groups();
      __syncthreads();
      sum_warps(turn);
      __syncthreads();
      find_changes(turn);
      __syncthreads();
      deal(first, turn);
      __syncthreads();
    }
    const std::uint32_t check = cta_sum(scan_, sum_);
    return check == head_.check && shared_.placed[turn] == head_.begin[kMostClasses];
  }

 private:
  static constexpr std::uint32_t kWarps = kThreads / 32;
  static constexpr std::uint32_t kClasses = kManyClasses ? 16 : 8;
  static constexpr std::uint32_t kNibbles = 0x0F0F0F0FU;
  static constexpr std::uint32_t kBytes = 0x00FF00FFU;
  /// Number of counts that a thread makes in a tile.
  static constexpr std::uint32_t kCounts = kTileCounts / kThreads;
  /// Number of counts whose elements a thread loads at once.
  static constexpr std::uint32_t kInFlight = sizeof(T) <= 2 ? 4 : sizeof(T) == 4 ? 2 : 1;
  using Scanned8 = ScannedWords<T>;

  /// Counts the elements of each class in the tile whose first element is `first`, and stores the counts in
  /// shared_.counts. Adds the old words to sum_.
  __device__ void count_tile(std::uint32_t first) {
    // The lanes of a warp read adjacent memory.
    const std::uint32_t own = threadIdx.x / 32 * (32 * kCounts) + threadIdx.x % 32;
    if (old_.vectors && old_.span - first >= kTileElems) {
      const T* at = old_.data + first + own * kScanned;
      for (std::uint32_t c = 0; c < kCounts; c += kInFlight, at += 32 * kInFlight * kScanned) {
        Scanned8 scanned[kInFlight];
        SPARSECAST_UNROLL
        for (std::uint32_t e = 0; e < kInFlight; ++e) scanned[e].load(at + 32 * e * kScanned);
        SPARSECAST_UNROLL
        for (std::uint32_t e = 0; e < kInFlight; ++e) keep_count(own + 32 * (c + e), scanned[e], kScanned);
      }
      return;
    }
    for (std::uint32_t c = 0; c < kCounts; ++c) {
      const std::uint32_t begin = first + (own + 32 * c) * kScanned;
      Scanned8 scanned;
      scanned.load_any(old_, begin);
      keep_count(own + 32 * c, scanned, begin < old_.span ? old_.span - begin : 0);
    }
  }

  __device__ void keep_count(std::uint32_t number, const Scanned8& scanned, std::uint32_t elements) {
    sum_ += scanned.sum();
    const NibbleCounts<kManyClasses> counts = count_classes<kManyClasses>(scanned, classes_, elements);
    shared_.counts[0][number] = static_cast<std::uint32_t>(counts);
    if constexpr (kManyClasses) shared_.counts[1][number] = static_cast<std::uint32_t>(counts >> 32);
  }

  /// Sets shared_.before from shared_.counts, and sets shared_.warps_before to the total of each warp. sum_warps()
  /// later turns these totals into prefix sums.
  __device__ void sum_groups() {
    const std::uint32_t lane = threadIdx.x % 32;
    SPARSECAST_UNROLL
    for (std::uint32_t half = 0; half < kClasses / 8; ++half) {
      // Each word holds four counts of 8 bits: sums[0] of even classes, sums[1] of odd classes.
      std::uint32_t sums[2] = {};
      const auto* const own = reinterpret_cast<const uint4*>(shared_.counts[half] + threadIdx.x * kGroupCounts);
      SPARSECAST_UNROLL
      for (std::uint32_t v = 0; v < kGroupCounts / 4; ++v) {
        const uint4 four = own[v];
        sums[0] += (four.x & kNibbles) + (four.y & kNibbles) + (four.z & kNibbles) + (four.w & kNibbles);
        sums[1] +=
            (four.x >> 4 & kNibbles) + (four.y >> 4 & kNibbles) + (four.z >> 4 & kNibbles) + (four.w >> 4 & kNibbles);
      }
      SPARSECAST_UNROLL
      for (std::uint32_t p = 0; p < 4; ++p) {
        // `two` holds two counts of 16 bits, of classes c and c + 4; a warp has fewer than 2^16 elements.
        const std::uint32_t c = 8 * half + p % 2 + p / 2 * 2;
        const std::uint32_t two = sums[p % 2] >> 8 * (p / 2) & kBytes;
        std::uint32_t sum = two;
        SPARSECAST_UNROLL
        for (std::uint32_t distance = 1; distance < 32; distance *= 2) {
          const std::uint32_t other = __shfl_up_sync(kAllLanes, sum, distance);
          if (lane >= distance) sum += other;
        }
        shared_.before[c][threadIdx.x] = static_cast<std::uint16_t>(sum - two);
        shared_.before[c + 4][threadIdx.x] = static_cast<std::uint16_t>((sum - two) >> 16);
        if (lane == 31) {
          shared_.warps_before[c][threadIdx.x / 32] = static_cast<std::uint16_t>(sum);
          shared_.warps_before[c + 4][threadIdx.x / 32] = static_cast<std::uint16_t>(sum >> 16);
        }
      }
    }
  }

  /// Turns shared_.warps_before into prefix sums over the warps, and adds the totals of the tile to in_tiles. `turn` (0
  /// or 1) is the index in `next` and `placed` of the state before the tile; the other index is for the state after it.
  __device__ void sum_warps(std::uint32_t turn) {
    if (threadIdx.x >= kClasses * kWarps) return;
    const std::uint32_t c = threadIdx.x / kWarps;
    const std::uint32_t warp = threadIdx.x % kWarps;
    const std::uint32_t own = shared_.warps_before[c][warp];
    std::uint32_t sum = own;
    SPARSECAST_UNROLL
    for (std::uint32_t distance = 1; distance < kWarps; distance *= 2) {
      const std::uint32_t other = __shfl_up_sync(kAllLanes, sum, distance);
      if (warp >= distance) sum += other;
    }
    shared_.warps_before[c][warp] = static_cast<std::uint16_t>(sum - own);
    if (warp + 1 != kWarps) return;
    shared_.in_earlier_tiles[c] = shared_.in_tiles[c];
    shared_.in_tiles[c] += sum;
    if (c == 0) shared_.placed[turn ^ 1] = shared_.placed[turn];
  }

  /// Finds which changes lie in the tile, and stores the state after the tile in `next` and `placed`. Each warp handles
  /// one class after another.
  __device__ void find_changes(std::uint32_t turn) {
    for (std::uint32_t c = threadIdx.x / 32; c < head_.classes.count; c += kWarps) {
      const std::uint32_t begin = shared_.next[turn][c];
      const std::uint32_t end = head_.begin[c + 1];
      const std::uint32_t ranks_end = shared_.in_tiles[c];
      std::uint32_t found = 0;
      for (std::uint32_t here = kAllLanes; here == kAllLanes; found += static_cast<std::uint32_t>(__popc(here))) {
        const std::uint32_t i = begin + found + threadIdx.x % 32;
        // Ranks ascend in a class, and the changes of lower rank were placed in the tiles before.
        here = __ballot_sync(kAllLanes, i < end && changes_[i] < ranks_end ? 1 : 0);
      }
      if (threadIdx.x % 32 == 0) {
        shared_.next[turn ^ 1][c] = begin + found;
        atomicAdd(&shared_.placed[turn ^ 1], found);
      }
    }
  }

  /// Places the changes of the tile that begins at element `first`. Goes class by class, and divides the changes among
  /// the threads.
  __device__ void deal(std::uint32_t first, std::uint32_t turn) {
    const std::uint32_t entries = shared_.placed[turn];
    const std::uint32_t count = shared_.placed[turn ^ 1] - entries;
    for (std::uint32_t n = threadIdx.x; n < count; n += kThreads) {
      std::uint32_t c = 0;
      std::uint32_t i = n;
      for (;; ++c) {
        const std::uint32_t of_class = shared_.next[turn ^ 1][c] - shared_.next[turn][c];
        if (i < of_class) break;
        i -= of_class;
      }
      i += shared_.next[turn][c];
      place_one(first, c, changes_[i] - shared_.in_earlier_tiles[c], i, entries + n);
    }
  }

  /// Finds element number `rank` of class `c` in the tile that begins at element `first`. Stores the element's position
  /// in entry number `entry`, and the packed PlacedChange in place of change number `i`.
  __device__ void place_one(std::uint32_t first, std::uint32_t c, std::uint32_t rank, std::uint32_t i,
                            std::uint32_t entry) {
    std::uint32_t warp = 0;
    SPARSECAST_UNROLL
    for (std::uint32_t step = kWarps / 2; step != 0; step /= 2) {
      if (shared_.warps_before[c][warp + step] <= rank) warp += step;
    }
    rank -= shared_.warps_before[c][warp];
    std::uint32_t group = 32 * warp;
    SPARSECAST_UNROLL
    for (std::uint32_t step = 16; step != 0; step /= 2) {
      if (shared_.before[c][group + step] <= rank) group += step;
    }
    rank -= shared_.before[c][group];
    std::uint32_t number = group * kGroupCounts;
    const std::uint32_t* const counts = shared_.counts[kManyClasses ? c / 8 : 0];
    SPARSECAST_UNROLL
    for (std::uint32_t n = 1; n < kGroupCounts; ++n, ++number) {  // The last count needs no test.
      const std::uint32_t count = counts[number] >> 4 * (c % 8) & 15;
      if (rank < count) break;
      rank -= count;
    }
    Scanned8 scanned;
    const std::uint32_t begin = first + number * kScanned;
    if (old_.vectors && old_.span - begin >= kScanned) {
      scanned.load(old_.data + begin);
    } else {
      scanned.load_any(old_, begin);
    }
    std::uint32_t bits = elements_of_class(scanned, classes_, 4 * c);
    for (; rank != 0; --rank) bits &= bits - 1;
    std::uint32_t position = begin + static_cast<std::uint32_t>(__ffs(static_cast<int>(bits))) - 1;
    // If somebody writes the words at the same time, the check fails later; until then no position may leave the block.
    if (bits == 0 || position >= old_.span) position = begin;
    changes_[i] = PlacedChange{entry, key_of(old_.at(position), field_)}.pack();
    positions_[entry] = position;
    sum_ += kPositionCheckFactor * position;
  }

  const OldWords<T> old_;
  const ExponentField field_;
  const PackedClasses classes_;
  const ContextHead& head_;
  std::uint32_t* const changes_;
  std::uint32_t* const positions_;
  PlacesShared& shared_;
  ScanShared& scan_;
  std::uint32_t sum_ = 0;  ///< This thread's part of the check sum.
};

}  // namespace sparsecast::cuda
