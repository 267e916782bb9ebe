// SPDX-License-Identifier: Apache-2.0
#pragma once

// The shape of each kernel family, and how many of its CTAs a multiprocessor holds at once, by architecture (10 * major
// + minor of the compute capability). Kernels take the CTAs for __launch_bounds__, which limits registers so that all
// are resident, and launchers for their grids. Shapes are the same on all architectures, so that code that was compiled
// for one may run on a later one: its grid is then not quite what is resident.

#include <cstdint>

namespace sparsecast::cuda {

/// Architecture that device code is compiled for.
#if defined(__CUDA_ARCH__)
inline constexpr unsigned kArchitecture = __CUDA_ARCH__ / 10;
#else
inline constexpr unsigned kArchitecture = 90;
#endif

/// Bytes of shared memory of a CTA that the system takes.
inline constexpr unsigned kSystemSharedBytes = 1024;

/// Returns a number for elements of `size` bytes: up to 2, of 4, and of 8.
constexpr unsigned by_size(unsigned size, unsigned narrow, unsigned wide, unsigned widest) {
  return size <= 2 ? narrow : size == 4 ? wide : widest;
}

/// detect. Limited by registers.
struct DetectPolicy {
  /// Vectors of 16 bytes, of each of two arrays, that a thread has in flight; over views each takes divisions as well.
  static constexpr unsigned kInFlight = 4;
  static constexpr unsigned kStridedInFlight = 2;

  unsigned ctas = 4;
  /// In the grid of a chunk whose predecessor is encoded at the same time: two CTAs of encode_runs find registers
  /// beside them. They have 96 KiB in flight, more than memory needs to be busy.
  unsigned ctas_beside_encode = 3;
};

/// encode_blocks and encode_contexts are limited by registers, encode_runs by shared memory.
struct EncodePolicy {
  /// Warps in a CTA of encode_runs.
  static constexpr unsigned run_warps(unsigned element_bytes) { return by_size(element_bytes, 4, 2, 2); }

  unsigned ctas = 3;
  unsigned run_ctas = 5;
  unsigned wide_run_ctas = 5;  ///< For elements of 4 and 8 bytes.
  unsigned context_ctas = 2;   ///< Of encode_contexts.
};

/// decode_blocks is limited by registers, decode_runs by shared memory. Decoding waits at barriers
/// often, and several resident CTAs hide each other's waits.
struct DecodePolicy {
  /// Warps in a CTA of decode_runs.
  static constexpr unsigned run_warps(unsigned element_bytes) { return by_size(element_bytes, 4, 3, 2); }
  /// Elements that a thread has in flight while it writes, one of the lanes of a warp or one of a CTA.
  static constexpr unsigned lane_in_flight(unsigned element_bytes) { return by_size(element_bytes, 4, 4, 2); }
  static constexpr unsigned cta_in_flight(unsigned element_bytes) { return by_size(element_bytes, 2, 2, 1); }

  unsigned validate_ctas = 4;
  unsigned apply_ctas = 3;
  unsigned wide_apply_ctas = 2;  ///< For elements of 4 and 8 bytes.
  unsigned run_ctas = 5;
  unsigned write_ctas = 4;    ///< Of write_entries. Limited by registers.
  unsigned context_ctas = 3;  ///< Of decode_context. Limited by registers.
};

struct Policy {
  unsigned shared_bytes = 228 * 1024;  ///< Of a multiprocessor.
  DetectPolicy detect = {};
  EncodePolicy encode = {};
  DecodePolicy decode = {};
};

/// Returns the policy for an architecture; those between follow the one before.
constexpr Policy policy_of(unsigned architecture) {
  Policy policy;
  if (architecture >= 100) {
    // With three, ptxas spills.
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
