// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "sparsecast/layout.hpp"

namespace sparsecast {

/// Returns the content of a layout, the same for equal layouts:
///   u32 bytes of the table, the table as TensorTable::serialize has it; ties (count; names of alias and original);
///   ranks (count), each: node, local tensors (count; name, u8 dtype, elements), shards (count; tensor, local, u8
///   has_base, first, then of each dimension offset, extent and stride).
/// Numbers without a type are LEB128; strings are their length and their bytes.
Bytes pack_layout(const Layout& layout);
/// Returns the layout from `content`, which pack_layout() has returned. Throws Error{kCorrupt} for any other bytes.
Layout unpack_layout(ConstBytes content);

/// Returns a layout file with this content: "SCLY", u32 version, u64 size of the content in bytes, XXH3-64 of the
/// content, then the content, which is stored as one zstd frame if that is smaller.
Bytes compress_layout(ConstBytes content);
/// Returns the content of a file that compress_layout() has returned. Throws Error{kCorrupt | kUnsupported} for any
/// other bytes.
Bytes decompress_layout(ConstBytes bytes);

}  // namespace sparsecast
