#include "common/weights.hpp"

#include <algorithm>
#include <new>
#include <numeric>

#include "core/word.hpp"
#include "sparsecast/error.hpp"

namespace sparsecast::bench {
namespace {

constexpr std::align_val_t kAlignment{64};

}  // namespace

AlignedBuffer::AlignedBuffer(std::size_t bytes)
    : memory_(static_cast<std::byte*>(::operator new[](std::max<std::size_t>(bytes, 1), kAlignment))), size_(bytes) {}

void AlignedBuffer::Release::operator()(std::byte* memory) const noexcept { ::operator delete[](memory, kAlignment); }

Weights::Weights(const TensorTable& table) : buffer_(table.bytes()), tensors_(table.size()) {
  std::vector<std::size_t> order(table.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::stable_sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) {
    return element_size(table[a].dtype) > element_size(table[b].dtype);
  });
  std::uint64_t offset = 0;
  for (const std::size_t t : order) {
    tensors_[t] = buffer_.bytes().subspan(offset, table[t].bytes());
    offset += table[t].bytes();
  }
}

std::uint64_t count_differing(const TensorTable& table, std::span<const TensorBytes> found,
                              std::span<const TensorBytes> expected) {
  std::uint64_t differing = 0;
  for (std::size_t t = 0; t < table.size(); ++t) {
    differing += count_differing(found[t], expected[t], element_size(table[t].dtype));
  }
  return differing;
}

std::uint64_t count_differing(std::span<const std::byte> found, std::span<const std::byte> expected,
                              std::size_t element_bytes) {
  if (found.size() != expected.size()) throw Error(ErrorCode::kUsage, "arrays of different sizes are compared");
  return with_word(element_bytes, [&]<class T>() {
    std::uint64_t differing = 0;
    for (std::size_t i = 0; i < found.size() / sizeof(T); ++i) {
      differing += load_word<T>(found.data(), i) != load_word<T>(expected.data(), i) ? 1 : 0;
    }
    return differing;
  });
}

}  // namespace sparsecast::bench
