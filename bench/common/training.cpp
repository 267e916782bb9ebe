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

/// What a random stream is for, so that no two uses share one.
enum Purpose : std::uint64_t { kWeights, kRowScale, kColumnScale, kPersistent, kNoise, kTokens, kLoudness };

constexpr std::uint64_t kTokensPerStep = 4096;
constexpr std::uint64_t kRowsPerTask = 64;

/// Such a width, a multiple of 64, that the model has about as many parameters as asked for.
std::uint64_t width_for(const TrainingOptions& options) {
  const double a = 12.0 * options.layers;
  const double b = options.vocabulary;
  const double width = (-b + std::sqrt(b * b + 4 * a * static_cast<double>(options.parameters))) / (2 * a);
  return std::max<std::uint64_t>(64, static_cast<std::uint64_t>(width / 64 + 0.5) * 64);
}

TensorTable make_table(const TrainingOptions& options) {
  const std::uint64_t width = width_for(options);
  std::vector<TensorSpec> specs;
  const auto add = [&](const std::string& name, std::vector<std::uint64_t> shape) {
    specs.push_back({name, DType::kBF16, std::move(shape)});
  };
  add("model.embed_tokens.weight", {static_cast<std::uint64_t>(options.vocabulary), width});
  for (int layer = 0; layer < options.layers; ++layer) {
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

/// Standard deviation of a matrix after training, as found in transformers of all sizes: the outputs of residual
/// branches are smaller the deeper the model is.
double weight_deviation(const std::string& name, int layers) {
  const bool residual = name.ends_with("o_proj.weight") || name.ends_with("down_proj.weight");
  return residual ? 0.02 / std::sqrt(2.0 * layers) : 0.02;
}

void check(const TrainingOptions& options) {
  if (options.layers < 1 || options.vocabulary < 1 || options.parameters < 1) {
    throw Error(ErrorCode::kUsage, "a model needs layers, a vocabulary and parameters");
  }
}

}  // namespace

struct Training::Parameter {
  std::uint64_t rows = 1;
  std::uint64_t columns = 0;
  bool embedding = false;
  std::vector<float> master;
  std::vector<float> first;        ///< Adam's m.
  std::vector<float> second;       ///< Adam's v.
  std::vector<float> persistent;   ///< Part of the gradient that stays.
  std::vector<float> row_scale;    ///< Of the gradient.
  std::vector<float> column_scale;
};

/// What is the same for all weights of one step.
struct Training::StepScales {
  float step_size;         ///< Learning rate over the bias correction of m.
  float second_correction; ///< Square root of the bias correction of v, inverted.
  float decay;
  std::vector<float> loudness;   ///< By tensor.
  std::vector<bool> tokens;      ///< By row of the embedding: is it in the batch?
};

Training::Training(const TrainingOptions& options) : options_(options) {
  check(options_);
  table_ = std::make_shared<const TensorTable>(make_table(options_));
  parameters_.resize(table_->size());
  for (std::size_t i = 0; i < parameters_.size(); ++i) make_parameter(parameters_[i], i);
  for (int i = 0; i < options_.burn_in; ++i) step();
}

Training::~Training() = default;

void Training::make_parameter(Parameter& parameter, std::size_t index) const {
  const TensorSpec& spec = (*table_)[index];
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
  const double deviation = weight_deviation(spec.name, options_.layers);
  parallel_for(options_.threads, parameter.rows, [&](std::size_t, std::size_t row) {
    RandomStream random(options_.seed, kWeights, index, row);
    RandomStream persistent(options_.seed, kPersistent, index, row);
    const double row_deviation = deviation * std::exp(0.2 * random.normal());
    for (std::uint64_t i = row * parameter.columns; i < (row + 1) * parameter.columns; ++i) {
      const double weight = matrix ? row_deviation * random.heavy_tailed() : 1 + 0.1 * random.normal();
      parameter.master[i] = static_cast<float>(weight);
      parameter.persistent[i] = static_cast<float>(options_.persistence) * persistent.noise();
    }
  });
}

/// Tokens of a batch, by Zipf's law.
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

void Training::move_row(Parameter& parameter, std::size_t index, std::uint64_t row, const StepScales& scales) const {
  const std::uint64_t begin = row * parameter.columns;
  RandomStream random(options_.seed, kNoise, index, row, steps_);
  const bool reached = !parameter.embedding || scales.tokens[row];
  const float row_scale = reached ? parameter.row_scale[row] * scales.loudness[index] : 0.0F;
  const auto beta1 = static_cast<float>(options_.beta1);
  const auto beta2 = static_cast<float>(options_.beta2);
  const auto epsilon = static_cast<float>(options_.epsilon);
  float* master = parameter.master.data() + begin;
  float* first = parameter.first.data() + begin;
  float* second = parameter.second.data() + begin;
  const float* persistent = parameter.persistent.data() + begin;
  for (std::uint64_t c = 0; c < parameter.columns; ++c) {
    const float gradient = row_scale * parameter.column_scale[c] * (persistent[c] + random.noise());
    first[c] = beta1 * first[c] + (1 - beta1) * gradient;
    second[c] = beta2 * second[c] + (1 - beta2) * gradient * gradient;
    const float denominator = std::sqrt(second[c]) * scales.second_correction + epsilon;
    master[c] = master[c] * scales.decay - scales.step_size * first[c] / denominator;
  }
}

void Training::step() {
  ++steps_;
  StepScales scales;
  scales.step_size = static_cast<float>(options_.learning_rate / (1 - std::pow(options_.beta1, steps_)));
  scales.second_correction = static_cast<float>(1 / std::sqrt(1 - std::pow(options_.beta2, steps_)));
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

void Training::cast(std::span<const TensorBytes> weights) const {
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
