#pragma once

#include <cstdint>
#include <string>

#include "sparsecast/delta.hpp"

namespace sparsecast {

/// torch.hash_tensor(tensor, mode=0): the exclusive or of all elements, floating ones as the bits of the float64 of the
/// same value, others as the bits of the int64. 0 for no elements. Throws Error{kUnsupported} for the 8-bit floating
/// dtypes, which PyTorch refuses too.
std::uint64_t torch_hash(DType dtype, ConstBytes bits);

/// hash(positions) ^ (hash(values) << 1) without a limit to its bits, in decimal: what senders of packed flushes
/// promise.
std::string packed_checksum(ConstBytes positions, DType dtype, ConstBytes values);

}  // namespace sparsecast
