// SPDX-License-Identifier: Apache-2.0

// Compression of the bodies of table and frame records by zstd.

#include <zstd.h>

#include "codec/record_layout.hpp"
#include "sparsecast/error.hpp"

namespace sparsecast {

Bytes compress_smaller(ConstBytes raw, int level) {
  Bytes stored(ZSTD_compressBound(raw.size()));
  const std::size_t size = ZSTD_compress(stored.data(), stored.size(), raw.data(), raw.size(), level);
  if (ZSTD_isError(size) != 0 || size >= raw.size()) return {};
  stored.resize(size);
  return stored;
}

Bytes decompress_exact(ConstBytes stored, std::size_t raw_bytes) {
  // The declared size is read before anything is allocated for the content.
  const unsigned long long declared = ZSTD_getFrameContentSize(stored.data(), stored.size());
  const std::size_t frame = ZSTD_findFrameCompressedSize(stored.data(), stored.size());
  if (declared != raw_bytes || ZSTD_isError(frame) != 0 || frame != stored.size()) {
    throw Error(ErrorCode::kCorrupt, "the zstd frame does not hold the announced number of bytes");
  }
  Bytes raw(raw_bytes);
  const std::size_t size = ZSTD_decompress(raw.data(), raw.size(), stored.data(), stored.size());
  if (ZSTD_isError(size) != 0 || size != raw_bytes) {
    throw Error(ErrorCode::kCorrupt, "the zstd frame cannot be decoded");
  }
  return raw;
}

}  // namespace sparsecast
