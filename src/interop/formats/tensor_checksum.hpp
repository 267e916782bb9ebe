// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "sparsecast/delta.hpp"
#include "sparsecast/tensor.hpp"

namespace sparsecast {

/// Computes the checksum of a tensor's bytes with an algorithm of other systems.
class TensorChecksum {
 public:
  /// `algorithm` is "xxh3-128" or "adler32". Throws Error{kUnsupported} for other names, "blake3" among them: no
  /// library of this build computes it.
  explicit TensorChecksum(std::string_view algorithm);
  ~TensorChecksum();

  /// Appends `bytes` to those of which the checksum is computed.
  void update(ConstBytes bytes);
  /// Returns the checksum of all bytes so far in lower-case hexadecimal: 32 digits for xxh3-128, 8 for adler32.
  std::string hex() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

/// Returns the name of the dtype in PyTorch, without "torch.": "bfloat16", "float8_e4m3fn", ...
std::string_view torch_name(DType dtype) noexcept;
/// Returns the dtype whose name in PyTorch is `name`, or nullopt for a name that sparsecast does not carry.
std::optional<DType> dtype_from_torch_name(std::string_view name) noexcept;

/// Returns what torch.hash_tensor(tensor, mode=0) returns for a tensor with these bits: the exclusive or of all
/// elements. Floating elements count as the bits of the float64 of the same value, others as the bits of the int64.
/// Returns 0 for no elements. Throws Error{kUnsupported} for the 8-bit floating dtypes, which PyTorch refuses too.
std::uint64_t torch_hash(DType dtype, ConstBytes bits);

/// Returns the checksum that senders of packed flushes write: hash(positions) ^ (hash(values) << 1) as an integer of
/// any size, in decimal, where hash is torch_hash().
std::string packed_checksum(ConstBytes positions, DType dtype, ConstBytes values);

}  // namespace sparsecast
