// SPDX-License-Identifier: Apache-2.0
#include "interop/formats/tensor_checksum.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "core/utf8.hpp"
#include "sparsecast/error.hpp"
#include "sparsecast/hash.hpp"

#define XXH_INLINE_ALL
#include <xxhash.h>

namespace sparsecast {
namespace {

/// Adler-32 checksum (RFC 1950, section 8.2).
class Adler32 {
 public:
  void update(ConstBytes bytes) {
    constexpr std::size_t kRun = 5552;  // The longest for which neither sum overflows 32 bits.
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

// Half a kilobyte, which its own function fills when it is wanted.
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

}  // namespace sparsecast
