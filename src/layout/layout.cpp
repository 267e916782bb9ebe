// SPDX-License-Identifier: Apache-2.0
#include "sparsecast/layout.hpp"

#include "layout/layout_bytes.hpp"
#include "layout/layout_validation.hpp"

namespace sparsecast {

Layout::Layout(TensorTable table, std::vector<RankLayout> ranks, std::vector<TiedTensor> ties)
    : table_(std::move(table)), ranks_(std::move(ranks)), ties_(std::move(ties)) {
  originals_ = resolve_ties(table_, ties_);
  validate_ranks(table_, ranks_, originals_);
  hash_ = xxh3_128(pack_layout(*this));
}

Bytes Layout::serialize() const { return compress_layout(pack_layout(*this)); }

Layout Layout::parse(ConstBytes bytes) { return unpack_layout(decompress_layout(bytes)); }

}  // namespace sparsecast
