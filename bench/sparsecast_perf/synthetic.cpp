// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include "common/training.hpp"
#include "sparsecast_perf/weight_source.hpp"

namespace sparsecast::perf {
namespace {

/// Ranks are idle while the publisher trains.
bench::TrainingOptions with_all_cores(bench::TrainingOptions options) {
  options.threads = 0;
  return options;
}

class Synthetic : public WeightSource {
 public:
  explicit Synthetic(const bench::TrainingOptions& options) : options_(with_all_cores(options)), training_(options_) {
    for (const TensorSpec& spec : training_.table()) storage_.emplace_back(spec.bytes());
    training_.cast(weights());
  }

  const TensorTable& table() const override { return training_.table(); }
  std::vector<MutableBytes> weights() override { return {storage_.begin(), storage_.end()}; }
  std::vector<std::span<const float>> masters() const override { return training_.masters(); }

  std::string next(bool cast) override {
    training_.step();
    if (cast) training_.cast(weights());
    return fmt::format("{}", ++step_);
  }

  std::string describe() const override {
    return fmt::format(
        "synthetic AdamW: layers {}, width {}, vocabulary {}, learning rate {:g}, seed {} (density is an outcome)",
        options_.layers, options_.width, options_.vocabulary, options_.learning_rate, options_.seed);
  }

 private:
  bench::TrainingOptions options_;
  bench::Training training_;
  std::vector<std::vector<std::byte>> storage_;
  int step_ = 0;
};

}  // namespace

std::unique_ptr<WeightSource> make_synthetic(const bench::TrainingOptions& options) {
  return std::make_unique<Synthetic>(options);
}

}  // namespace sparsecast::perf
