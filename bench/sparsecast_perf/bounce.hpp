// SPDX-License-Identifier: Apache-2.0
#pragma once

// Copies between the host's pageable memory and the device, through two pinned buffers in turn. For files that are only
// compiled with the CUDA runtime.

#include <algorithm>
#include <chrono>
#include <cstring>
#include <span>

#include "cuda/common/device_memory.hpp"
#include "cuda/common/device_stream.hpp"
#include "cuda/common/streams.hpp"

namespace sparsecast::perf {

class Bounce {
 public:
  /// `patience` bounds each wait for the device.
  explicit Bounce(std::chrono::milliseconds patience) : host_(patience) {
    for (Slot& slot : slots_) slot.h_piece = cuda::PinnedMemory(kPieceBytes);
  }

  void upload(std::byte* d_to, std::span<const std::byte> from) {
    for (std::size_t at = 0, turn = 0; at < from.size(); at += kPieceBytes, ++turn) {
      Slot& slot = slots_[turn % 2];
      const std::size_t bytes = std::min(kPieceBytes, from.size() - at);
      wait(slot);
      std::memcpy(slot.h_piece.as(), from.data() + at, bytes);
      copy(slot, d_to + at, slot.h_piece.as(), bytes, cudaMemcpyHostToDevice);
    }
    for (const Slot& slot : slots_) wait(slot);
  }

  void download(std::span<std::byte> to, const std::byte* d_from) {
    const auto take = [&](std::size_t at, std::size_t turn) {
      const Slot& slot = slots_[turn % 2];
      wait(slot);
      std::memcpy(to.data() + at, slot.h_piece.as(), std::min(kPieceBytes, to.size() - at));
    };
    std::size_t turn = 0;
    for (std::size_t at = 0; at < to.size(); at += kPieceBytes, ++turn) {
      Slot& slot = slots_[turn % 2];
      copy(slot, slot.h_piece.as(), d_from + at, std::min(kPieceBytes, to.size() - at), cudaMemcpyDeviceToHost);
      if (turn > 0) take(at - kPieceBytes, turn - 1);
    }
    if (turn > 0) take((turn - 1) * kPieceBytes, turn - 1);
  }

  /// Calls `look(a, b)` with the bytes of both, piece by piece; pieces begin at multiples of 8 bytes.
  template <class Look>
  void compare(const std::byte* d_a, const std::byte* d_b, std::size_t bytes, const Look& look) {
    for (std::size_t at = 0; at < bytes; at += kPieceBytes) {
      const std::size_t piece = std::min(kPieceBytes, bytes - at);
      copy(slots_[0], slots_[0].h_piece.as(), d_a + at, piece, cudaMemcpyDeviceToHost);
      copy(slots_[1], slots_[1].h_piece.as(), d_b + at, piece, cudaMemcpyDeviceToHost);
      for (const Slot& slot : slots_) wait(slot);
      look(std::span<const std::byte>(slots_[0].h_piece.as(), piece),
           std::span<const std::byte>(slots_[1].h_piece.as(), piece));
    }
  }

 private:
  static constexpr std::size_t kPieceBytes = std::size_t{16} << 20;

  struct Slot {
    cuda::PinnedMemory h_piece;
    cuda::Stream stream;
  };

  static void copy(Slot& slot, void* to, const void* from, std::size_t bytes, cudaMemcpyKind kind) {
    cuda::copy_async(to, from, bytes, kind, slot.stream.get());
  }
  void wait(const Slot& slot) const { host_.wait(slot.stream.get(), "copy"); }

  cuda::HostWait host_;
  Slot slots_[2];
};

}  // namespace sparsecast::perf
