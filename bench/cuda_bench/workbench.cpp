// SPDX-License-Identifier: Apache-2.0
#include "workbench.hpp"

#include <fmt/format.h>

#include <cstdio>
#include <nlohmann/json.hpp>

#include "common/clock.hpp"
#include "cuda_bench/machine.hpp"

namespace sparsecast::bench {

using cuda::check;

StepTimer::~StepTimer() {
  for (cudaEvent_t event : events_) static_cast<void>(cudaEventDestroy(event));
}

std::function<void(const char*)> StepTimer::hook() {
  return [this](const char* step) {
    if (!recording_) return;
    if (marks_.size() == events_.size()) {
      cudaEvent_t event = nullptr;
      check(cudaEventCreate(&event), "cudaEventCreate");
      events_.push_back(event);
    }
    check(cudaEventRecord(events_[marks_.size()], stream_), "cudaEventRecord");
    marks_.emplace_back(step);
  };
}

void StepTimer::begin_round() {
  recording_ = true;
  marks_.clear();
}

void StepTimer::end_round() {
  recording_ = false;
  std::map<std::string, double> sums;
  for (std::size_t i = 1; i < marks_.size(); ++i) {
    if (marks_[i].empty()) continue;
    float ms = 0;
    check(cudaEventElapsedTime(&ms, events_[i - 1], events_[i]), "cudaEventElapsedTime");
    sums[marks_[i]] += ms;
  }
  for (const auto& [step, ms] : sums) rounds_[step].push_back(ms);
}

std::map<std::string, Times> StepTimer::times() const {
  std::map<std::string, Times> out;
  for (const auto& [step, samples] : rounds_) out[step] = {median(samples), 0, samples};
  return out;
}

Workbench::Workbench(const CudaBenchOptions& options) : options_(options), file_(options.json) {
  if (options.l2_fetch_bytes != 0) {
    check(cudaDeviceSetLimit(cudaLimitMaxL2FetchGranularity, static_cast<std::size_t>(options.l2_fetch_bytes)),
          "cudaDeviceSetLimit");
  }
  check(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking), "cudaStreamCreateWithFlags");
  check(cudaEventCreate(&begin_), "cudaEventCreate");
  check(cudaEventCreate(&end_), "cudaEventCreate");
}

Workbench::~Workbench() {
  static_cast<void>(cudaEventDestroy(begin_));
  static_cast<void>(cudaEventDestroy(end_));
  static_cast<void>(cudaStreamDestroy(stream_));
}

Times Workbench::time(const std::function<void()>& prepare, const std::function<void()>& work, StepTimer* steps) {
  std::vector<double> device;
  std::vector<double> wall;
  for (int round = -options_.warm_up; round < options_.repeat; ++round) {
    if (prepare) prepare();
    finish();
    if (steps != nullptr && round >= 0) steps->begin_round();
    const WallTimer watch;
    check(cudaEventRecord(begin_, stream_), "cudaEventRecord");
    work();
    check(cudaEventRecord(end_, stream_), "cudaEventRecord");
    finish();
    const double seconds = watch.seconds();
    float ms = 0;
    check(cudaEventElapsedTime(&ms, begin_, end_), "cudaEventElapsedTime");
    if (round < 0) continue;
    if (steps != nullptr) steps->end_round();
    device.push_back(ms);
    wall.push_back(seconds * 1e3);
  }
  return {median(device), median(wall), device};
}

double Workbench::copy_bandwidth(std::uint64_t bytes) {
  const auto bandwidth = [&](const Times& times) {
    return 2.0 * static_cast<double>(bytes) / (times.device_ms * 1e-3);
  };
  const auto known = copies_.find(bytes);
  if (known != copies_.end()) return bandwidth(known->second);
  const cuda::DeviceMemory from(bytes);
  const cuda::DeviceMemory to(bytes);
  // Zeros may move faster than other bits.
  check(cudaMemsetAsync(from.as(), 0x5A, bytes, stream_), "cudaMemsetAsync");
  const Times times =
      time(nullptr, [&] { cuda::copy_async(to.as(), from.as(), bytes, cudaMemcpyDeviceToDevice, stream_); });
  fmt::print("copy of {:.3g} GiB: {:.1f} GB/s read and written\n", static_cast<double>(bytes) / 0x1p30,
             bandwidth(times) * 1e-9);
  copies_[bytes] = times;
  return bandwidth(times);
}

