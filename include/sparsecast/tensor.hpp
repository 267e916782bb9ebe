// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "sparsecast/digest.hpp"
#include "sparsecast/export.hpp"

namespace sparsecast {

/// Element types: all that safetensors defines. The numbers are part of the wire format (docs/wire-format.md): never
/// renumber. An element of kI4X2 or kF4X2 is a byte that holds two numbers. An element of kF6E2M3 or kF6E3M2 is a byte
/// of a row in which four numbers take three bytes. Shapes and positions of these four dtypes count bytes.
enum class DType : std::uint8_t {
  kBF16 = 1,
  kF16 = 2,
  kF32 = 3,
  kF64 = 4,
  kF8E4M3 = 5,
  kF8E5M2 = 6,
  kI8 = 7,
  kU8 = 8,
  kI16 = 9,
  kI32 = 10,
  kI64 = 11,
  kBool = 12,
  kI4X2 = 13,  ///< Two integers of 4 bits in a byte, in two's complement or with an offset.
  kF4X2 = 14,  ///< Two fp4 e2m1 numbers in a byte, as in torch.float4_e2m1fn_x2 and the data of MXFP4 and NVFP4.
  /// A power of two, 2^(byte - 127), as in UE8M0 scales; 255 is NaN. Bytes have the order of their numbers.
  kF8E8M0 = 15,
  kU16 = 16,
  kU32 = 17,
  kU64 = 18,
  kC64 = 19,  ///< A complex number of two f32, the real part first. Codecs treat its 8 bytes as one integer.
  /// AMD's fp8, whose only NaN has the bits of -0. Codecs treat it as an integer; rules for NaNs or the order of floats
  /// do not apply.
  kF8E4M3Fnuz = 20,
  kF8E5M2Fnuz = 21,
  kF6E2M3 = 22,
  kF6E3M2 = 23,
};

/// Returns the number of bytes of one element of a dtype: 1, 2, 4 or 8.
SPARSECAST_API std::size_t element_size(DType dtype) noexcept;

/// Returns true for the floating dtypes with a sign, of a byte or more, whose bits the `ulp` codec maps to ordered
/// integers. False for integers, bool, pairs and the dtypes from kF8E8M0 on.
SPARSECAST_API bool is_floating(DType dtype) noexcept;

/// Returns true for kI4X2 and kF4X2, whose bytes hold two numbers each. The `ulp` codec codes the changes of both
/// numbers.
SPARSECAST_API bool is_pair(DType dtype) noexcept;

/// Returns true for kF6E2M3 and kF6E3M2, for which three bytes hold four numbers.
SPARSECAST_API bool is_fp6(DType dtype) noexcept;

/// Returns the name that safetensors uses: "BF16", "F8_E4M3", "I32", "F8_E8M0", ... "I4X2" and "F4X2" are names of
/// sparsecast alone: safetensors has "F4", whose shapes count numbers, and no integers of 4 bits. safetensors also has
/// "F6_E2M3" and "F6_E3M2", but their shapes count numbers there.
SPARSECAST_API std::string_view to_string(DType dtype) noexcept;

/// Returns the dtype with this name in safetensors or sparsecast; nullopt for a name that sparsecast does not support.
SPARSECAST_API std::optional<DType> dtype_from_name(std::string_view name) noexcept;

/// Returns the dtype with this number in the wire format; nullopt when there is none.
SPARSECAST_API std::optional<DType> dtype_from_code(std::uint8_t code) noexcept;

/// Bytes in the caller's memory, which are only read.
using ConstBytes = std::span<const std::byte>;
/// Bytes in the caller's memory, which may be written.
using MutableBytes = std::span<std::byte>;

/// One tensor of a stream, named as in the checkpoint. Elements have a flat 64-bit index in row-major order.
struct SPARSECAST_API TensorSpec {
  std::string name;  ///< Name of the tensor: UTF-8, 1 to 65535 bytes.
  DType dtype = DType::kBF16;
  /// Size of each dimension; empty for a scalar (one element). With a 0 in it, the tensor has no elements.
  std::vector<std::uint64_t> shape;

  /// Returns the number of elements, which is the product of the shape. TensorTable checks that it cannot overflow.
  std::uint64_t elements() const noexcept;
  std::uint64_t bytes() const noexcept { return elements() * element_size(dtype); }
  friend bool operator==(const TensorSpec&, const TensorSpec&) = default;
};

/// Key and indices under which a tensor's elements are counted in the state digest. A tensor has its own key and
/// indices, unless it is a box of another tensor. A box has the key and the indices of the other tensor, so that the
/// digests of all boxes that tile the other tensor add up to its digest.
struct DigestOrigin {
  Hash128 key;
  std::uint64_t first = 0;  ///< Index, in the state digest, of element (0, 0, ...) of this tensor.
  /// Element (i, j, ...) of this tensor has the index first + i * strides[0] + j * strides[1] + ... in the digest; when
  /// this is empty, element i has the index first + i.
  std::vector<std::int64_t> strides;
};

/// The ordered list of tensors that a stream carries. Both ends must agree on it: they compare `hash()`.
/// Immutable, so it may be shared between threads.
class SPARSECAST_API TensorTable {
 public:
  static constexpr std::size_t kMaxTensors = std::size_t{1} << 20;
  static constexpr std::size_t kMaxRank = 32;
  /// Maximum number of elements of one tensor.
  static constexpr std::uint64_t kMaxElements = std::uint64_t{1} << 46;

