// SPDX-License-Identifier: Apache-2.0

// Google Benchmark's cases. They are registered by dtype and density, so that one pair of arrays serves all its cases
// and only one pair is in memory at a time.

#include <benchmark/benchmark.h>
#include <fmt/format.h>

#include <cstring>
#include <functional>
#include <optional>

#include "codec_bench/baselines.hpp"
#include "codec_bench/commands.hpp"
#include "codec_bench/frames.hpp"
#include "codec_bench/measure.hpp"
#include "codec_bench/scan.hpp"

namespace sparsecast::bench {
namespace {

struct Data {
  const char* name;
  DType dtype;
  ChangeKind kind;
  double density;
  std::uint64_t elements;

  bool operator==(const Data&) const = default;
};

struct Subject {
  Data data;
  TensorTable table;
  Pair pair;
  std::vector<std::byte> live;  ///< Weights that decoders change in place.
};

/// Returns the arrays of a case; they are made for the first case that needs them, and kept until another pair is
/// needed.
Subject& subject_of(const Data& data) {
  static std::optional<Subject> last;
  if (!last || last->data != data) {
    last.reset();
    last.emplace(Subject{data,
                         TensorTable({{"weight", data.dtype, {data.elements}}}),
                         make_pair_of(data.elements, data.dtype, data.density, data.kind, 3),
                         {}});
    last->live = last->pair.before;
  }
  return *last;
}

using Body = std::function<void(benchmark::State&, Subject&)>;

void add(const std::string& name, const Data& data, const Body& body) {
  benchmark::RegisterBenchmark(name.c_str(), [data, body](benchmark::State& state) {
    body(state, subject_of(data));
  })->Unit(benchmark::kMillisecond);
}

/// Sets bytes per second, counting `arrays` arrays of the subject, and bytes per change if something was encoded.
void count(benchmark::State& state, const Subject& subject, int arrays, std::uint64_t encoded_bytes = 0) {
  state.SetBytesProcessed(state.iterations() * arrays * static_cast<std::int64_t>(subject.table.bytes()));
  if (encoded_bytes == 0) return;
  state.counters["bytes_per_change"] =
      static_cast<double>(encoded_bytes) / static_cast<double>(std::max<std::uint64_t>(1, subject.pair.changed));
}

void add_codec(const std::string& suffix, const Data& data, const EncodeOptions& options) {
  add("detect_encode/" + suffix, data, [options](benchmark::State& state, Subject& subject) {
    std::uint64_t bytes = 0;
    for (auto _ : state) {
      const Frames frames = encode(subject.table, subject.pair, options, false);
      bytes = frames.bytes;
      benchmark::DoNotOptimize(bytes);
    }
    count(state, subject, 2, bytes);
  });
  add("decode_apply/" + suffix, data, [options](benchmark::State& state, Subject& subject) {
    const Frames frames = encode(subject.table, subject.pair, options, false);
    for (auto _ : state) {
      apply(frames, subject.table, subject.live, 1, false);
      benchmark::ClobberMemory();
    }
    count(state, subject, 1, frames.bytes);
  });
}

void add_baseline(const std::string& suffix, const Data& data, const Baseline& baseline) {
  const auto changes = [](const Subject& subject) {
    return std::vector<Change>{{subject.data.dtype, subject.pair.before, subject.pair.after}};
  };
  add("baseline_encode/" + suffix, data, [=](benchmark::State& state, Subject& subject) {
    std::uint64_t bytes = 0;
    for (auto _ : state) {
      const Bytes encoded = baseline.encode(changes(subject));
      bytes = encoded.size();
      benchmark::DoNotOptimize(bytes);
    }
    count(state, subject, 2, bytes);
  });
  add("baseline_decode/" + suffix, data, [=](benchmark::State& state, Subject& subject) {
    const Bytes encoded = baseline.encode(changes(subject));
    for (auto _ : state) {
      baseline.decode(encoded, {subject.data.dtype}, {MutableBytes(subject.live)});
      benchmark::ClobberMemory();
    }
    count(state, subject, 1, encoded.size());
  });
}

/// Adds the scan, the copy and the digest, which bound the times of the codecs from below.
void add_floors(const std::string& suffix, const Data& data) {
  add("scan/" + suffix, data, [](benchmark::State& state, Subject& subject) {
    for (auto _ : state) {
      benchmark::DoNotOptimize(scan(subject.pair.after.data(), subject.pair.before.data(), subject.data.elements,
                                    element_size(subject.data.dtype)));
    }
    count(state, subject, 2);
  });
  add("memcpy/" + suffix, data, [](benchmark::State& state, Subject& subject) {
    for (auto _ : state) {
      std::memcpy(subject.live.data(), subject.pair.after.data(), subject.live.size());
      benchmark::ClobberMemory();
    }
    count(state, subject, 1);
  });
  add("digest/" + suffix, data, [](benchmark::State& state, Subject& subject) {
    for (auto _ : state) {
      benchmark::DoNotOptimize(
          digest_tensors(subject.table, refs_to(subject.table, std::vector<ConstBytes>{subject.pair.after}), 1));
    }
    count(state, subject, 1);
  });
}

/// Prints what Google Benchmark prints, and keeps the times: one sample per repetition.
class Recorder : public benchmark::ConsoleReporter {
 public:
  explicit Recorder(std::string suffix) : suffix_(std::move(suffix)) {}

