#include <fmt/format.h>

#include "apply_case.hpp"
#include "cases.hpp"
#include "common/checkpoint_series.hpp"
#include "common/clock.hpp"
#include "sparsecast/io.hpp"

namespace sparsecast::bench {
namespace {

/// A checkpoint's tensors on the host, and the same in one array on the device, each 256-byte aligned.
struct Mirrored {
  explicit Mirrored(const TensorTable& table) {
    std::uint64_t bytes = 0;
    std::vector<std::uint64_t> offsets;
    for (const TensorSpec& spec : table) {
      host.emplace_back(spec.bytes());
      offsets.push_back(bytes);
      bytes += (spec.bytes() + 255) / 256 * 256;
    }
    memory = cuda::DeviceMemory(bytes);
    for (std::uint64_t offset : offsets) d_tensors.push_back(memory.as() + offset);
  }
  std::vector<TensorBytes> views() { return {host.begin(), host.end()}; }
  void upload(cudaStream_t stream) const {
    for (std::size_t t = 0; t < host.size(); ++t) {
      cuda::copy_async(d_tensors[t], host[t].data(), host[t].size(), cudaMemcpyHostToDevice, stream);
    }
  }

  std::vector<std::vector<std::byte>> host;
  cuda::DeviceMemory memory;
  std::vector<std::byte*> d_tensors;
};

}  // namespace

void run_trace(Workbench& bench, const std::string& directory) {
  const CheckpointSeries series(FileSystem::posix(), directory);
  const TensorTable& table = series.table();
  Mirrored current(table);
  series.load_first(current.views());
  current.upload(bench.stream());
  const cuda::DeviceMemory snapshot(current.memory.bytes());
  const cuda::DeviceMemory before(current.memory.bytes());
  const auto copy = [&](const cuda::DeviceMemory& to, const cuda::DeviceMemory& from) {
    cuda::copy_async(to.as(), from.as(), from.bytes(), cudaMemcpyDeviceToDevice, bench.stream());
  };
  // The padding between tensors too, so that whole arrays can be compared.
  cuda::check(cudaMemsetAsync(current.memory.as(), 0, current.memory.bytes(), bench.stream()), "cudaMemsetAsync");
  current.upload(bench.stream());
  copy(before, current.memory);

  const EncodeOptions options;
  std::vector<cuda::CompareTensor> tensors;
  std::vector<std::byte*> d_old;
  for (std::byte* d_current : current.d_tensors) {
    d_old.push_back(snapshot.as() + (d_current - current.memory.as()));
    tensors.push_back({d_current, d_old.back()});
  }
  StepTimer steps(bench.stream());
  cuda::DeviceEncoderOptions device;
  device.chunk_bytes = bench.options().chunk_mib << 20;
  device.after_step = steps.hook();
  auto encoder = cuda::DeviceEncoder::compare(table, tensors, true, options, device);
  const DeltaHeader header = bench_header(table, options);
  for (std::size_t i = 1; i <= series.steps(); ++i) {
    series.advance(i, current.views());
    current.upload(bench.stream());
    const auto reset = [&] { copy(snapshot, before); };
    cuda::DeviceFrames frames;
    const Workbench::Times times = bench.time(
        reset,
        [&] {
          encoder.start(bench.stream());
          frames = encoder.finish(header);
        },
        &steps);
    const auto same = [&](const char* what) {
      bench.require(
          count_differing_words(snapshot.as(), current.memory.as(), snapshot.bytes() / 4, bench.stream()) == 0,
          fmt::format("{} of step {}", what, series.name(i)));
    };
    same("the refreshed snapshot");
    const double percent = 100 * static_cast<double>(frames.commit.changed) / static_cast<double>(table.elements());
    bench.add({"detect+encode", series.name(i), percent, 2 * table.bytes(), times.device_ms, times.wall_ms, {}},
              snapshot.bytes());
    run_apply(bench, {table, d_old, header, frames, series.name(i), percent, snapshot.bytes(), 0, reset});
    same("the applied weights");
    copy(before, current.memory);
    bench.finish();
  }
}

}  // namespace sparsecast::bench
