// Compiles the arithmetic that host and device share (codec_common.hpp, digest_common.hpp) as device code, so that a
// change that only g++ accepts is noticed at once. Reads 2 x 2 bytes and writes 2 + 1 + 16 bytes an element; it is a
// check of the shared functions, not part of any transfer.

#include "codec/codec_common.hpp"
#include "device_api.hpp"
#include "core/digest_common.hpp"

namespace sparsecast {

/// One thread an element of a bf16 tensor: the coded ulp word, the bits of its exponential-Golomb code, and the digest
/// change (lo, hi). All pointers are device memory of `elements` entries, `changes` of twice as many.
[[maybe_unused]] __global__ void evaluate_shared_arithmetic(const std::uint16_t* d_old, const std::uint16_t* d_new,
                                           std::uint64_t elements, std::uint64_t key_lo, std::uint64_t key_hi,
                                           std::uint16_t* d_coded, std::uint8_t* d_bits, std::uint64_t* d_changes) {
  const std::uint64_t i = std::uint64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (i >= elements) return;
  const std::uint16_t coded = ulp_difference(d_new[i], d_old[i], true);
  d_coded[i] = coded;
  d_bits[i] = static_cast<std::uint8_t>(coded == 0 ? 0 : exp_golomb_bits(ulp_magnitude(coded)));
  DigestSum sum;
  digest_replace(sum, key_lo, key_hi, i, d_old[i], ulp_advance(d_old[i], coded, true));
  d_changes[2 * i] = sum.lo;
  d_changes[2 * i + 1] = sum.hi;
}

}  // namespace sparsecast
