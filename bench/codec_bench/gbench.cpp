#include <benchmark/benchmark.h>
#include <fmt/format.h>

#include "codec/apply.hpp"
#include "codec_bench/commands.hpp"
#include "codec_bench/data.hpp"
#include "sync/encoder.hpp"

namespace sparsecast::bench {
namespace {

struct Encoded {
  DeltaHeader header;
  std::vector<Bytes> records;
  std::uint64_t bytes = 0;
};

Encoded encode(const TensorTable& table, const Pair& pair, const EncodeOptions& options) {
  Encoded encoded;
  encoded.header = make_header(table, options, {}, 0, 1, {});
  pack_header(encoded.header);
  const auto detector = make_compare_detector(table, {ConstTensorBytes(pair.after)}, {ConstTensorBytes(pair.before)});
  encode_frames(table, *detector, encoded.header, options, false, false, [&](Bytes&& record) {
    encoded.bytes += record.size();
    encoded.records.push_back(std::move(record));
  });
  return encoded;
}

void run(benchmark::State& state, DType dtype, PositionMode positions, ValueCodec values, std::uint64_t elements,
         bool decode) {
  const double density = static_cast<double>(state.range(0)) / 1e6;
  const ChangeKind kind = dtype == DType::kBF16 ? ChangeKind::kAdamw : ChangeKind::kWide;
  const Pair pair = make_pair_of(elements, dtype, density, kind, 3);
  const TensorTable table({{"weight", dtype, {elements}}});
  EncodeOptions options;
  options.positions = positions;
  options.values = values;
  Encoded encoded = encode(table, pair, options);
  std::vector<std::byte> live = pair.before;
  ApplyScratch scratch;
  for (auto _ : state) {
    if (!decode) {
      encoded = encode(table, pair, options);
      benchmark::DoNotOptimize(encoded.bytes);
      continue;
    }
    // Applying again and again walks away from the pair's bits, at the same cost.
    for (const Bytes& record : encoded.records) {
      const FrameReader frame(record, encoded.header, table);
      for (const BlockRef& block : frame.blocks()) {
        ApplyTarget target;
        target.window = live.data() + block.first_element * element_size(dtype);
        target.dtype = dtype;
        apply_block(block, target, Direction::kForward, scratch);
      }
    }
    benchmark::ClobberMemory();
  }
  state.counters["bytes_per_change"] =
      static_cast<double>(encoded.bytes) / static_cast<double>(std::max<std::uint64_t>(1, pair.changed));
  state.SetBytesProcessed(
      static_cast<std::int64_t>(static_cast<std::uint64_t>(state.iterations()) * 2 * table.bytes()));
}

void add(const std::string& name, DType dtype, PositionMode positions, ValueCodec values, std::uint64_t mib,
         bool decode, const std::vector<std::int64_t>& millionths) {
  const std::uint64_t elements = (mib << 20) / element_size(dtype);
  auto* benchmark = benchmark::RegisterBenchmark(
      name.c_str(), [=](benchmark::State& state) { run(state, dtype, positions, values, elements, decode); });
  for (const std::int64_t density : millionths) benchmark->Arg(density);
  benchmark->ArgName("changes_per_million")->Unit(benchmark::kMillisecond);
}

}  // namespace

void register_benchmarks(std::uint64_t mib) {
  const std::vector<std::int64_t> densities = {100, 1000, 3000, 10000, 30000, 100000, 300000, 600000};
  for (const PositionMode positions : {PositionMode::kAuto, PositionMode::kPacked, PositionMode::kGap16,
                                       PositionMode::kIndex32, PositionMode::kBitmap}) {
    for (const ValueCodec values : {ValueCodec::kUlp, ValueCodec::kXor, ValueCodec::kRaw}) {
      const std::string codec = fmt::format("bf16/{}+{}", to_string(positions), to_string(values));
      add("detect_encode/" + codec, DType::kBF16, positions, values, mib, false, densities);
      add("decode_apply/" + codec, DType::kBF16, positions, values, mib, true, densities);
    }
  }
  for (const DType dtype : {DType::kF8E4M3, DType::kF32, DType::kF64}) {
    const std::string codec = fmt::format("{}/auto+ulp", to_string(dtype));
    add("detect_encode/" + codec, dtype, PositionMode::kAuto, ValueCodec::kUlp, mib, false, {10000});
    add("decode_apply/" + codec, dtype, PositionMode::kAuto, ValueCodec::kUlp, mib, true, {10000});
  }
}

}  // namespace sparsecast::bench
