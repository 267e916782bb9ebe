// A training run in miniature. Weights start heavy-tailed (Student's t with 4 degrees of freedom, scaled as transformers
// initialise them), gradients are a persistent part plus fresh noise, and AdamW moves fp32 masters that are cast to
// bf16. Nothing here decides how many bf16 bits flip: that follows from the learning rate and the weights' sizes.

#include <fmt/format.h>

#include <cmath>

#include "codec/codec_common.hpp"
#include "core/word.hpp"
#include "sparsecast_perf/weight_source.hpp"

namespace sparsecast::perf {
namespace {

/// splitmix64 (Steele, Lea, Flood 2014).
class Random {
 public:
  explicit Random(std::uint64_t seed) : state_(seed) {}

  std::uint64_t bits() {
    std::uint64_t z = (state_ += 0x9E3779B97F4A7C15ULL);
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9ULL;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBULL;
    return z ^ (z >> 31);
  }
  /// Close to normal, mean 0 and variance 1: the sum of four uniform numbers (Irwin-Hall), fast enough for every gradient.
  float normal() {
    const std::uint64_t word = bits();
    const auto sum = static_cast<float>((word & 0xFFFF) + (word >> 16 & 0xFFFF) + (word >> 32 & 0xFFFF) + (word >> 48));
    return (sum - 131070.0F) * (1.7320508F / 65536.0F);
  }
  /// Student's t with 4 degrees of freedom.
  float heavy_tailed() {
    const float a = normal();
    const float b = normal();
    const float c = normal();
    const float d = normal();
    const float chi_square = a * a + b * b + c * c + d * d;
    return normal() / std::sqrt(chi_square / 4.0F + 1e-3F);
  }

 private:
  std::uint64_t state_;
};

struct Parameter {
  float scale = 0;  ///< Of the gradient: layers differ.
  std::vector<float> master;
  std::vector<float> first_moment;
  std::vector<float> second_moment;
  std::vector<float> persistent;
  std::vector<std::byte> bf16;
};

class Synthetic : public WeightSource {
 public:
  explicit Synthetic(const SyntheticOptions& options) : options_(options), random_(options.seed) {
    std::vector<TensorSpec> specs;
    const std::uint64_t d = options.width;
    const auto add = [&](const std::string& name, std::vector<std::uint64_t> shape) {
      specs.push_back({name, DType::kBF16, std::move(shape)});
    };
    add("embed.weight", {options.vocabulary, d});
    for (std::uint64_t layer = 0; layer < options.layers; ++layer) {
      const std::string prefix = fmt::format("layers.{:02}.", layer);
      add(prefix + "norm1.weight", {d});
      add(prefix + "qkv.weight", {3 * d, d});
      add(prefix + "out.weight", {d, d});
      add(prefix + "norm2.weight", {d});
      add(prefix + "up.weight", {4 * d, d});
      add(prefix + "down.weight", {d, 4 * d});
    }
    add("norm.weight", {d});
    add("head.weight", {options.vocabulary, d});
    table_ = TensorTable(std::move(specs));
    for (const TensorSpec& spec : table_) parameters_.push_back(initialise(spec));
  }

  const TensorTable& table() const override { return table_; }
  std::vector<TensorBytes> weights() override {
    std::vector<TensorBytes> views;
    for (Parameter& parameter : parameters_) views.emplace_back(parameter.bf16);
    return views;
  }
  std::vector<std::span<const float>> masters() const override {
    std::vector<std::span<const float>> views;
    for (const Parameter& parameter : parameters_) views.emplace_back(parameter.master);
    return views;
  }

  std::string next(bool cast_too) override {
    ++step_;
    for (Parameter& parameter : parameters_) {
      update(parameter);
      if (cast_too) cast(parameter);
    }
    return fmt::format("{}", step_);
  }

  std::string describe() const override {
    return fmt::format("synthetic AdamW: layers {}, width {}, vocabulary {}, learning rate {:g}, seed {} (density is an outcome)",
                       options_.layers, options_.width, options_.vocabulary, options_.learning_rate, options_.seed);
  }

 private:
  Parameter initialise(const TensorSpec& spec) {
    Parameter parameter;
    const std::uint64_t n = spec.elements();
    const bool matrix = spec.shape.size() == 2;
    const float size = matrix ? 0.8F / std::sqrt(static_cast<float>(spec.shape[1])) : 0.02F;
    parameter.scale = std::exp(1.5F * random_.normal());
    parameter.master.resize(n);
    parameter.first_moment.resize(n);
    parameter.second_moment.resize(n);
    parameter.persistent.resize(n);
    parameter.bf16.resize(n * 2);
    for (std::uint64_t i = 0; i < n; ++i) {
      parameter.master[i] = (matrix ? 0.0F : 1.0F) + size * random_.heavy_tailed();
      parameter.persistent[i] = random_.normal();
      // Late in training the second moment is near the gradient's variance.
      parameter.second_moment[i] = parameter.scale * parameter.scale;
    }
    cast(parameter);
    return parameter;
  }

  void update(Parameter& parameter) {
    constexpr float kBeta1 = 0.9F;
    constexpr float kBeta2 = 0.999F;
    constexpr float kEpsilon = 1e-8F;
    const auto rate = static_cast<float>(options_.learning_rate);
    const float keep = 1.0F - rate * static_cast<float>(options_.weight_decay);
    const float persistent = std::sqrt(static_cast<float>(options_.persistence)) * parameter.scale;
    const float noise = std::sqrt(1.0F - static_cast<float>(options_.persistence)) * parameter.scale;
    const float correction = 1.0F / (1.0F - std::pow(kBeta1, static_cast<float>(step_)));
    for (std::size_t i = 0; i < parameter.master.size(); ++i) {
      const float gradient = persistent * parameter.persistent[i] + noise * random_.normal();
      float& first = parameter.first_moment[i];
      float& second = parameter.second_moment[i];
      first = kBeta1 * first + (1.0F - kBeta1) * gradient;
      second = kBeta2 * second + (1.0F - kBeta2) * gradient * gradient;
      parameter.master[i] = keep * parameter.master[i] - rate * correction * first / (std::sqrt(second) + kEpsilon);
    }
  }

  static void cast(Parameter& parameter) {
    const auto* masters = reinterpret_cast<const std::byte*>(parameter.master.data());
    for (std::size_t i = 0; i < parameter.master.size(); ++i) {
      store_word(parameter.bf16.data(), i, bf16_from_f32_bits(load_word<std::uint32_t>(masters, i)));
    }
  }

  SyntheticOptions options_;
  Random random_;
  TensorTable table_;
  std::vector<Parameter> parameters_;
  int step_ = 0;
};

}  // namespace

std::unique_ptr<WeightSource> make_synthetic(const SyntheticOptions& options) {
  return std::make_unique<Synthetic>(options);
}

}  // namespace sparsecast::perf
