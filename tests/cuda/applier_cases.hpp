// SPDX-License-Identifier: Apache-2.0
#pragma once

// A DeviceApplier over live tensors, and what it does with a delta compared with what the CPU does.

#include <optional>
#include <vector>

#include "cuda/apply/device_applier.hpp"
#include "cuda/differential.hpp"

namespace sparsecast::test {

/// Live tensors on the device, with an applier over them.
class Receiver {
 public:
  Receiver(const TensorTable& table, const TensorState& state, std::size_t skew = 0,
           const cuda::DeviceApplierOptions& options = {.keep_replaced = cuda::KeepReplaced::kAll})
      : table_(table), live_(element_sizes(table), state, skew), applier_(table, tensors(), options) {}

  /// Copies the frames to memory exactly as large, and stages them.
  void stage(const DeltaHeader& header, const std::vector<Bytes>& frames) {
    storage_.clear();
    sizes_.clear();
    std::vector<DeviceRecord> records;
    for (const Bytes& frame : frames) {
      storage_.emplace_back(allocate_shared(frame.size()));
      std::memcpy(storage_.back().get(), frame.data(), frame.size());
      sizes_.push_back(frame.size());
      records.push_back({storage_.back().get(), static_cast<std::uint32_t>(frame.size())});
    }
    applier_.stage(header, records, nullptr);
  }
  StateDigest apply(Direction direction = Direction::kForward) {
    applier_.apply(direction, nullptr);
    return sum(applier_.digest_changes());
  }
  StateDigest restore() {
    applier_.restore(nullptr);
    return sum(applier_.digest_changes());
  }
  StateDigest digest() { return sum(applier_.digests(0, table_.size(), nullptr)); }
  TensorState state() const {
    TensorState out;
    for (std::size_t t = 0; t < table_.size(); ++t) out.push_back(live_.bytes(t));
    return out;
  }
  cuda::DeviceApplier& applier() { return applier_; }
  /// Overwrites the payloads of the staged frames.
  void damage() {
    for (std::size_t f = 0; f < storage_.size(); ++f) {
      const std::size_t skipped = kFramePrefix + kGroupBytes + kBlockEntryBytes;
      std::memset(storage_[f].get() + skipped, 0xFF, sizes_[f] - skipped);
    }
  }

 private:
  std::vector<TensorRef> tensors() {
    std::vector<TensorRef> out;
    for (std::size_t t = 0; t < table_.size(); ++t) out.push_back(ref_to(table_[t], live_[t], 0));
    return out;
  }

  const TensorTable& table_;
  DeviceState live_;
  cuda::DeviceApplier applier_;
  std::vector<SharedBytes> storage_;
  std::vector<std::size_t> sizes_;
};

/// Returns all between header, table and commit: an altered one need not look like a frame.
std::vector<Bytes> frames_of(const std::vector<Bytes>& records);
StateDigest digest_of(const TensorTable& table, const TensorState& state);
StateDigest minus(StateDigest a, const StateDigest& b);

/// Returns the options of an applier that keeps the entries of any delta, or of none.
cuda::DeviceApplierOptions with_entries(bool kept);

/// Applies the delta forward, back by the undo record, forward, back by the inverse; compares bytes and digests each
/// time.
void expect_applies(const RandomDelta& delta, std::size_t skew, bool entries);

/// Applies the delta to `state`, which is of no use after an error; returns the code of the error.
std::optional<ErrorCode> apply_on_cpu(const std::vector<Bytes>& records, const TensorTable& table, TensorState& state);

struct Decisions {
  int refused = 0;
  int applied = 0;
};

/// Compares decision and result with the CPU's; an input error must have written nothing.
void expect_same_decision(const std::vector<Bytes>& records, const TensorTable& table, const TensorState& base,
                          Decisions& decisions);

}  // namespace sparsecast::test
