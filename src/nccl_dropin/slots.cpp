// SPDX-License-Identifier: Apache-2.0
#include "nccl_dropin/slots.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <iterator>

namespace sparsecast::dropin {
namespace {

/// Returns the dtype by which deltas of a buffer are coded. Bytes are mostly packed bf16 weights; any bits survive.
DType dtype_of(const Shape& shape) {
  switch (shape.type) {
    case ncclFloat16:
      return DType::kF16;
    case ncclBfloat16:
      return DType::kBF16;
    case ncclFloat32:
      return DType::kF32;
    case ncclInt32:
    case ncclUint32:
      return DType::kI32;
    case ncclFloat64:
      return DType::kF64;
    case ncclInt64:
    case ncclUint64:
      return DType::kI64;
    case ncclInt8:
    case ncclUint8:
      return shape.bytes % 2 == 0 ? DType::kBF16 : DType::kU8;
    default:
      return DType::kU8;
  }
}

class HostApi final : public DeviceApi {
 public:
  int current_device() override { return kHostMemory; }
  void use_device(int) override {}
  bool has_context(int) override { return true; }
  std::string uuid(int) override { return {}; }
  bool holds(const void*, int) override { return true; }
  void* allocate(std::uint64_t bytes) override {
    void* const made = std::aligned_alloc(64, (bytes + 63) / 64 * 64);
    if (made == nullptr) throw Error(ErrorCode::kUnsupported, fmt::format("no memory for {} bytes", bytes));
    return made;
  }
  void free(void* pointer) noexcept override { std::free(pointer); }
  void* allocate_host(std::uint64_t bytes) override { return allocate(bytes); }
  void free_host(void* pointer) noexcept override { std::free(pointer); }
  void* create_stream() override { return nullptr; }
  void destroy_stream(void*) noexcept override {}
  void* create_event() override { return nullptr; }
  void destroy_event(void*) noexcept override {}
  void record(void*, void*) override {}
  void wait(void*, void*) override {}
  bool finished(void*) override { return true; }
  void copy_to_device(void* to, const void* from, std::uint64_t bytes, void*) override {
    std::memmove(to, from, bytes);
  }
  void copy_to_host(void* to, const void* from, std::uint64_t bytes, void*) override { std::memmove(to, from, bytes); }
  void copy_on_device(void* to, const void* from, std::uint64_t bytes, void*) override {
    std::memmove(to, from, bytes);
  }
};

}  // namespace

std::size_t size_of(ncclDataType_t type) {
  constexpr std::size_t kSizes[] = {1, 1, 4, 4, 8, 8, 2, 4, 8, 2, 1, 1};  // By number; those of fp8 since 2.24.
  const auto number = static_cast<std::size_t>(type);
  return number < std::size(kSizes) ? kSizes[number] : 0;
}

double Sample::agreement(const std::vector<std::byte>& a, const std::vector<std::byte>& b) {
  constexpr std::uint64_t kWords = kBytes / 2;
  std::size_t equal = 0;
  for (std::size_t i = 0; i + 1 < kBytes; i += 2) equal += std::memcmp(&a[i], &b[i], 2) == 0 ? 1 : 0;
  return static_cast<double>(equal) / kWords;
}

std::optional<std::uint64_t> Slots::nearest(const Shape& shape, const std::vector<std::byte>& sample) const {
  constexpr double kLeast = 0.5;
  std::optional<std::uint64_t> best;
  double most = 0;
  for (const auto& [number, slot] : slots_) {
    if (!(slot.shape == shape)) continue;
    const double agreement = Sample::agreement(sample, slot.sample);
    if (agreement < kLeast || agreement <= most) continue;
    most = agreement;
    best = number;
  }
  return best;
}

Slot* Slots::find(std::uint64_t number) {
  const auto found = slots_.find(number);
  return found == slots_.end() ? nullptr : &found->second;
}

/// Returns the bytes of the budget that slots leave whose last use came after broadcast `used_after`.
std::uint64_t Slots::room(std::uint64_t used_after) const {
  std::uint64_t held = 0;
  for (const auto& [number, slot] : slots_) held += slot.last_use > used_after ? 2 * slot.shape.bytes : 0;
  return budget_ - std::min(budget_, held);
}

bool Slots::admits(const Shape& shape, std::uint64_t now) const {
  // A sync may have many buffers that are too large together; between two of its broadcasts of one, all others come.
  const std::uint64_t long_ago = 1000 + 4 * slots_.size();
  return shape.bytes <= room(now - std::min(now, long_ago)) / 2;
}

Slot& Slots::renew(std::uint64_t number, const Shape& shape) {
  slots_.erase(number);
  while (!slots_.empty() && 2 * shape.bytes > room(0)) {
    slots_.erase(std::min_element(slots_.begin(), slots_.end(),
                                  [](const auto& a, const auto& b) { return a.second.last_use < b.second.last_use; }));
  }
  Slot& slot = slots_[number];
  slot.shape = shape;
  return slot;
}

void make_endpoint(Slot& slot, std::uint64_t fill, bool is_root, int device) {
  const DType dtype = dtype_of(slot.shape);
  const TensorSpec spec{fmt::format("broadcast {}", fill), dtype, {slot.shape.bytes / element_size(dtype)}};
  const auto table = std::make_shared<const TensorTable>(std::vector{spec});
  const std::vector<TensorRef> memory{ref_to(spec, slot.memory.get(), device)};
  slot.sender.reset();
  slot.receiver.reset();
  if (is_root) slot.sender.emplace(table, memory, PublisherOptions{});
  slot.receiver.emplace(table, memory, SubscriberOptions{});
}

void require_result(Slot& slot, const Delta& delta) {
  try {
    slot.receiver->reset(delta.info.version, delta.result.result_digest);
  } catch (const Error& error) {
    if (error.code() != ErrorCode::kDigestMismatch) throw;
    throw Error(ErrorCode::kDigestMismatch, "bits have flipped in the root's copy of what it has sent before");
  }
}

DeviceApi& host_api() {
  static HostApi api;
  return api;
}

}  // namespace sparsecast::dropin
