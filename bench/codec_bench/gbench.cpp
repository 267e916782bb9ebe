// Google Benchmark's cases. They are registered by dtype and density, so that the data of one pair serve all its cases
// and only one pair is in memory.

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
  std::vector<std::byte> live;  ///< What decoders write to.
};

/// Made when the first case needs it, and kept until another is asked for.
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

/// Bytes a second over `arrays` arrays of the subject; bytes per change where a coding was made.
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
      baseline.decode(encoded, {subject.data.dtype}, {TensorBytes(subject.live)});
      benchmark::ClobberMemory();
    }
    count(state, subject, 1, encoded.size());
  });
}

/// What bounds the codecs from below.
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
      benchmark::DoNotOptimize(digest_tensors(subject.table, std::vector<ConstTensorBytes>{subject.pair.after}, 1));
    }
    count(state, subject, 1);
  });
}

constexpr PositionMode kPositions[] = {PositionMode::kAuto, PositionMode::kPacked, PositionMode::kGap16,
                                       PositionMode::kIndex32, PositionMode::kBitmap};
constexpr ValueCodec kValues[] = {ValueCodec::kUlp, ValueCodec::kXor, ValueCodec::kRaw};

void add_all(const Data& data) {
  const std::string suffix = fmt::format("{}/{:g}%", data.name, 100 * data.density);
  add_floors(suffix, data);
  // Every codec on bf16. On other widths every position codec with ulp and every value codec with auto: the parts of a
  // block are coded one after the other.
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

void register_benchmarks(std::uint64_t mib) {
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
}

}  // namespace sparsecast::bench