  TensorTable() = default;
  /// Makes the table of these tensors. Throws Error{kUsage} for repeated or empty names and for anything over the
  /// limits above.
  explicit TensorTable(std::vector<TensorSpec> specs);
  /// Makes a table of boxes, with the origin of each box. Throws as the constructor above, and Error{kUsage} when there
  /// is not one origin for each tensor, when an origin has strides but not one for each dimension, and for strides of
  /// more than 8 dimensions. `hash()` and `serialize()` do not include origins, which both ends derive from their plan.
  TensorTable(std::vector<TensorSpec> specs, std::vector<DigestOrigin> origins);

  std::size_t size() const noexcept { return specs_.size(); }
  const TensorSpec& operator[](std::size_t i) const { return specs_[i]; }
  std::vector<TensorSpec>::const_iterator begin() const noexcept { return specs_.begin(); }
  std::vector<TensorSpec>::const_iterator end() const noexcept { return specs_.end(); }
  /// Returns the index of the tensor of this name; nullopt when there is none.
  std::optional<std::size_t> find(std::string_view name) const;

  std::uint64_t elements() const noexcept { return elements_; }
  std::uint64_t bytes() const noexcept { return bytes_; }

  /// Returns the XXH3-128 hash of the bytes that serialize() returns.
  const Hash128& hash() const noexcept { return hash_; }
  /// Returns the key of tensor i in the state digest: XXH3-128 of its entry in `serialize()`, or its origin's key.
  const Hash128& digest_key(std::size_t i) const { return origins_[i].key; }
  const DigestOrigin& digest_origin(std::size_t i) const { return origins_[i]; }

  /// Returns the table as its canonical bytes (docs/wire-format.md, "Tensor table").
  std::vector<std::byte> serialize() const;
  /// Parses the output of serialize(). Throws Error{kCorrupt} for any other bytes.
  static TensorTable parse(std::span<const std::byte> bytes);

 private:
  std::vector<TensorSpec> specs_;
  std::vector<DigestOrigin> origins_;
  std::unordered_map<std::string, std::size_t> by_name_;
  Hash128 hash_;
  std::uint64_t elements_ = 0;
  std::uint64_t bytes_ = 0;
};

/// Value of TensorRef::device for host memory.
inline constexpr int kHostMemory = -1;

/// A tensor in the caller's memory, with the fields of DLPack's DLTensor. The caller owns the memory, which must stay
/// in place while an object of the library uses it. Each object documents whether it writes the memory; an object that
/// only reads also accepts references to constant memory.
struct SPARSECAST_API TensorRef {
  std::byte* data = nullptr;         ///< Address of element (0, 0, ...); null only for a tensor without elements.
  DType dtype = DType::kBF16;        ///< Type of the elements in this memory.
  std::vector<std::uint64_t> shape;  ///< Size of each dimension; empty for a scalar.
  /// Element (i, j, ...) lies i * strides[0] + j * strides[1] + ... elements from `data`, in at most 8 dimensions.
  /// Empty: row-major and contiguous.
  std::vector<std::int64_t> strides;
  int device = kHostMemory;  ///< CUDA ordinal of device memory, which is aligned to its elements; or kHostMemory.

  std::uint64_t elements() const noexcept;
  std::uint64_t bytes() const noexcept { return elements() * element_size(dtype); }
  bool contiguous() const noexcept;  ///< Returns true when the elements lie one after another, in row-major order.
};

/// Returns a reference to the tensor at `data` that has the dtype and shape of `spec`.
SPARSECAST_API TensorRef ref_to(const TensorSpec& spec, const void* data, int device = kHostMemory,
                                std::vector<std::int64_t> strides = {});
/// Returns references to contiguous tensors of the table in host memory that is only read. Throws Error{kUsage} that
/// names the tensor unless `tensors` has the bytes of each tensor of the table, in order.
SPARSECAST_API std::vector<TensorRef> refs_to(const TensorTable& table, const std::vector<ConstBytes>& tensors);
/// Returns references to contiguous tensors of the table in host memory that may be written. Throws Error{kUsage} that
/// names the tensor unless `tensors` has the bytes of each tensor of the table, in order.
SPARSECAST_API std::vector<TensorRef> refs_to(const TensorTable& table, const std::vector<MutableBytes>& tensors);
/// Returns references to contiguous tensors of the table at the addresses `d_tensors` in the memory of `device`. Throws
/// Error{kUsage} unless there is one address for each tensor.
SPARSECAST_API std::vector<TensorRef> refs_to(const TensorTable& table, const std::vector<void*>& d_tensors,
                                              int device);

/// Returns the share of the state digest that some consecutive elements of a tensor have. `bits` holds these elements,
/// and `first` is the index of the first of them in the tensor. `key` is the tensor's TensorTable::digest_key.
SPARSECAST_API StateDigest digest_span(const Hash128& key, DType dtype, std::uint64_t first,
                                       std::span<const std::byte> bits);

/// Returns the digest of each host tensor of a table, read in full, on `threads` threads (0: all cores);
/// TensorTable::digest_origin gives the index at which each element counts. Throws Error{kUsage} for tensors that do
/// not fit the table.
SPARSECAST_API std::vector<StateDigest> digest_tensors(const TensorTable& table, const std::vector<TensorRef>& tensors,
                                                       int threads = 1);

}  // namespace sparsecast
