// SPDX-License-Identifier: Apache-2.0
#include "tests/cuda/sharded_scene.hpp"

#include "cuda/common/device_stream.hpp"
#include "tests/cuda/device_access.hpp"

namespace sparsecast::test {
namespace {

constexpr std::chrono::milliseconds kTimeout = std::chrono::seconds(60);
constexpr std::uint32_t kExperts = 2;

LayoutBuilder tensors_over(const std::string& axis) {
  LayoutBuilder builder({Mesh{{axis, 2}}});
  // More than a tile a part.
  builder.tensor({"a.weight", DType::kBF16, {1201, 60}});
  builder.tensor({"b.weight", DType::kF32, {48, 20}});
  builder.tensor({"head.weight", DType::kBF16, {95, 16}});
  for (std::uint32_t e = 0; e < kExperts; ++e) {
    builder.tensor({"expert." + std::to_string(e) + ".weight", DType::kBF16, {14, 30}});
  }
  return builder;
}

std::shared_ptr<const Layout> cut_rows(const std::string& axis) {
  LayoutBuilder builder = tensors_over(axis);
  for (const char* name : {"a.weight", "b.weight", "head.weight", "expert.0.weight", "expert.1.weight"}) {
    builder.add(name, {name}, Cut::fsdp2({axis}));
  }
  return std::make_shared<const Layout>(builder.build());
}

std::shared_ptr<const Layout> cut_columns() {
  LayoutBuilder builder = tensors_over("tp");
  for (const char* name : {"a.weight", "b.weight"}) builder.add(name, {name}, Cut::row_parallel({"tp"}));
  builder.add("head.weight", {"head.weight"}, Cut::vocab_parallel({"tp"}, 64));
  Experts experts = Experts::in_order({"tp"}, kExperts);
  experts.transposed = true;
  builder.add_experts("experts", {"expert.{expert}.weight"}, Cut::replicate(), experts);
  return std::make_shared<const Layout>(builder.build());
}

}  // namespace

std::vector<ShardedSetting> sharded_settings() {
  return {{true, true, ValueCodec::kXor, false},
          {true, true, ValueCodec::kRaw, true, false},
          {true, false, ValueCodec::kUlp, false, false},
          {false, true, ValueCodec::kXor, true},
          {true, true, ValueCodec::kUlp, false, false, true}};
}

std::string name_of_setting(const testing::TestParamInfo<ShardedSetting>& setting) {
  const ShardedSetting& s = setting.param;
  return std::string(s.pinned_snapshot ? "Pinned" : "") + (s.trainer_on_device ? "Device" : "Host") + "To" +
         (s.engine_on_device ? "Device" : "Host") + "By" + std::string(to_string(s.values));
}

DeviceStorage::DeviceStorage(const LocalStorage& tensors) {
  const cuda::DeviceGuard guard(cuda::current_device());
  for (const auto& tensor : tensors) {
    memory_.emplace_back(tensor.size());
    sizes_.push_back(tensor.size());
  }
  write(tensors);
}

std::vector<void*> DeviceStorage::pointers() const {
  std::vector<void*> pointers;
  for (const cuda::DeviceMemory& memory : memory_) pointers.push_back(memory.as());
  return pointers;
}

void DeviceStorage::write(const LocalStorage& tensors) {
  const cuda::DeviceGuard guard(cuda::current_device());
  for (std::size_t t = 0; t < tensors.size(); ++t) {
    cuda::copy_async(memory_[t].as(), tensors[t].data(), sizes_[t], cudaMemcpyHostToDevice, nullptr);
  }
  cuda::HostWait(kTimeout).wait(nullptr, "take the weights");
}

LocalStorage DeviceStorage::read() const {
  const cuda::DeviceGuard guard(cuda::current_device());
  LocalStorage tensors;
  for (std::size_t t = 0; t < memory_.size(); ++t) {
    tensors.push_back(sizes_[t] == 0 ? LocalStorage::value_type() : read_device(memory_[t].as(), sizes_[t], nullptr));
  }
  return tensors;
}

ShardedScene::ShardedScene(ShardedSetting with)
    : setting(with),
      trainer(cut_rows("dp")),
      engine_a(cut_columns()),
      engine_b(with.same_cut ? engine_a : cut_rows("tp")) {}

SceneRank::SceneRank(const ShardedScene& scene, int rank)
    : scene_(scene),
      rank_(rank),
      place_(static_cast<std::size_t>(rank) % 2),
      on_device_(rank < 2 ? scene.setting.trainer_on_device : scene.setting.engine_on_device),
      layout_(rank < 2 ? scene.trainer : (rank < 4 ? scene.engine_a : scene.engine_b)),
      host_(scene.weights.make(*layout_, place_, 0)) {
  if (on_device_) device_.emplace(host_);
  if (on_device_ && scene.setting.stream_of_the_caller) stream_ = std::make_unique<cuda::Stream>();
  if (rank_ < 2) {
    publish();
  } else {
    subscribe(false);
  }
}

void SceneRank::publish() {
  ShardedOptions options;
  options.encode.values = scene_.setting.values;
  options.pinned_snapshot = scene_.setting.pinned_snapshot;
  if (on_device_) {
    publisher_.emplace(layout_, place_, refs_to(*layout_, place_, device_->pointers(), cuda::current_device()), options,
                       device());
  } else {
    publisher_.emplace(layout_, place_, refs_of(*layout_, place_, host_), options);
  }
}

DeviceOptions SceneRank::device() const {
  DeviceOptions options;
  options.chunk_bytes = 100'000;
  if (stream_) options.cuda_stream = stream_->get();
  return options;
}

void SceneRank::subscribe(bool needs_anchor) {
  ShardedOptions options;
  options.needs_anchor = needs_anchor;
  const std::string engine = rank_ < 4 ? "a" : "b";
  if (on_device_) {
    subscriber_.emplace(engine, layout_, place_, refs_to(*layout_, place_, device_->pointers(), cuda::current_device()),
                        options, device());
  } else {
    subscriber_.emplace(engine, layout_, place_, refs_of(*layout_, place_, host_), options);
  }
}

void SceneRank::regroup(std::shared_ptr<ControlChannel> control, const GroupOpener& open) {
  if (publisher_) return publisher_->regroup(std::move(control), open, kTimeout);
  subscriber_->regroup(std::move(control), open, kTimeout);
}

ShardedReport SceneRank::sync() { return publisher_ ? publisher_->sync(kTimeout) : subscriber_->sync(kTimeout); }

void SceneRank::train(std::uint64_t step) {
  if (!publisher_) return;
  scene_.weights.train(*layout_, place_, step, host_);
  write();
}

void SceneRank::forget() {
  LocalStorage nothing = scene_.weights.make_empty(*layout_, place_);
  for (std::size_t t = 0; t < nothing.size(); ++t) std::ranges::copy(nothing[t], host_[t].begin());
  write();
  subscribe(true);
}

void SceneRank::move() {
  if (device_) {
    host_ = device_->read();
    subscriber_->replace(layout_, refs_of(*layout_, place_, host_));
    device_.reset();
  } else {
    device_.emplace(host_);
    subscriber_->replace(layout_, refs_to(*layout_, place_, device_->pointers(), cuda::current_device()), device());
  }
}

void SceneRank::spoil(std::byte bits) {
  if (device_) host_ = device_->read();
  for (auto& tensor : host_) {
    for (std::byte& byte : tensor) byte ^= bits;
  }
  write();
}

void SceneRank::write() {
  if (device_) device_->write(host_);
}

std::uint64_t SceneRank::wrong(std::uint64_t step) const {
  return scene_.weights.count_wrong(*layout_, place_, step, device_ ? device_->read() : host_);
}

}  // namespace sparsecast::test
