// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include "common/checkpoint_series.hpp"
#include "sparsecast_perf/weight_source.hpp"

namespace sparsecast::perf {
namespace {

class CheckpointDirectory : public WeightSource {
 public:
  explicit CheckpointDirectory(const std::string& directory)
      : directory_(directory), series_(FileSystem::posix(), directory) {
    for (const TensorSpec& spec : series_.table()) storage_.emplace_back(spec.bytes());
    series_.load_first(weights());
  }

  const TensorTable& table() const override { return series_.table(); }
  std::vector<MutableBytes> weights() override { return {storage_.begin(), storage_.end()}; }

  std::string next(bool) override {
    if (step_ == series_.steps()) return {};
    series_.advance(++step_, weights());
    return series_.name(step_);
  }

  std::string describe() const override { return fmt::format("{} ({} checkpoints)", directory_, series_.steps() + 1); }

 private:
  std::string directory_;
  bench::CheckpointSeries series_;
  std::size_t step_ = 0;
  std::vector<std::vector<std::byte>> storage_;
};

}  // namespace

std::unique_ptr<WeightSource> open_checkpoints(const std::string& directory) {
  return std::make_unique<CheckpointDirectory>(directory);
}

}  // namespace sparsecast::perf
