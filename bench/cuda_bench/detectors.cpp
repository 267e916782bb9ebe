// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include "apply_case.hpp"
#include "baselines.hpp"
#include "cases.hpp"
#include "ceilings.hpp"

namespace sparsecast::bench {

void run_casts(Workbench& bench, const WeightArray& weights) {
  const TensorTable table = weights.table();
  const cuda::DeviceMemory masters(weights.elements * sizeof(float));
  const cuda::DeviceMemory bf16(weights.bytes());
  fill_masters(masters.as<float>(), weights.elements, weights.recipe, bench.stream());
  const auto reset = [&] { fill(bf16.as(), weights.elements, weights.recipe, Version::kOld, bench.stream()); };
  const auto require_the_cast = [&](const char* phase) {
    bench.require(count_wrong(bf16.as(), weights.elements, weights.recipe, Version::kNew, bench.stream()) == 0,
                  fmt::format("the {}, {}", phase, weights.what));
  };
  const std::uint64_t bytes = weights.elements * 6;

  const Times plain =
      bench.time(reset, [&] { plain_cast(masters.as<float>(), bf16.as(), weights.elements, bench.stream()); });
  require_the_cast("plain cast");
  bench.add({"plain cast", weights.what, weights.percent, bytes, plain}, weights.bytes());

  const EncodeOptions options;
  const DeltaHeader header = bench_header(table, options);
  const auto detect = [&](const char* phase, const auto& make_encoder) {
    cuda::DeviceEncoder encoder = make_encoder(encoder_options(bench));
    cuda::DeviceFrames frames;
    const Times times = time_encoder(bench, encoder, header, reset, frames);
    require_the_cast(phase);
    bench.require(frames.commit.changed == weights.touched.changed,
                  fmt::format("changes of the {}, {}", phase, weights.what));
    ResultLine row{phase, weights.what, weights.percent, bytes, times};
    row.more["over_plain"] = times.device_ms / plain.device_ms;
    row.baseline = "plain cast";
    bench.add(row, weights.bytes());
    add_encoder_steps(bench, make_encoder, header, reset, row, weights.bytes());
  };

  // One array serves as the live bf16 weights of the fused cast and as the snapshot of the cast snapshot.
  std::vector<cuda::CastTensor> cast;
  std::vector<cuda::CompareTensor> compared;
  const auto old = weights.cut(bf16.as(), 2);
  for (const float* d_masters : weights.cut(static_cast<const float*>(masters.as<float>()), sizeof(float))) {
    compared.push_back({d_masters, old[cast.size()], {}, {}, true});
    cast.push_back({d_masters, old[cast.size()]});
  }
  detect("fused cast",
         [&](const auto& device) { return cuda::DeviceEncoder::fused_cast(table, cast, options, device); });
  detect("cast snapshot",
         [&](const auto& device) { return cuda::DeviceEncoder::compare(table, compared, true, options, device); });
}

void run_pinned(Workbench& bench, const WeightArray& weights) {
  const TensorTable table = weights.table();
  const std::size_t size = element_size(weights.recipe.dtype);
  const cuda::DeviceMemory current(weights.bytes());
  const cuda::DeviceMemory old(weights.bytes());
  const cuda::PinnedMemory snapshot(weights.bytes());
  fill(old.as(), weights.elements, weights.recipe, Version::kOld, bench.stream());
  const auto reset = [&] {
    fill(current.as(), weights.elements, weights.recipe, Version::kNew, bench.stream());
    cuda::copy_async(snapshot.as(), old.as(), weights.bytes(), cudaMemcpyDeviceToHost, bench.stream());
  };
  const Times copy = bench.time(reset, [&] {
    cuda::copy_async(current.as(), snapshot.as(), weights.bytes(), cudaMemcpyHostToDevice, bench.stream());
  });
  bench.add({"pinned copy", weights.what, weights.percent, 0, copy}, weights.bytes());

  const EncodeOptions options;
  std::vector<cuda::PinnedTensor> tensors;
  const auto h_old = weights.cut(snapshot.as(), size);
  for (const std::byte* d_current : weights.cut(static_cast<const std::byte*>(current.as()), size)) {
    tensors.push_back({d_current, h_old[tensors.size()]});
  }
  auto encoder = cuda::DeviceEncoder::compare_pinned(table, tensors, true, options, encoder_options(bench));
  const DeltaHeader header = bench_header(table, options);
  cuda::DeviceFrames frames;
  const Times times = time_encoder(bench, encoder, header, reset, frames);
  bench.require(frames.commit.changed == weights.touched.changed, "changes of the pinned snapshot, " + weights.what);
  cuda::copy_async(current.as(), snapshot.as(), weights.bytes(), cudaMemcpyHostToDevice, bench.stream());
  bench.require(count_wrong(current.as(), weights.elements, weights.recipe, Version::kNew, bench.stream()) == 0,
                "the refreshed pinned snapshot, " + weights.what);
  ResultLine row{"pinned snapshot", weights.what, weights.percent, 0, times};
  row.more["over_copy"] = times.device_ms / copy.device_ms;
  row.baseline = "pinned copy";
  bench.add(row, weights.bytes());
}

void run_mask(Workbench& bench, const WeightArray& weights) {
  const TensorTable table = weights.table();
  const std::size_t size = element_size(weights.recipe.dtype);
  const cuda::DeviceMemory current(weights.bytes());
  const cuda::DeviceMemory mask(weights.elements / 8);
  fill(current.as(), weights.elements, weights.recipe, Version::kNew, bench.stream());
  fill_mask(mask.as<std::uint64_t>(), weights.elements, weights.recipe, bench.stream());

  EncodeOptions options;
  options.values = ValueCodec::kRaw;
  std::vector<cuda::MaskTensor> tensors;
  std::uint64_t first = 0;
  for (const std::byte* d_current : weights.cut(static_cast<const std::byte*>(current.as()), size)) {
    tensors.push_back({d_current, mask.as<const std::uint64_t>() + first / 64});
    first += weights.tensor_elements;
  }
  const MakeEncoder make = [&](const cuda::DeviceEncoderOptions& device) {
    return cuda::DeviceEncoder::mask(table, tensors, options, device);
  };
  cuda::DeviceEncoder encoder = make(encoder_options(bench));
  const DeltaHeader header = bench_header(table, options);
  cuda::DeviceFrames frames;
  const Times times = time_encoder(bench, encoder, header, nullptr, frames);
  bench.require(frames.commit.changed == weights.touched.changed, "the mask's changes, " + weights.what);
  const ResultLine row{"mask", weights.what, weights.percent, weights.elements / 8 + weights.touched.sectors * 32,
                       times};
  bench.add(row, weights.bytes());
  add_encoder_steps(bench, make, header, nullptr, row, weights.bytes());
}

void run_cub(Workbench& bench, const WeightArray& weights) {
  const cuda::DeviceMemory current(weights.bytes());
  const cuda::DeviceMemory snapshot(weights.bytes());
  fill(current.as(), weights.elements, weights.recipe, Version::kNew, bench.stream());
  const auto reset = [&] { fill(snapshot.as(), weights.elements, weights.recipe, Version::kOld, bench.stream()); };
  // A slab has at most as many changes as the whole array has, and as it has elements.
  CubSelect select(weights.recipe.dtype, weights.elements,
                   std::min(weights.touched.changed, std::min(weights.elements, CubSelect::kSlab)) + 1);
  const Times times = bench.time(reset, [&] { select.run(current.as(), snapshot.as(), bench.stream()); });
  bench.require(select.changed(bench.stream()) == weights.touched.changed, "CUB's changes, " + weights.what);
  bench.require(count_differing_words(current.as(), snapshot.as(), weights.bytes() / 4, bench.stream()) == 0,
                "CUB's refreshed snapshot, " + weights.what);
  bench.add({"cub select", weights.what, weights.percent, 2 * weights.bytes(), times}, weights.bytes());
}

void run_ceilings(Workbench& bench, const WeightArray& weights) {
  const cuda::DeviceMemory current(weights.bytes());
  const cuda::DeviceMemory snapshot(weights.bytes());
  const cuda::DeviceMemory differ(sizeof(std::uint32_t));
  fill(current.as(), weights.elements, weights.recipe, Version::kNew, bench.stream());
  const auto reset = [&] { fill(snapshot.as(), weights.elements, weights.recipe, Version::kOld, bench.stream()); };
  reset();
  for (const unsigned in_flight : {4U, 8U}) {
    const Times times = bench.time(nullptr, [&] {
      scan_both(current.as(), snapshot.as(), weights.bytes(), in_flight, differ.as<std::uint32_t>(), bench.stream());
    });
    std::uint32_t found = 0;
    cuda::copy_async(&found, differ.as(), sizeof(found), cudaMemcpyDeviceToHost, bench.stream());
    bench.finish();
    bench.require((found != 0) == (weights.touched.changed != 0), "what the scan finds, " + weights.what);
    bench.add({fmt::format("scan by {}", in_flight), weights.what, weights.percent, 2 * weights.bytes(), times},
              weights.bytes());
  }

  const std::uint64_t elements = std::min(weights.elements, CubSelect::kSlab);
  const Touched touched = count_touched(elements, weights.recipe, bench.stream());
  if (touched.changed == 0) return;
  CubSelect select(weights.recipe.dtype, elements, touched.changed);
  select.run(current.as(), snapshot.as(), bench.stream());
  const Times times = bench.time(reset, [&] {
    flip_elements(snapshot.as(), element_size(weights.recipe.dtype), select.d_positions(), touched.changed,
                  bench.stream());
  });
  bench.require(count_wrong(snapshot.as(), elements, weights.recipe, Version::kOld, bench.stream()) == touched.changed,
                "the flipped elements, " + weights.what);
  ResultLine row{"scatter", weights.what, weights.percent, touched.sectors * 64 + touched.changed * 4, times};
  row.more["sectors"] = static_cast<double>(touched.sectors);
  bench.add(row, weights.bytes());
}

}  // namespace sparsecast::bench