void Workbench::add(ResultLine row, std::uint64_t copied) {
  const double copy = copy_bandwidth(copied);
  const double rate = static_cast<double>(row.bytes) / (row.times.device_ms * 1e-3);
  if (row.bytes != 0) {
    row.more["gb_per_s"] = rate * 1e-9;
    row.more["percent_of_copy"] = 100 * rate / copy;
  }
  std::string more;
  for (const auto& [name, value] : row.more) more += fmt::format("  {} {:.4g}", name, value);
  fmt::print("{:<22} {:<16} {:>5.3g} %  {:>9.4f} ms", row.phase, row.what, row.percent, row.times.device_ms);
  if (row.times.wall_ms != 0) fmt::print("  wall {:>9.4f} ms", row.times.wall_ms);
  fmt::print("{}\n", more);
  std::fflush(stdout);
  row.copied = copied;
  rows_.push_back(std::move(row));
}

void Workbench::require(bool holds, const std::string& what) {
  if (holds) return;
  ++failures_;
  fmt::print("WRONG: {}\n", what);
}

void Workbench::write_json(bool complete) const {
  if (!file_.wanted() || (options_.json == "-" && !complete)) return;
  Record record("cuda_bench");
  if (options_.commit != "unknown") record.commit = options_.commit;
  nlohmann::json machine = describe_machine();
  record.gpu = machine.at("device");
  for (const char* const name : {"runtime_version", "driver_version"}) {
    const int version = machine.at(name);
    record.versions[std::string("cuda_") + name] = fmt::format("{}.{}", version / 1000, version % 1000 / 10);
  }
  nlohmann::ordered_json& out = record.more;
  out.update(machine);
  out["sources"] = options_.sources;
  out["repeat"] = options_.repeat;
  out["chunk_mib"] = options_.chunk_mib;
  out["l2_fetch_bytes"] = options_.l2_fetch_bytes;
  out["wrong"] = failures_;
  out["complete"] = complete;
  const auto copy_name = [](std::uint64_t bytes) {
    return fmt::format("copy/{:.3g} GiB", static_cast<double>(bytes) / 0x1p30);
  };
  for (const auto& [bytes, times] : copies_) {
    const double gb_per_s = 2e-6 * static_cast<double>(bytes) / times.device_ms;
    out["copies"].push_back({{"bytes", bytes}, {"gb_per_s", gb_per_s}});
    record.results.push_back(median_of(copy_name(bytes), "ms", times.device_samples));
  }
  out["rows"] = nlohmann::ordered_json::array();
  for (const ResultLine& row : rows_) {
    nlohmann::ordered_json entry = {{"phase", row.phase},
                                    {"what", row.what},
                                    {"percent", row.percent},
                                    {"bytes", row.bytes},
                                    {"device_ms", row.times.device_ms},
                                    {"wall_ms", row.times.wall_ms}};
    for (const auto& [name, value] : row.more) entry[name] = value;
    out["rows"].push_back(std::move(entry));

    const std::string name = fmt::format("{}/{:.3g}%/", row.what, row.percent);
    record.results.push_back(median_of(name + row.phase, "ms", row.times.device_samples,
                                       row.baseline.empty() ? copy_name(row.copied) : name + row.baseline));
    const auto size = row.more.find("bytes_per_change");
    if (size == row.more.end()) continue;
    Measurement per_change{name + row.phase + "/size", "B/change", size->second};
    per_change.exact = true;
    record.results.push_back(std::move(per_change));
  }
  file_.write(record);
}

}  // namespace sparsecast::bench
