// SPDX-License-Identifier: Apache-2.0
#include "sparsecast/safetensors.hpp"

#include <algorithm>

namespace sparsecast {

TensorReader::TensorReader(std::span<const ConstBytes> tensors)
    : read_([all = std::vector<ConstBytes>(tensors.begin(), tensors.end())](
                std::size_t tensor, std::uint64_t begin_byte, MutableBytes room) {
        const ConstBytes piece = all[tensor].subspan(begin_byte, room.size());
        std::copy(piece.begin(), piece.end(), room.begin());
      }) {
  for (const ConstBytes tensor : tensors) bytes_.push_back(tensor.size());
}

TensorReader::TensorReader(const TensorTable& table, Read read) : read_(std::move(read)) {
  for (const TensorSpec& spec : table) bytes_.push_back(spec.bytes());
}

}  // namespace sparsecast
