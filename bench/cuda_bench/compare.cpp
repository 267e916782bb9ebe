// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include "apply_case.hpp"
#include "cases.hpp"
#include "common/clock.hpp"
#include "sync/encoder.hpp"

namespace sparsecast::bench {

TensorTable WeightArray::table() const {
  std::vector<TensorSpec> specs;
  for (std::uint64_t first = 0; first < elements; first += tensor_elements) {
    specs.push_back({fmt::format("w{}", specs.size()), recipe.dtype, {std::min(tensor_elements, elements - first)}});
  }
  return TensorTable(std::move(specs));
}

WeightArray make_weights(Workbench& bench, DType dtype, double gib, double percent) {
  WeightArray weights;
  weights.recipe = make_recipe(dtype, percent / 100, bench.options().seed);
  weights.percent = percent;
  weights.elements = static_cast<std::uint64_t>(gib * 0x1p30) / element_size(dtype) / 4096 * 4096;
  weights.what = fmt::format("{} {:.3g} GiB", to_string(dtype), gib);
  weights.touched = count_touched(weights.elements, weights.recipe, bench.stream());
  return weights;
}

DeltaHeader bench_header(const TensorTable& table, const EncodeOptions& options) {
  DeltaHeader header = make_header(table, options, StreamId{1, 2}, 1, 2, {});
  static_cast<void>(pack_header(header));
  return header;
}

cuda::DeviceEncoderOptions encoder_options(const Workbench& bench, StepTimer& steps) {
  cuda::DeviceEncoderOptions options;
  options.chunk_bytes = bench.options().chunk_mib << 20;
  options.after_step = steps.hook();
  return options;
}

Times time_encoder(Workbench& bench, cuda::DeviceEncoder& encoder, const DeltaHeader& header,
                   const std::function<void()>& reset, StepTimer& steps, cuda::DeviceFrames& frames) {
  const auto encode = [&] {
    encoder.start(bench.stream());
    frames = encoder.finish(header);
  };
  return bench.time(reset, encode, &steps);
}

void add_steps(Workbench& bench, const StepTimer& steps, const ResultLine& whole, std::uint64_t copied) {
  for (const auto& [step, times] : steps.times()) {
    ResultLine row = whole;
    row.phase += "/" + step;
    row.times = times;
    if (step != "detect" && step != "inspect" && step != "validate") row.bytes = 0;
    if (whole.phase == "stage") row.bytes /= 2;  // Each of its steps reads the frames once.
    row.more.clear();
    row.baseline.clear();
    bench.add(std::move(row), copied);
  }
}

void run_compare(Workbench& bench, const WeightArray& weights) {
  const TensorTable table = weights.table();
  const std::size_t size = element_size(weights.recipe.dtype);
  const cuda::DeviceMemory current(weights.bytes());
  const cuda::DeviceMemory snapshot(weights.bytes());
  fill(current.as(), weights.elements, weights.recipe, Version::kNew, bench.stream());
  const auto reset = [&] { fill(snapshot.as(), weights.elements, weights.recipe, Version::kOld, bench.stream()); };

  StepTimer steps(bench.stream());
  const EncodeOptions options;
  std::vector<cuda::CompareTensor> tensors;
  const auto old = weights.cut(snapshot.as(), size);
  for (const std::byte* d_current : weights.cut(static_cast<const std::byte*>(current.as()), size)) {
    tensors.push_back({d_current, old[tensors.size()]});
  }
  auto encoder = cuda::DeviceEncoder::compare(table, tensors, true, options, encoder_options(bench, steps));
  const DeltaHeader header = bench_header(table, options);
  cuda::DeviceFrames frames;
  const Times times = time_encoder(bench, encoder, header, reset, steps, frames);
  bench.require(count_wrong(snapshot.as(), weights.elements, weights.recipe, Version::kNew, bench.stream()) == 0,
                "the refreshed snapshot, " + weights.what);
  bench.require(frames.commit.changed == weights.touched.changed, "the number of changes, " + weights.what);

  ResultLine row{"detect+encode", weights.what, weights.percent, 2 * weights.bytes(), times};
  row.more["changed"] = static_cast<double>(frames.commit.changed);
  row.more["bytes_per_change"] = weights.touched.changed == 0 ? 0
                                                              : static_cast<double>(frames.commit.frame_bytes) /
                                                                    static_cast<double>(frames.commit.changed);
  bench.add(row, weights.bytes());
  add_steps(bench, steps, row, weights.bytes());

  // The frames stay in the encoder's memory; the snapshot becomes the live weights of a receiver.
  run_apply(bench, {table, old, header, frames, weights.what, weights.percent, weights.bytes(), weights.touched.sectors,
                    reset});
  bench.require(count_wrong(snapshot.as(), weights.elements, weights.recipe, Version::kNew, bench.stream()) == 0,
                "the applied weights, " + weights.what);
}

void run_small_tensors(Workbench& bench, double percent) {
  const std::uint64_t tensors = bench.options().small_tensors;
  constexpr std::uint64_t kElements = std::uint64_t{1} << 16;
  WeightArray weights =
      make_weights(bench, DType::kBF16, static_cast<double>(tensors * kElements * 2) / 0x1p30, percent);
  weights.tensor_elements = kElements;
  weights.what = fmt::format("BF16 {} x 64 K", tensors);
  run_compare(bench, weights);
}

}  // namespace sparsecast::bench
