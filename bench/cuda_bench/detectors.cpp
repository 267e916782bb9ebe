#include <fmt/format.h>

#include "apply_case.hpp"
#include "baselines.hpp"
#include "cases.hpp"

namespace sparsecast::bench {

void run_fused_cast(Workbench& bench, const Weights& weights) {
  const TensorTable table = weights.table();
  const cuda::DeviceMemory masters(weights.elements * sizeof(float));
  const cuda::DeviceMemory bf16(weights.bytes());
  fill_masters(masters.as<float>(), weights.elements, weights.recipe, bench.stream());
  const auto reset = [&] { fill(bf16.as(), weights.elements, weights.recipe, Version::kOld, bench.stream()); };
  const std::uint64_t bytes = weights.elements * 6;

  const Workbench::Times plain =
      bench.time(reset, [&] { plain_cast(masters.as<float>(), bf16.as(), weights.elements, bench.stream()); });
  bench.require(count_wrong(bf16.as(), weights.elements, weights.recipe, Version::kNew, bench.stream()) == 0,
                "the plain cast, " + weights.what);
  bench.add({"plain cast", weights.what, weights.percent, bytes, plain.device_ms, 0, {}}, weights.bytes());

  StepTimer steps(bench.stream());
  const EncodeOptions options;
  std::vector<cuda::CastTensor> tensors;
  const auto old = weights.cut(bf16.as(), 2);
  for (const float* d_masters : weights.cut(static_cast<const float*>(masters.as<float>()), sizeof(float))) {
    tensors.push_back({d_masters, old[tensors.size()]});
  }
  auto encoder = cuda::DeviceEncoder::fused_cast(table, tensors, options, encoder_options(bench, steps));
  const DeltaHeader header = bench_header(table, options);
  cuda::DeviceFrames frames;
  const Workbench::Times times = time_encoder(bench, encoder, header, reset, steps, frames);
  bench.require(count_wrong(bf16.as(), weights.elements, weights.recipe, Version::kNew, bench.stream()) == 0,
                "the fused cast, " + weights.what);
  bench.require(frames.commit.changed == weights.touched.changed, "the fused cast's changes, " + weights.what);
  Row row{"fused cast", weights.what, weights.percent, bytes, times.device_ms, times.wall_ms, {}};
  row.more["over_plain"] = times.device_ms / plain.device_ms;
  bench.add(row, weights.bytes());
  add_steps(bench, steps, row, weights.bytes());
}

void run_mask(Workbench& bench, const Weights& weights) {
  const TensorTable table = weights.table();
  const std::size_t size = element_size(weights.recipe.dtype);
  const cuda::DeviceMemory current(weights.bytes());
  const cuda::DeviceMemory mask(weights.elements / 8);
  fill(current.as(), weights.elements, weights.recipe, Version::kNew, bench.stream());
  fill_mask(mask.as<std::uint64_t>(), weights.elements, weights.recipe, bench.stream());

  StepTimer steps(bench.stream());
  EncodeOptions options;
  options.values = ValueCodec::kRaw;
  std::vector<cuda::MaskTensor> tensors;
  std::uint64_t first = 0;
  for (const std::byte* d_current : weights.cut(static_cast<const std::byte*>(current.as()), size)) {
    tensors.push_back({d_current, mask.as<const std::uint64_t>() + first / 64});
    first += weights.tensor_elements;
  }
  auto encoder = cuda::DeviceEncoder::mask(table, tensors, options, encoder_options(bench, steps));
  const DeltaHeader header = bench_header(table, options);
  cuda::DeviceFrames frames;
  const Workbench::Times times = time_encoder(bench, encoder, header, nullptr, steps, frames);
  bench.require(frames.commit.changed == weights.touched.changed, "the mask's changes, " + weights.what);
  const Row row{"mask",
                weights.what,
                weights.percent,
                weights.elements / 8 + weights.touched.sectors * 32,
                times.device_ms,
                times.wall_ms,
                {}};
  bench.add(row, weights.bytes());
  add_steps(bench, steps, row, weights.bytes());
}

void run_cub(Workbench& bench, const Weights& weights) {
  const cuda::DeviceMemory current(weights.bytes());
  const cuda::DeviceMemory snapshot(weights.bytes());
  fill(current.as(), weights.elements, weights.recipe, Version::kNew, bench.stream());
  const auto reset = [&] { fill(snapshot.as(), weights.elements, weights.recipe, Version::kOld, bench.stream()); };
  // A slab has no more than all changes, nor more than its own elements.
  CubSelect select(weights.recipe.dtype, weights.elements,
                   std::min(weights.touched.changed, std::min(weights.elements, CubSelect::kSlab)) + 1);
  const Workbench::Times times = bench.time(reset, [&] { select.run(current.as(), snapshot.as(), bench.stream()); });
  bench.require(select.changed(bench.stream()) == weights.touched.changed, "CUB's changes, " + weights.what);
  bench.require(count_differing_words(current.as(), snapshot.as(), weights.bytes() / 4, bench.stream()) == 0,
                "CUB's refreshed snapshot, " + weights.what);
  bench.add({"cub select", weights.what, weights.percent, 2 * weights.bytes(), times.device_ms, times.wall_ms, {}},
            weights.bytes());
}

}  // namespace sparsecast::bench
