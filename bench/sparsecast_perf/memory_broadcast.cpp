// SPDX-License-Identifier: Apache-2.0
#include "sparsecast_perf/memory_broadcast.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>

#include "sparsecast/error.hpp"

namespace sparsecast::perf {
namespace {

/// Bytes that all ranks share; longer broadcasts go through it piece by piece.
constexpr std::size_t kWindowBytes = std::size_t{16} << 20;

}  // namespace

std::unique_ptr<MemoryBroadcast> MemoryBroadcast::open(Group& group) {
  std::unique_ptr<MemoryBroadcast> memory(new MemoryBroadcast(group));
  const bool publishes = group.rank() == kPublisher;
  const std::string own = publishes ? memory->create() : std::string();
  const auto sent = std::as_bytes(std::span(own));
  const Bytes received = group.broadcast(Bytes(sent.begin(), sent.end()));
  bool ready = publishes && memory->window_ != nullptr;
  if (!publishes && group.local_rank() != 0 && !received.empty()) {
    const std::string path(reinterpret_cast<const char*>(received.data()), received.size());
    const int descriptor = ::open(path.c_str(), O_RDWR | O_CLOEXEC);
    ready = descriptor >= 0 && memory->map(descriptor);
    if (descriptor >= 0) ::close(descriptor);
  }
  if (group.sum(ready ? 0 : 1) != 0) return nullptr;
  return memory;
}

MemoryBroadcast::~MemoryBroadcast() {
  if (window_ != nullptr) ::munmap(window_, kWindowBytes);
  if (created_ >= 0) ::close(created_);
}

std::string MemoryBroadcast::create() {
  created_ = ::memfd_create("sparsecast_perf", MFD_CLOEXEC);
  if (created_ < 0 || ::ftruncate(created_, kWindowBytes) != 0 || !map(created_)) return {};
  return fmt::format("/proc/{}/fd/{}", ::getpid(), created_);
}

bool MemoryBroadcast::map(int descriptor) {
  void* const mapped = ::mmap(nullptr, kWindowBytes, PROT_READ | PROT_WRITE, MAP_SHARED, descriptor, 0);
  if (mapped == MAP_FAILED) return false;
  window_ = static_cast<std::byte*>(mapped);
  return true;
}

void MemoryBroadcast::broadcast(std::span<std::byte> bytes, Deadline deadline) {
  for (std::size_t at = 0; at < bytes.size(); at += kWindowBytes) {
    const std::span<std::byte> piece = bytes.subspan(at, std::min(kWindowBytes, bytes.size() - at));
    if (std::chrono::steady_clock::now() > deadline) {
      throw Error(ErrorCode::kTimeout, "the dense broadcast has not ended by its deadline");
    }
    if (group_.rank() == kPublisher) std::memcpy(window_, piece.data(), piece.size());
    group_.barrier();  // The piece is there.
    if (group_.rank() != kPublisher) std::memcpy(piece.data(), window_, piece.size());
    group_.barrier();  // Everybody has it.
  }
}

}  // namespace sparsecast::perf
