// SPDX-License-Identifier: Apache-2.0
#include "support/training_model.hpp"

#include <bit>
#include <cmath>
#include <cstring>

namespace sparsecast::test {
namespace {

/// Nearly normal: the sum of four uniform numbers, scaled to variance 1.
float noise(Random& random) {
  double sum = -2.0;
  for (int i = 0; i < 4; ++i) sum += random.unit();
  return static_cast<float>(sum * std::sqrt(3.0));
}

std::uint16_t to_bf16(float value) {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  return static_cast<std::uint16_t>((bits + 0x7FFFU + ((bits >> 16) & 1U)) >> 16);
}

std::vector<TensorSpec> specs_of(std::uint64_t width) {
  return {{"embed.weight", DType::kBF16, {2 * width, width}},
          {"layers.0.attention.weight", DType::kBF16, {width, width}},
          {"layers.0.mlp.weight", DType::kBF16, {width, 3 * width}},
          {"layers.0.scale", DType::kF32, {width}},
          {"step", DType::kI64, {}}};
}

}  // namespace

std::vector<MutableBytes> tensor_views(Storage& storage) { return {storage.begin(), storage.end()}; }

std::vector<ConstBytes> const_tensor_views(const Storage& storage) { return {storage.begin(), storage.end()}; }

TrainingModel::TrainingModel(std::uint64_t seed, std::uint64_t width)
    : random_(seed), table_(std::make_shared<const TensorTable>(specs_of(width))) {
  for (const TensorSpec& spec : *table_) {
    weights_.emplace_back(spec.bytes());
    Optimizer& optimizer = optimizers_.emplace_back();
    if (spec.dtype == DType::kI64) continue;
    const std::uint64_t count = spec.elements();
    optimizer.first.assign(count, 0.0F);
    optimizer.second.assign(count, 0.0F);
    for (std::uint64_t i = 0; i < count; ++i) {
      optimizer.master.push_back(0.02F * noise(random_) * std::exp(noise(random_)));
      optimizer.persistent.push_back(noise(random_));
    }
  }
  cast();
}

std::vector<std::span<const float>> TrainingModel::masters() const {
  std::vector<std::span<const float>> masters;
  for (std::size_t t = 0; t < table_->size(); ++t) {
    const bool bf16 = (*table_)[t].dtype == DType::kBF16;
    masters.push_back(bf16 ? std::span<const float>(optimizers_[t].master) : std::span<const float>());
  }
  return masters;
}

void TrainingModel::train_masters(float learning_rate) {
  constexpr float kBeta1 = 0.9F;
  constexpr float kBeta2 = 0.95F;
  constexpr float kDecay = 0.01F;
  ++step_;
  const float correct1 = 1.0F - std::pow(kBeta1, static_cast<float>(step_));
  const float correct2 = 1.0F - std::pow(kBeta2, static_cast<float>(step_));
  for (Optimizer& o : optimizers_) {
    for (std::size_t i = 0; i < o.master.size(); ++i) {
      const float gradient = 0.3F * o.persistent[i] + noise(random_);
      o.first[i] = kBeta1 * o.first[i] + (1.0F - kBeta1) * gradient;
      o.second[i] = kBeta2 * o.second[i] + (1.0F - kBeta2) * gradient * gradient;
      const float update = (o.first[i] / correct1) / (std::sqrt(o.second[i] / correct2) + 1e-8F);
      o.master[i] -= learning_rate * (update + kDecay * o.master[i]);
    }
  }
}

void TrainingModel::cast() {
  for (std::size_t t = 0; t < table_->size(); ++t) {
    const Optimizer& optimizer = optimizers_[t];
    std::byte* const out = weights_[t].data();
    switch ((*table_)[t].dtype) {
      case DType::kBF16:
        for (std::size_t i = 0; i < optimizer.master.size(); ++i) {
          const std::uint16_t bits = to_bf16(optimizer.master[i]);
          std::memcpy(out + 2 * i, &bits, sizeof bits);
        }
        break;
      case DType::kF32:
        std::memcpy(out, optimizer.master.data(), weights_[t].size());
        break;
      default:
        const std::int64_t steps = step_;
        std::memcpy(out, &steps, sizeof steps);
    }
  }
}

void TrainingModel::train(float learning_rate) {
  train_masters(learning_rate);
  cast();
}

void TrainingModel::jump() {
  for (std::size_t t = 0; t < table_->size(); ++t) {
    const std::size_t step = element_size((*table_)[t].dtype);
    for (std::size_t i = 0; i < weights_[t].size(); i += step) weights_[t][i] ^= std::byte{0x15};
  }
}

std::uint64_t count_wrong(const TensorTable& table, const Storage& found, const Storage& expected) {
  std::uint64_t wrong = 0;
  for (std::size_t t = 0; t < table.size(); ++t) {
    const std::size_t size = element_size(table[t].dtype);
    for (std::size_t i = 0; i < expected[t].size(); i += size) {
      wrong += std::memcmp(found[t].data() + i, expected[t].data() + i, size) != 0 ? 1 : 0;
    }
  }
  return wrong;
}

}  // namespace sparsecast::test
