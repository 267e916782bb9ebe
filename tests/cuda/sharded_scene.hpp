// SPDX-License-Identifier: Apache-2.0
#pragma once

// Ranks of a small trainer and its engines, as threads, with local tensors in host memory or on a device.

#include <gtest/gtest.h>

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "cuda/common/device_memory.hpp"
#include "cuda/common/streams.hpp"
#include "sparsecast/layout.hpp"
#include "sparsecast/sharded.hpp"
#include "support/hashed_weights.hpp"
#include "tests/cuda/device_access.hpp"

namespace sparsecast::test {

/// Local tensors of a rank in device memory, and the last copy of them on the host.
class DeviceStorage {
 public:
  explicit DeviceStorage(const LocalStorage& tensors);
  std::vector<void*> pointers() const;
  void write(const LocalStorage& tensors);
  LocalStorage read() const;

 private:
  std::vector<cuda::DeviceMemory> memory_;
  std::vector<std::size_t> sizes_;
};

/// Memory of the weights, and codecs of the deltas.
struct ShardedSetting {
  bool trainer_on_device = true;
  bool engine_on_device = true;
  ValueCodec values = ValueCodec::kXor;
  bool stream_of_the_caller = false;
  bool same_cut = true;  ///< Whether both engines shard columns; otherwise the second shards rows, so that the trainer
                         ///< has layers of snapshots.
  bool pinned_snapshot = false;
};

/// The settings under which syncs are tested, and a test's name for each.
std::vector<ShardedSetting> sharded_settings();
std::string name_of_setting(const testing::TestParamInfo<ShardedSetting>& setting);

/// Two trainer ranks that shard rows, and two engines of two ranks that shard columns, pad rows, and transpose experts,
/// or one of them: world ranks 0, 1; 2, 3; 4, 5.
struct ShardedScene {
  static constexpr int kRanks = 6;
  explicit ShardedScene(ShardedSetting with);

  ShardedSetting setting;
  std::shared_ptr<const Layout> trainer;
  std::shared_ptr<const Layout> engine_a;
  std::shared_ptr<const Layout> engine_b;
  HashedWeights weights{11, 0.03};
};

/// One rank of the scene, for the thread that made it.
class SceneRank {
 public:
  SceneRank(const ShardedScene& scene, int rank);

  void regroup(std::shared_ptr<ControlChannel> control, const GroupOpener& open = open_control_groups());
  ShardedReport sync();
  void train(std::uint64_t step);
  /// Makes a rank of an engine that holds no version, in the same memory.
  void forget();
  /// Moves a rank of an engine to the other kind of memory, with its contents.
  void move();
  /// Flips bits of all its tensors.
  void spoil(std::byte bits);
  std::uint64_t version() const { return publisher_ ? publisher_->version() : subscriber_->version(); }
  /// Returns the number of elements that differ from the step, and of changed bytes of the padding.
  std::uint64_t wrong(std::uint64_t step) const;
  std::optional<ShardedPublisher>& publisher() { return publisher_; }
  std::optional<ShardedSubscriber>& subscriber() { return subscriber_; }

 private:
  void publish();
  void subscribe(bool needs_anchor);
  void write();
  DeviceOptions device() const;

  const LateCopies late_;
  const ShardedScene& scene_;
  int rank_;
  std::size_t place_;
  bool on_device_;
  std::shared_ptr<const Layout> layout_;
  LocalStorage host_;
  std::optional<DeviceStorage> device_;
  std::unique_ptr<cuda::Stream> stream_;
  std::optional<ShardedPublisher> publisher_;
  std::optional<ShardedSubscriber> subscriber_;
};

}  // namespace sparsecast::test
