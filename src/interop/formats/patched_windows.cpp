#include "interop/formats/patched_windows.hpp"

#include <algorithm>
#include <cstring>

#include "core/word.hpp"

namespace sparsecast {

void for_each_window(const Checkpoint& base, const TensorPatch& patch, const WindowSink& sink) {
  constexpr std::uint64_t kWindowBytes = std::uint64_t{1} << 20;  // A multiple of every element size.
  const std::size_t size = element_size(base.table()[patch.tensor].dtype);
  const ConstTensorBytes tensor = base.tensor(patch.tensor);
  Bytes after;
  std::uint64_t next = 0;  // Entry of the patch.
  for (std::uint64_t begin = 0; begin < tensor.size(); begin += kWindowBytes) {
    const ConstBytes before = tensor.subspan(begin, std::min(kWindowBytes, tensor.size() - begin));
    after.assign(before.begin(), before.end());
    for (; next < patch.count; ++next) {
      const std::uint64_t at = std::uint64_t{load_word<std::uint32_t>(patch.indices.data(), next)} * size;
      if (at >= begin + before.size()) break;
      std::memcpy(after.data() + (at - begin), patch.values.data() + next * size, size);
    }
    sink(before, after);
    base.release(patch.tensor, begin, before.size());
  }
}

}  // namespace sparsecast