  void ReportRuns(const std::vector<Run>& runs) override {
    ConsoleReporter::ReportRuns(runs);
    for (const Run& run : runs) {
      if (run.run_type != Run::RT_Iteration || run.iterations == 0) continue;
      Case& one = case_named(run.benchmark_name());
      one.ms.push_back(1e3 * run.real_accumulated_time / static_cast<double>(run.iterations));
      const auto counter = run.counters.find("bytes_per_change");
      if (counter != run.counters.end()) one.bytes_per_change = counter->second.value;
    }
  }

  void take(Record& record) const {
    for (const Case& one : cases_) {
      record.results.push_back(median_of(one.name + suffix_, "ms", one.ms, floor_of(one.name)));
      if (one.bytes_per_change == 0) continue;
      Measurement size{one.name + suffix_ + "/size", "B/change", one.bytes_per_change};
      size.exact = true;
      record.results.push_back(std::move(size));
    }
  }

 private:
  struct Case {
    std::string name;
    std::vector<double> ms;
    double bytes_per_change = 0;
  };

  Case& case_named(const std::string& name) {
    if (cases_.empty() || cases_.back().name != name) cases_.push_back({name, {}, 0});
    return cases_.back();
  }

  /// Returns the name of the row that bounds a case from below: the scan of its data for encoders, the memcpy for
  /// decoders and the digest; nothing for these two themselves.
  std::string floor_of(const std::string& name) const {
    const std::size_t density = name.rfind('/');
    const std::size_t data = density == std::string::npos || density == 0 ? density : name.rfind('/', density - 1);
    if (data == std::string::npos || name.starts_with("scan/") || name.starts_with("memcpy/")) return {};
    const bool encodes = name.find("_encode/") != std::string::npos;
    return (encodes ? "scan" : "memcpy") + name.substr(data) + suffix_;
  }

  std::string suffix_;  ///< End of every row's name: the size of the arrays.
  std::vector<Case> cases_;
};

constexpr PositionMode kPositions[] = {PositionMode::kAuto, PositionMode::kPacked, PositionMode::kGap16,
                                       PositionMode::kIndex32, PositionMode::kBitmap};
constexpr ValueCodec kValues[] = {ValueCodec::kUlp, ValueCodec::kXor, ValueCodec::kRaw};

void add_all(const Data& data) {
  const std::string suffix = fmt::format("{}/{:g}%", data.name, 100 * data.density);
  add_floors(suffix, data);
  // Every pair of codecs on bf16; on other widths every position codec with ulp and every value codec with auto, which
  // is enough, because positions and values of a block are coded one after the other.
  const bool all = data.dtype == DType::kBF16;
  for (const PositionMode positions : kPositions) {
    for (const ValueCodec values : kValues) {
      if (!all && positions != PositionMode::kAuto && values != ValueCodec::kUlp) continue;
      const std::string codec = fmt::format("{}+{}/{}", to_string(positions), to_string(values), suffix);
      add_codec(codec, data, with(positions, values));
    }
  }
  if (!all) return;
  for (const Baseline& baseline : baselines()) {
    std::string name = baseline.name;
    std::erase(name, ' ');
    add_baseline(fmt::format("{}/{}", name, suffix), data, baseline);
  }
}

}  // namespace

int run_google_benchmarks(int argc, char** argv, std::uint64_t mib, Record& record) {
  const Data kinds[] = {{"fp8", DType::kF8E4M3, ChangeKind::kWide, 0, (mib << 20)},
                        {"bf16", DType::kBF16, ChangeKind::kAdamw, 0, (mib << 20) / 2},
                        {"f32", DType::kF32, ChangeKind::kWide, 0, (mib << 20) / 4},
                        {"f64", DType::kF64, ChangeKind::kWide, 0, (mib << 20) / 8}};
  for (Data data : kinds) {
    for (const double density : {0.0001, 0.001, 0.01, 0.1, 0.6}) {
      data.density = density;
      add_all(data);
    }
  }
  benchmark::Initialize(&argc, argv);
  Recorder recorder(fmt::format("/{} MiB", mib));
  benchmark::RunSpecifiedBenchmarks(&recorder);
  recorder.take(record);
  return 0;
}

}  // namespace sparsecast::bench
