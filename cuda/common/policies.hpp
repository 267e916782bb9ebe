// SPDX-License-Identifier: Apache-2.0
#pragma once

// How many CTAs of each kernel family a multiprocessor holds at once, by architecture (10 * major + minor of the
// compute capability). Kernels take theirs for __launch_bounds__, which limits registers so that all are resident, and
// launchers for their grids. CTAs have the same threads and shared memory on all architectures, so that code that was
// compiled for one may run on a later one: its grid is then not quite what is resident.

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

/// detect. Limited by registers.
struct DetectPolicy {
  unsigned ctas = 4;
  unsigned strided_ctas = 3;  ///< Over tables with views.
};

/// encode_blocks is limited by registers, encode_runs by shared memory.
struct EncodePolicy {
  unsigned ctas = 3;
  unsigned run_ctas = 5;
  unsigned wide_run_ctas = 5;  ///< For elements of 4 and 8 bytes.
};

/// decode_blocks is limited by registers, decode_runs by shared memory. Decoding waits at barriers
/// often, and several resident CTAs hide each other's waits.
struct DecodePolicy {
  unsigned validate_ctas = 4;
  unsigned apply_ctas = 3;
  unsigned wide_apply_ctas = 2;  ///< For elements of 4 and 8 bytes.
  unsigned run_ctas = 5;
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
