// SPDX-License-Identifier: Apache-2.0
#include "common/training.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cmath>

#include "codec/codec_common.hpp"
#include "common/random.hpp"
#include "core/parallel.hpp"
#include "core/word.hpp"
#include "sparsecast/error.hpp"

namespace sparsecast::bench {
namespace {

/// Uses of random streams; each has streams of its own.
enum Purpose : std::uint64_t { kWeights, kRowScale, kColumnScale, kPersistent, kNoise, kTokens, kLoudness };

constexpr std::uint64_t kTokensPerStep = 4096;
constexpr std::uint64_t kRowsPerTask = 64;

TensorTable transformer(const TrainingOptions& options) {
  if (options.layers < 1 || options.width < 1 || options.vocabulary < 1) {
    throw Error(ErrorCode::kUsage, "a model needs layers, a width and a vocabulary");
  }
  const std::uint64_t width = options.width;
  std::vector<TensorSpec> specs;
  const auto add = [&](const std::string& name, std::vector<std::uint64_t> shape) {
    specs.push_back({name, DType::kBF16, std::move(shape)});
  };
  add("model.embed_tokens.weight", {options.vocabulary, width});
  for (std::uint64_t layer = 0; layer < options.layers; ++layer) {
    const std::string prefix = fmt::format("model.layers.{}.", layer);
    add(prefix + "input_layernorm.weight", {width});
    add(prefix + "self_attn.qkv_proj.weight", {3 * width, width});
    add(prefix + "self_attn.o_proj.weight", {width, width});
    add(prefix + "post_attention_layernorm.weight", {width});
    add(prefix + "mlp.up_proj.weight", {4 * width, width});
    add(prefix + "mlp.down_proj.weight", {width, 4 * width});
  }
  add("model.norm.weight", {width});
  return TensorTable(std::move(specs));
}

}  // namespace

struct Training::Parameter {
  std::uint64_t rows = 1;
  std::uint64_t columns = 0;
  bool embedding = false;
  std::vector<float> master;
  std::vector<float> first;       ///< Adam's m.
  std::vector<float> second;      ///< Adam's v.
  std::vector<float> persistent;  ///< Part of the gradient that stays from step to step.
  std::vector<float> row_scale;   ///< Scales of the gradient.
  std::vector<float> column_scale;
};

/// Factors that all weights of one step share.
struct Training::StepScales {
  float first_correction;
  float second_correction;
  float decay;
  std::vector<float> loudness;  ///< By tensor.
  std::vector<bool> tokens;     ///< Whether the batch has the token, by row of the embedding.
};

Training::Training(const TrainingOptions& options) : Training(transformer(options), options) {}

Training::Training(TensorTable table, const TrainingOptions& options)
    : options_(options), table_(std::move(table)), parameters_(table_.size()) {
  for (std::size_t i = 0; i < parameters_.size(); ++i) make_parameter(parameters_[i], i);
  for (int i = 0; i < options_.burn_in; ++i) step();
}

Training::~Training() = default;

void Training::make_parameter(Parameter& parameter, std::size_t index) const {
  const TensorSpec& spec = table_[index];
  const bool matrix = spec.shape.size() == 2;
  parameter.rows = matrix ? spec.shape[0] : 1;
  parameter.columns = spec.shape.back();
  parameter.embedding = spec.name.find("embed") != std::string::npos;
  for (std::vector<float>* array : {&parameter.master, &parameter.first, &parameter.second, &parameter.persistent}) {
    array->resize(spec.elements());
  }
  const auto scales = [&](std::uint64_t count, Purpose purpose) {
    RandomStream random(options_.seed, purpose, index);
    std::vector<float> drawn(count);
    for (float& scale : drawn) scale = static_cast<float>(std::exp(0.7 * random.normal()));
    return drawn;
  };
  parameter.row_scale = scales(parameter.rows, kRowScale);
  parameter.column_scale = scales(parameter.columns, kColumnScale);
  // Inputs of variance 1 give outputs of variance 1, as in trained transformers of all widths.
  const double deviation = 1 / std::sqrt(static_cast<double>(parameter.columns));
  parallel_for(options_.threads, parameter.rows, [&](std::size_t, std::size_t row) {
    RandomStream random(options_.seed, kWeights, index, row);
    RandomStream persistent(options_.seed, kPersistent, index, row);
    const double row_deviation = deviation * std::exp(0.2 * random.normal());
    for (std::uint64_t i = row * parameter.columns; i < (row + 1) * parameter.columns; ++i) {
      const double weight = matrix ? row_deviation * random.heavy_tailed() : 1 + 0.1 * random.normal();
      parameter.master[i] = static_cast<float>(weight);
      parameter.persistent[i] = static_cast<float>(std::sqrt(options_.persistence)) * persistent.noise();
    }
  });
}

/// Draws the tokens of a batch by Zipf's law.
std::vector<bool> Training::draw_tokens() const {
  std::vector<bool> present(static_cast<std::size_t>(options_.vocabulary));
  RandomStream random(options_.seed, kTokens, steps_);
  const double span = std::log(static_cast<double>(present.size()) + 1);
  for (std::uint64_t i = 0; i < kTokensPerStep; ++i) {
    const auto rank = static_cast<std::size_t>(std::exp(span * random.open_unit()) - 1);
    present[std::min(rank, present.size() - 1)] = true;
  }
  return present;
}

/// Return one over the bias correction of m, and one over the square root of that of v.
float Training::first_correction() const { return static_cast<float>(1 / (1 - std::pow(options_.beta1, steps_))); }
float Training::second_correction() const {
  return static_cast<float>(1 / std::sqrt(1 - std::pow(options_.beta2, steps_)));
}

float Training::adam_step(const Parameter& parameter, std::size_t i, float first_correction,
                          float second_correction) const {
  return -parameter.first[i] * first_correction /
         (std::sqrt(parameter.second[i]) * second_correction + static_cast<float>(options_.epsilon));
}

void Training::move_row(Parameter& parameter, std::size_t index, std::uint64_t row, const StepScales& scales) const {
  RandomStream random(options_.seed, kNoise, index, row, steps_);
  const bool reached = !parameter.embedding || scales.tokens[row];
  const float row_scale = reached ? parameter.row_scale[row] * scales.loudness[index] : 0.0F;
  const auto noise = static_cast<float>(std::sqrt(1 - options_.persistence));
  const auto rate = static_cast<float>(options_.learning_rate);
  const auto beta1 = static_cast<float>(options_.beta1);
  const auto beta2 = static_cast<float>(options_.beta2);
  for (std::uint64_t c = 0; c < parameter.columns; ++c) {
    const std::size_t i = row * parameter.columns + c;
    const float gradient = row_scale * parameter.column_scale[c] * (parameter.persistent[i] + noise * random.noise());
    parameter.first[i] = beta1 * parameter.first[i] + (1 - beta1) * gradient;
    parameter.second[i] = beta2 * parameter.second[i] + (1 - beta2) * gradient * gradient;
    parameter.master[i] = parameter.master[i] * scales.decay +
                          rate * adam_step(parameter, i, scales.first_correction, scales.second_correction);
  }
}

void Training::step() {
  ++steps_;
  StepScales scales;
  scales.first_correction = first_correction();
  scales.second_correction = second_correction();
  scales.decay = static_cast<float>(1 - options_.learning_rate * options_.weight_decay);
  scales.tokens = draw_tokens();
  RandomStream random(options_.seed, kLoudness, steps_);
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    scales.loudness.push_back(static_cast<float>(1e-3 * std::exp(0.3 * random.normal())));
  }
  for (std::size_t index = 0; index < parameters_.size(); ++index) {
    Parameter& parameter = parameters_[index];
    const std::uint64_t tasks = (parameter.rows + kRowsPerTask - 1) / kRowsPerTask;
    parallel_for(options_.threads, tasks, [&](std::size_t, std::size_t task) {
      const std::uint64_t end = std::min((task + 1) * kRowsPerTask, parameter.rows);
      for (std::uint64_t row = task * kRowsPerTask; row < end; ++row) move_row(parameter, index, row, scales);
    });
  }
}

std::vector<float> Training::unit_step(std::size_t tensor) const {
  const Parameter& parameter = parameters_.at(tensor);
  std::vector<float> steps(parameter.master.size());
  const float first = first_correction();
  const float second = second_correction();
  for (std::size_t i = 0; i < steps.size(); ++i) steps[i] = adam_step(parameter, i, first, second);
  return steps;
}

void Training::cast(std::span<const MutableBytes> weights) const {
  for (std::size_t t = 0; t < parameters_.size(); ++t) {
    const std::vector<float>& master = parameters_[t].master;
    for (std::size_t i = 0; i < master.size(); ++i) {
      store_word(weights[t].data(), i, bf16_from_f32_bits(std::bit_cast<std::uint32_t>(master[i])));
    }
  }
}

std::vector<std::span<const float>> Training::masters() const {
  std::vector<std::span<const float>> masters;
  for (const Parameter& parameter : parameters_) masters.emplace_back(parameter.master);
  return masters;
}

}  // namespace sparsecast::bench
