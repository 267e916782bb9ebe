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

/// Computes the checksum of a tensor's bytes, with an algorithm that other systems use.
class TensorChecksum {
 public:
  /// Starts a checksum with the algorithm "xxh3-128" or "adler32". Throws Error{kUnsupported} for any other name,
  /// including "blake3", which no library of this build can compute.
  explicit TensorChecksum(std::string_view algorithm);
  ~TensorChecksum();

  /// Appends `bytes` to the bytes whose checksum is computed.
  void update(ConstBytes bytes);
  /// Returns the checksum of all appended bytes in lower-case hexadecimal: 32 digits for xxh3-128, 8 for adler32.
  std::string hex() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

/// Returns the name of the dtype in PyTorch, without "torch.": "bfloat16", "float8_e4m3fn", ...
std::string_view torch_name(DType dtype) noexcept;
/// Returns the dtype whose name in PyTorch is `name`, without "torch."; nullopt for a dtype that sparsecast does not
/// support.
std::optional<DType> dtype_from_torch_name(std::string_view name) noexcept;

/// Returns the result of torch.hash_tensor(tensor, mode=0) for a tensor of dtype `dtype` with these bits: the exclusive
/// or of all elements. A floating element counts as the bits of the float64 number with the same value; any other
/// element counts as the bits of the int64 number. Returns 0 if there are no elements. Throws Error{kUnsupported} for
/// the 8-bit floating dtypes, which PyTorch refuses too.
std::uint64_t torch_hash(DType dtype, ConstBytes bits);

/// Returns the checksum that senders write into packed flushes: hash(positions) ^ (hash(values) << 1), as an integer of
/// unlimited size, in decimal. `hash` is torch_hash(); `dtype` is the dtype of the values.
std::string packed_checksum(ConstBytes positions, DType dtype, ConstBytes values);

}  // namespace sparsecast
