// SPDX-License-Identifier: Apache-2.0
#pragma once

// Slots: the buffers that the root of broadcasts has sent, and that all other ranks have received, as bases of deltas.
// All ranks have the same slots, because all make the same changes in the same order.

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <vector>

#include "sparsecast/publisher.hpp"
#include "sparsecast/subscriber.hpp"
#include "transport/nccl/device_api.hpp"
#include "transport/nccl/nccl_library.hpp"

namespace sparsecast::dropin {

/// Size, type and root of a broadcast. A slot serves broadcasts of one shape.
struct Shape {
  std::uint64_t bytes = 0;
  std::uint32_t type = 0;  ///< ncclDataType_t
  std::uint32_t root = 0;
  friend bool operator==(const Shape&, const Shape&) = default;
};

/// Bytes of one element, or 0 for a type that this build does not know.
std::size_t size_of(ncclDataType_t type);

/// The bytes of a buffer at places that are the same for all buffers of its size. Buffers that are versions of one
/// another agree in nearly all of them.
class Sample {
 public:
  static constexpr std::uint64_t kPieces = 64;
  static constexpr std::uint64_t kPieceBytes = 64;
  static constexpr std::uint64_t kBytes = kPieces * kPieceBytes;

  /// Returns where piece i of a buffer lies, which has at least kBytes.
  static std::uint64_t offset(std::uint64_t i, std::uint64_t bytes) {
    return (bytes - kPieceBytes) / (kPieces - 1) * i;
  }
  /// Returns the share of 16-bit words in which two samples agree.
  static double agreement(const std::vector<std::byte>& a, const std::vector<std::byte>& b);
};

struct Slot {
  Shape shape;
  std::uint64_t last_use = 0;       ///< Number of the broadcast.
  std::shared_ptr<void> memory;     ///< Of shape.bytes, on the device or, without one, on the host.
  std::vector<std::byte> sample;    ///< On the root.
  std::optional<Publisher> sender;  ///< On the root: of `memory`, with a snapshot of its own.
  /// Applies deltas to `memory`, and knows its digest. On the root it applies none (require_result).
  std::optional<Subscriber> receiver;
  std::shared_ptr<void> copied;  ///< Event behind the last copy out of `memory`, on receivers.
};

/// The slots of a communicator, by number. A slot counts twice its bytes, which is what the root needs for it besides
/// the scratch memory of its encoder.
class Slots {
 public:
  explicit Slots(std::uint64_t budget) : budget_(budget) {}

  /// Returns the number of the slot of this shape that agrees most with the sample; nullopt when none agrees in half of
  /// it.
  std::optional<std::uint64_t> nearest(const Shape& shape, const std::vector<std::byte>& sample) const;
  Slot* find(std::uint64_t number);
  /// Returns whether broadcast `now` may make a slot of this shape: whether there is room when the slots have gone that
  /// were not used for long. Slots that are used again and again stay, also where not all buffers of a sync fit.
  bool admits(const Shape& shape, std::uint64_t now) const;
  /// Drops the slots that were not used for longest until one of this shape fits, and adds slot `number` without
  /// memory, or empties it if it is there.
  Slot& renew(std::uint64_t number, const Shape& shape);
  void drop(std::uint64_t number) { slots_.erase(number); }

 private:
  std::uint64_t room(std::uint64_t used_after) const;

  std::uint64_t budget_;
  std::map<std::uint64_t, Slot> slots_;
};

/// Makes the endpoints of a slot whose memory has been filled: a receiver, and on the root a sender, too. `fill` is a
/// number that is never used twice in a communicator; it names the stream of the deltas. Reads the memory for each.
void make_endpoint(Slot& slot, std::uint64_t fill, bool is_root, int device);

/// Reads the root's memory in full, and throws Error{kDigestMismatch} when its digest is not the one that the delta
/// leads to: the sender has missed a change, because bits of its snapshot have flipped.
void require_result(Slot& slot, const Delta& delta);

/// Returns the DeviceApi of a machine without devices, on which buffers are in memory of the host: streams have no
/// work of their own, and copies are done when the call returns.
DeviceApi& host_api();

}  // namespace sparsecast::dropin
