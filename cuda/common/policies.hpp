// SPDX-License-Identifier: Apache-2.0
#pragma once

// The shape of each kernel family, and how many of its CTAs a multiprocessor holds at once, by architecture (10 * major
// + minor of the compute capability). Kernels pass the number of CTAs to __launch_bounds__, which limits registers so
// that all are resident; launchers compute their grids from it. Shapes are the same on all architectures, so that code
// compiled for one architecture may run on a later one. Its grid then may not match the number of resident CTAs
// exactly.

#include <cstdint>

namespace sparsecast::cuda {

/// Architecture that device code is compiled for, as 10 * major + minor of the compute capability.
#if defined(__CUDA_ARCH__)
inline constexpr unsigned kArchitecture = __CUDA_ARCH__ / 10;
#else
inline constexpr unsigned kArchitecture = 90;
#endif

/// Number of bytes of shared memory that the system reserves in each CTA.
inline constexpr unsigned kSystemSharedBytes = 1024;

/// Returns one of three values by `size`, the element size in bytes: `narrow` for 1 or 2, `wide` for 4, `widest` for 8.
constexpr unsigned by_size(unsigned size, unsigned narrow, unsigned wide, unsigned widest) {
  return size <= 2 ? narrow : size == 4 ? wide : widest;
}

/// Launch sizes of detect. Registers limit its number of resident CTAs per multiprocessor.
struct DetectPolicy {
  /// Number of 16-byte vectors that a thread has in flight from each of the two arrays that it compares.
  static constexpr unsigned kInFlight = 4;
  /// Number of 16-byte vectors that a thread has in flight from each of the two arrays, in a whole tile of a strided
  /// view. It is less than kInFlight, because finding each vector in a view also costs integer divisions.
  static constexpr unsigned kStridedInFlight = 2;

  /// Resident CTAs per multiprocessor.
  unsigned ctas = 4;
  /// Resident CTAs per multiprocessor while the previous chunk is being encoded. The number leaves registers for two
  /// CTAs of encode_runs. Three CTAs have 96 KiB of loads in flight, which is enough to saturate the memory.
  unsigned ctas_beside_encode = 3;
};

/// Launch sizes of encoding. Each number of CTAs counts resident CTAs per multiprocessor. Registers limit encode_blocks
/// and encode_contexts; shared memory limits encode_runs.
struct EncodePolicy {
  /// Returns the number of warps in a CTA of encode_runs.
  static constexpr unsigned run_warps(unsigned element_bytes) { return by_size(element_bytes, 4, 2, 2); }

  /// Resident CTAs of encode_blocks per multiprocessor.
  unsigned ctas = 3;
  unsigned run_ctas = 5;
  unsigned wide_run_ctas = 5;  ///< Resident CTAs of encode_runs per multiprocessor, for elements of 4 and 8 bytes.
  unsigned context_ctas = 2;   ///< Resident CTAs of encode_contexts per multiprocessor.
};

/// Launch sizes of decoding. Each number of CTAs counts resident CTAs per multiprocessor. Registers limit
/// decode_blocks; shared memory limits decode_runs. Decoding often waits at barriers; several resident CTAs hide one
/// another's waits.
struct DecodePolicy {
  /// Returns the number of warps in a CTA of decode_runs.
  static constexpr unsigned run_warps(unsigned element_bytes) { return by_size(element_bytes, 4, 3, 2); }
  /// Returns the number of elements that a lane of a warp has in flight while it writes changes.
  static constexpr unsigned lane_in_flight(unsigned element_bytes) { return by_size(element_bytes, 4, 4, 2); }
  /// Returns the number of elements that a thread of a CTA has in flight while it writes changes.
  static constexpr unsigned cta_in_flight(unsigned element_bytes) { return by_size(element_bytes, 2, 2, 1); }

  /// Resident CTAs of decode_blocks per multiprocessor while it validates.
  unsigned validate_ctas = 4;
  /// Resident CTAs of decode_blocks per multiprocessor while it writes elements of 1 and 2 bytes.
  unsigned apply_ctas = 3;
  /// Resident CTAs of decode_blocks per multiprocessor while it writes elements of 4 and 8 bytes.
  unsigned wide_apply_ctas = 2;
  unsigned run_ctas = 5;
  unsigned write_ctas = 4;    ///< Resident CTAs of write_entries per multiprocessor, limited by registers.
  unsigned context_ctas = 3;  ///< Resident CTAs of decode_context per multiprocessor, limited by registers.
};

struct Policy {
  unsigned shared_bytes = 228 * 1024;  ///< Size in bytes of the shared memory of a multiprocessor.
  DetectPolicy detect = {};
  EncodePolicy encode = {};
  DecodePolicy decode = {};
};

/// Returns the policy for an architecture (10 * major + minor of the compute capability). An unlisted architecture has
/// the policy of the next lower one.
constexpr Policy policy_of(unsigned architecture) {
  Policy policy;
  if (architecture >= 100) {
    // With three CTAs, ptxas spills registers.
    policy.encode.ctas = 2;
    policy.decode.apply_ctas = 2;
    policy.decode.context_ctas = 2;
  } else if (architecture < 90) {
    policy.shared_bytes = 164 * 1024;
    policy.encode.run_ctas = 3;
    policy.encode.wide_run_ctas = 4;
    policy.decode.run_ctas = 4;
  }
  return policy;
}

inline constexpr Policy kPolicy = policy_of(kArchitecture);

}  // namespace sparsecast::cuda
