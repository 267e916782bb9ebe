// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include "apply_case.hpp"
#include "cases.hpp"
#include "common/checkpoint_series.hpp"
#include "common/clock.hpp"
#include "cuda/common/tensor_memory.hpp"
#include "sparsecast/io.hpp"

namespace sparsecast::bench {
namespace {

/// A checkpoint's tensors on the host, and a copy of them in one array on the device, each aligned to 256 bytes.
struct Mirrored {
  explicit Mirrored(const TensorTable& table) : memory(table, [](const TensorSpec& spec) { return spec.bytes(); }) {
    for (const TensorSpec& spec : table) host.emplace_back(spec.bytes());
  }
  std::vector<MutableBytes> views() { return {host.begin(), host.end()}; }
  void upload(cudaStream_t stream) const {
    for (std::size_t t = 0; t < host.size(); ++t) {
      cuda::copy_async(memory[t], host[t].data(), host[t].size(), cudaMemcpyHostToDevice, stream);
    }
  }

  std::vector<std::vector<std::byte>> host;
  cuda::TensorMemory<cuda::MemoryKind::kDevice> memory;
};

}  // namespace

void run_trace(Workbench& bench, const std::string& directory) {
  const CheckpointSeries series(FileSystem::posix(), directory);
  const TensorTable& table = series.table();
  Mirrored current(table);
  series.load_first(current.views());
  const cuda::DeviceMemory snapshot(current.memory.bytes());
  const cuda::DeviceMemory before(current.memory.bytes());
  const auto copy = [&](const cuda::DeviceMemory& to, const std::byte* d_from) {
    cuda::copy_async(to.as(), d_from, to.bytes(), cudaMemcpyDeviceToDevice, bench.stream());
  };
  // The padding between tensors is set too, so that whole arrays can be compared.
  cuda::check(cudaMemsetAsync(current.memory.begin(), 0, current.memory.bytes(), bench.stream()), "cudaMemsetAsync");
  current.upload(bench.stream());
  copy(before, current.memory.begin());

  const EncodeOptions options;
  std::vector<cuda::CompareTensor> tensors;
  std::vector<std::byte*> d_old;
  for (std::size_t t = 0; t < table.size(); ++t) {
    d_old.push_back(snapshot.as() + (current.memory[t] - current.memory.begin()));
    tensors.push_back({current.memory[t], d_old.back()});
  }
  auto encoder = cuda::DeviceEncoder::compare(table, tensors, true, options, encoder_options(bench));
  const DeltaHeader header = bench_header(table, options);
  for (std::size_t i = 1; i <= series.steps(); ++i) {
    series.advance(i, current.views());
    current.upload(bench.stream());
    const auto reset = [&] { copy(snapshot, before.as()); };
    cuda::DeviceFrames frames;
    const Times times = time_encoder(bench, encoder, header, reset, frames);
    const auto same = [&](const char* what) {
      bench.require(
          count_differing_words(snapshot.as(), current.memory.begin(), snapshot.bytes() / 4, bench.stream()) == 0,
          fmt::format("{} of step {}", what, series.name(i)));
    };
    same("the refreshed snapshot");
    const double percent = 100 * static_cast<double>(frames.commit.changed) / static_cast<double>(table.elements());
    bench.add({"detect+encode", series.name(i), percent, 2 * table.bytes(), times}, snapshot.bytes());
    run_apply(bench, {table, d_old, header, frames, series.name(i), percent, snapshot.bytes(), 0, reset});
    same("the applied weights");
    copy(before, current.memory.begin());
    bench.finish();
    bench.write_json(false);
  }
}

}  // namespace sparsecast::bench
