// SPDX-License-Identifier: Apache-2.0
#include "interop/formats/tensor_checksum.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <limits>
#include <utility>

#include "core/utf8.hpp"
#include "core/word.hpp"
#include "sparsecast/digest.hpp"
#include "sparsecast/error.hpp"
#include "sparsecast/tensor.hpp"

#define XXH_INLINE_ALL
#include <xxhash.h>

namespace sparsecast {
namespace {

/// Adler-32 checksum (RFC 1950, section 8.2).
class Adler32 {
 public:
  void update(ConstBytes bytes) {
    constexpr std::size_t kRun = 5552;  // The longest run for which neither sum overflows 32 bits.
    while (!bytes.empty()) {
      const ConstBytes run = bytes.first(std::min(kRun, bytes.size()));
      for (const std::byte byte : run) {
        a_ += std::to_integer<std::uint32_t>(byte);
        b_ += a_;
      }
      a_ %= kModulus;
      b_ %= kModulus;
      bytes = bytes.subspan(run.size());
    }
  }
  std::uint32_t value() const { return (b_ << 16) | a_; }

 private:
  static constexpr std::uint32_t kModulus = 65521;
  std::uint32_t a_ = 1;
  std::uint32_t b_ = 0;
};

}  // namespace

// Members are not initialised here: the hash state has half a kilobyte, and its library initialises it if it is used.
struct TensorChecksum::State {  // NOLINT(cppcoreguidelines-pro-type-member-init)
  bool adler = false;
  Adler32 adler32;
  XXH3_state_t xxh3;
};

TensorChecksum::TensorChecksum(std::string_view algorithm) : state_(std::make_unique<State>()) {
  state_->adler = algorithm == "adler32";
  if (!state_->adler && algorithm != "xxh3-128") {
    throw Error(
        ErrorCode::kUnsupported,
        fmt::format("checksums by '{}' cannot be verified here, only xxh3-128 and adler32", excerpt(algorithm)));
  }
  XXH3_128bits_reset(&state_->xxh3);
}

TensorChecksum::~TensorChecksum() = default;

void TensorChecksum::update(ConstBytes bytes) {
  if (state_->adler) {
    state_->adler32.update(bytes);
  } else {
    XXH3_128bits_update(&state_->xxh3, bytes.data(), bytes.size());
  }
}

std::string TensorChecksum::hex() const {
  if (state_->adler) return fmt::format("{:08x}", state_->adler32.value());
  const XXH128_hash_t hash = XXH3_128bits_digest(&state_->xxh3);
  return to_hex(Hash128{hash.low64, hash.high64});
}

namespace {

double from_f16(std::uint16_t bits) {
  const int exponent = (bits >> 10) & 0x1F;
  const int mantissa = bits & 0x3FF;
  const bool negative = (bits & 0x8000) != 0;
  if (exponent == 0x1F) {
    // A NaN keeps its payload, in the highest bits, and becomes quiet.
    const std::uint64_t payload = static_cast<std::uint64_t>(mantissa) << 42;
    const std::uint64_t quiet = mantissa != 0 ? std::uint64_t{1} << 51 : 0;
    return std::bit_cast<double>((std::uint64_t{negative} << 63) | (std::uint64_t{0x7FF} << 52) | payload | quiet);
  }
  const double value = exponent == 0 ? std::ldexp(mantissa, -24) : std::ldexp(1024 + mantissa, exponent - 25);
  return negative ? -value : value;
}

/// Returns the float64 of the same value; a NaN becomes quiet and keeps its payload, however the compiler translates
/// casts.
double from_f32(std::uint32_t bits) {
  if ((bits & 0x7FFFFFFF) > 0x7F800000) {
    const std::uint64_t payload = std::uint64_t{bits & 0x7FFFFF} << 29;
    return std::bit_cast<double>((std::uint64_t{bits >> 31} << 63) | (std::uint64_t{0xFFF} << 51) | payload);
  }
  return std::bit_cast<float>(bits);
}

template <class T, class Word>
std::uint64_t fold(ConstBytes bits, const Word& word) {
  std::uint64_t hash = 0;
  for (std::size_t i = 0; i < bits.size() / sizeof(T); ++i) {
    hash ^= std::bit_cast<std::uint64_t>(word(load_word<T>(bits.data(), i)));
  }
  return hash;
}

template <class T>
std::uint64_t fold_integers(ConstBytes bits) {
  return fold<T>(bits, [](T value) { return static_cast<std::int64_t>(value); });
}

/// Returns `carry` * 2^64 + `value` in decimal; no integer type of C++ holds it.
std::string decimal(std::uint32_t carry, std::uint64_t value) {
  std::uint32_t limbs[3] = {carry, static_cast<std::uint32_t>(value >> 32), static_cast<std::uint32_t>(value)};
  std::string digits;
  do {
    std::uint64_t remainder = 0;
    for (std::uint32_t& limb : limbs) {
      const std::uint64_t part = (remainder << 32) | limb;
      limb = static_cast<std::uint32_t>(part / 10);
      remainder = part % 10;
    }
    digits.insert(digits.begin(), static_cast<char>('0' + static_cast<int>(remainder)));
  } while ((limbs[0] | limbs[1] | limbs[2]) != 0);
  return digits;
}

}  // namespace

std::uint64_t torch_hash(DType dtype, ConstBytes bits) {
  switch (dtype) {
    case DType::kBF16:
      return fold<std::uint16_t>(bits, [](std::uint16_t word) { return from_f32(std::uint32_t{word} << 16); });
    case DType::kF16:
      return fold<std::uint16_t>(bits, from_f16);
    case DType::kF32:
      return fold<std::uint32_t>(bits, from_f32);
    case DType::kF64:
    case DType::kI64:
      return fold_integers<std::int64_t>(bits);
    case DType::kI8:
      return fold_integers<std::int8_t>(bits);
    case DType::kU8:
    case DType::kBool:
    case DType::kI4X2:
      return fold_integers<std::uint8_t>(bits);
    case DType::kI16:
      return fold_integers<std::int16_t>(bits);
    case DType::kI32:
      return fold_integers<std::int32_t>(bits);
    default:
      throw Error(ErrorCode::kUnsupported, fmt::format("PyTorch has no hash of {}", to_string(dtype)));
  }
}

std::string packed_checksum(ConstBytes positions, DType dtype, ConstBytes values) {
  const std::uint64_t of_values = torch_hash(dtype, values);
  return decimal(static_cast<std::uint32_t>(of_values >> 63), torch_hash(DType::kU8, positions) ^ (of_values << 1));
}

namespace {

constexpr std::array<std::pair<DType, std::string_view>, 19> kNames = {{{DType::kBF16, "bfloat16"},
                                                                        {DType::kF16, "float16"},
                                                                        {DType::kF32, "float32"},
                                                                        {DType::kF64, "float64"},
                                                                        {DType::kF8E4M3, "float8_e4m3fn"},
                                                                        {DType::kF8E5M2, "float8_e5m2"},
                                                                        {DType::kF8E8M0, "float8_e8m0fnu"},
                                                                        {DType::kI8, "int8"},
                                                                        {DType::kU8, "uint8"},
                                                                        {DType::kI16, "int16"},
                                                                        {DType::kI32, "int32"},
                                                                        {DType::kI64, "int64"},
                                                                        {DType::kBool, "bool"},
                                                                        {DType::kU16, "uint16"},
                                                                        {DType::kU32, "uint32"},
                                                                        {DType::kU64, "uint64"},
                                                                        {DType::kC64, "complex64"},
                                                                        {DType::kF8E4M3Fnuz, "float8_e4m3fnuz"},
                                                                        {DType::kF8E5M2Fnuz, "float8_e5m2fnuz"}}};

}  // namespace

std::string_view torch_name(DType dtype) noexcept {
  for (const auto& [known, name] : kNames) {
    if (known == dtype) return name;
  }
  return "unknown";
}

std::optional<DType> dtype_from_torch_name(std::string_view name) noexcept {
  for (const auto& [dtype, known] : kNames) {
    if (known == name) return dtype;
  }
  return std::nullopt;
}

}  // namespace sparsecast
