// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include "apply_case.hpp"
#include "cases.hpp"
#include "common/clock.hpp"
#include "memory/encoder.hpp"

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

cuda::DeviceEncoderOptions encoder_options(const Workbench& bench) {
  cuda::DeviceEncoderOptions options;
  options.chunk_bytes = bench.options().chunk_mib << 20;
  return options;
}

Times time_encoder(Workbench& bench, cuda::DeviceEncoder& encoder, const DeltaHeader& header,
                   const std::function<void()>& reset, cuda::DeviceFrames& frames, StepTimer* steps) {
  const auto encode = [&] {
    encoder.start(bench.stream());
    frames = encoder.finish(header);
  };
  return bench.time(reset, encode, steps);
}

void add_encoder_steps(Workbench& bench, const MakeEncoder& make, const DeltaHeader& header,
                       const std::function<void()>& reset, const ResultLine& whole, std::uint64_t copied) {
  StepTimer steps(bench.stream());
  cuda::DeviceEncoderOptions options = encoder_options(bench);
  options.after_step = steps.hook();
  cuda::DeviceEncoder encoder = make(options);
  cuda::DeviceFrames frames;
  static_cast<void>(time_encoder(bench, encoder, header, reset, frames, &steps));
  add_steps(bench, steps, whole, copied);
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

ComparedArrays::ComparedArrays(Workbench& bench, const WeightArray& weights)
    : table(weights.table()), current_(weights.bytes()), snapshot_(weights.bytes()) {
  fill(current_.as(), weights.elements, weights.recipe, Version::kNew, bench.stream());
  reset = [&bench, &weights, this] {
    fill(snapshot_.as(), weights.elements, weights.recipe, Version::kOld, bench.stream());
  };
  const std::size_t size = element_size(weights.recipe.dtype);
  old = weights.cut(snapshot_.as(), size);
  for (const std::byte* d_current : weights.cut(static_cast<const std::byte*>(current_.as()), size)) {
    tensors.push_back({d_current, old[tensors.size()]});
  }
}

void ComparedArrays::require_new(Workbench& bench, const WeightArray& weights, const char* which) const {
  bench.require(count_wrong(snapshot_.as(), weights.elements, weights.recipe, Version::kNew, bench.stream()) == 0,
                fmt::format("the {}, {}", which, weights.what));
}

void run_compare(Workbench& bench, const WeightArray& weights) {
  const ComparedArrays arrays(bench, weights);
  const EncodeOptions options;
  const MakeEncoder make = [&](const cuda::DeviceEncoderOptions& device) {
    return cuda::DeviceEncoder::compare(arrays.table, arrays.tensors, true, options, device);
  };
  cuda::DeviceEncoder encoder = make(encoder_options(bench));
  const DeltaHeader header = bench_header(arrays.table, options);
  cuda::DeviceFrames frames;
  const Times times = time_encoder(bench, encoder, header, arrays.reset, frames);
  arrays.require_new(bench, weights, "refreshed snapshot");
  bench.require(frames.commit.changed == weights.touched.changed, "the number of changes, " + weights.what);

  ResultLine row{"detect+encode", weights.what, weights.percent, 2 * weights.bytes() + 32 * weights.touched.sectors,
                 times};
  row.more["changed"] = static_cast<double>(frames.commit.changed);
  row.more["bytes_per_change"] = weights.touched.changed == 0 ? 0
                                                              : static_cast<double>(frames.commit.frame_bytes) /
                                                                    static_cast<double>(frames.commit.changed);
  bench.add(row, weights.bytes());
  add_encoder_steps(bench, make, header, arrays.reset, row, weights.bytes());

  // The frames stay in the encoder's memory; the snapshot becomes the live weights of a receiver.
  const ApplyCase apply{arrays.table, arrays.old,      header,          frames,
                        weights.what, weights.percent, weights.bytes(), weights.touched.sectors,
                        arrays.reset};
  run_apply(bench, apply);
  arrays.require_new(bench, weights, "applied weights");
  if (!bench.options().variants) return;
  run_apply_variants(bench, apply);
  arrays.require_new(bench, weights, "weights applied in variants");
  for (const std::uint64_t mib : {64, 256, 1024}) {
    for (const bool overlap : {false, true}) {
      for (const bool graph : {false, true}) {
        cuda::DeviceEncoderOptions device;
        device.chunk_bytes = mib << 20;
        device.overlap = overlap;
        device.graph = graph;
        cuda::DeviceEncoder variant = make(device);
        cuda::DeviceFrames encoded;
        row.times = time_encoder(bench, variant, header, arrays.reset, encoded);
        bench.require(encoded.commit.frames_hash == frames.commit.frames_hash,
                      "the frames of a variant, " + weights.what);
        row.phase = fmt::format("detect+encode, {} MiB{}{}", mib, overlap ? ", overlap" : "", graph ? ", graph" : "");
        bench.add(row, weights.bytes());
      }
    }
  }
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
