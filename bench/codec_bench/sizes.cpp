#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <nlohmann/json.hpp>

#include "codec/codec_common.hpp"
#include "codec_bench/commands.hpp"
#include "core/word.hpp"
#include "sparsecast/error.hpp"
#include "sparsecast/safetensors.hpp"

namespace sparsecast::bench {
namespace {

/// splitmix64 (Steele, Lea, Flood 2014).
class Random {
 public:
  explicit Random(std::uint64_t seed) : state_(seed) {}
  std::uint64_t bits() {
    std::uint64_t z = (state_ += 0x9E3779B97F4A7C15ULL);
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9ULL;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBULL;
    return z ^ (z >> 31);
  }
  double unit() { return static_cast<double>(bits() >> 11) * 0x1p-53; }
  float normal() {
    const std::uint64_t w = bits();
    const auto sum = static_cast<float>((w & 0xFFFF) + (w >> 16 & 0xFFFF) + (w >> 32 & 0xFFFF) + (w >> 48));
    return (sum - 131070.0F) * (1.7320508F / 65536.0F);
  }

 private:
  std::uint64_t state_;
};

std::uint16_t to_bf16(float value) {
  std::uint32_t bits;
  std::memcpy(&bits, &value, 4);
  return bf16_from_f32_bits(bits);
}

/// Adam-like steps of fp32 masters (sign and size vary), rounded to bf16 before and after. The step that gives the
/// density is found by bisection: the density is an outcome of rounding, not a coin.
Pair adamw_pair(std::uint64_t count, double density, std::uint64_t seed) {
  std::vector<float> master(count);
  std::vector<float> step(count);
  Random random(seed);
  for (std::uint64_t i = 0; i < count; ++i) {
    const float a = random.normal();
    const float b = random.normal();
    master[i] = 0.02F * random.normal() / std::sqrt(0.5F * (a * a + b * b) + 0.05F);
    step[i] = 0.7F * random.normal();
  }
  const auto fraction = [&](float rate) {
    std::uint64_t changed = 0;
    const std::uint64_t sample = std::min<std::uint64_t>(count, 1 << 20);
    for (std::uint64_t i = 0; i < sample; ++i) changed += to_bf16(master[i]) != to_bf16(master[i] - rate * step[i]) ? 1 : 0;
    return static_cast<double>(changed) / static_cast<double>(sample);
  };
  float low = 1e-12F;
  float high = 1e-1F;
  for (int i = 0; i < 50; ++i) {
    const float middle = std::sqrt(low * high);
    (fraction(middle) < density ? low : high) = middle;
  }
  Pair pair;
  pair.before.resize(count * 2);
  pair.after.resize(count * 2);
  for (std::uint64_t i = 0; i < count; ++i) {
    const std::uint16_t before = to_bf16(master[i]);
    const std::uint16_t after = to_bf16(master[i] - high * step[i]);
    store_word(pair.before.data(), i, before);
    store_word(pair.after.data(), i, after);
    pair.changed += before != after ? 1 : 0;
  }
  return pair;
}

std::vector<ConstTensorBytes> one(const std::vector<std::byte>& bytes) { return {ConstTensorBytes(bytes)}; }

EncodeOptions with(PositionMode positions, ValueCodec values, int zstd = 0) {
  EncodeOptions options;
  options.positions = positions;
  options.values = values;
  options.zstd_level = zstd;
  return options;
}

}  // namespace

Pair make_pair_of(std::uint64_t count, DType dtype, double density, ChangeKind kind, std::uint64_t seed) {
  if (kind == ChangeKind::kAdamw) return adamw_pair(count, density, seed);
  const std::size_t size = element_size(dtype);
  Random random(seed);
  Pair pair;
  pair.before.resize(count * size);
  for (std::size_t i = 0; i + 8 <= pair.before.size(); i += 8) store_word(pair.before.data() + i, 0, random.bits());
  pair.after = pair.before;
  constexpr std::uint64_t kRow = 256;
  bool row_hit = false;
  with_word(size, [&]<class T>() {
    for (std::uint64_t i = 0; i < count; ++i) {
      // Rows: a tenth of the density's rows is touched ten times as densely.
      if (i % kRow == 0) row_hit = random.unit() < std::sqrt(density);
      const double chance = kind == ChangeKind::kRows ? (row_hit ? std::sqrt(density) : 0.0) : density;
      if (random.unit() >= chance) continue;
      const T before = load_word<T>(pair.before.data(), i);
      const T jump = static_cast<T>(kind == ChangeKind::kWide ? random.bits() >> (random.bits() % 64) : 1 + random.bits() % 3);
      const T after = static_cast<T>((random.bits() & 1) != 0 ? before + jump : before - jump);
      store_word(pair.after.data(), i, after);
      pair.changed += after != before ? 1 : 0;
    }
  });
  return pair;
}

std::uint64_t file_bytes(const TensorTable& table, const std::vector<ConstTensorBytes>& before,
                         const std::vector<ConstTensorBytes>& after, const EncodeOptions& options) {
  const auto detector = make_compare_detector(table, after, before);
  DeltaHeader header;
  header.version = 1;
  header.base_digest = sum(digest_tensors(table, before, options.threads));
  std::uint64_t bytes = 0;
  encode_delta(table, *detector, header, options, true, [&](Bytes&& record) { bytes += record.size(); });
  return bytes;
}

std::vector<std::uint64_t> baseline_bytes(const TensorTable& table, const std::vector<ConstTensorBytes>& before,
                                          const std::vector<ConstTensorBytes>& after) {
  std::vector<Change> changes;
  std::vector<DType> dtypes;
  for (std::size_t t = 0; t < table.size(); ++t) {
    changes.push_back({table[t].dtype, before[t], after[t]});
    dtypes.push_back(table[t].dtype);
  }
  std::vector<std::uint64_t> sizes;
  for (const Baseline& baseline : baselines()) {
    const Bytes encoded = baseline.encode(changes);
    std::vector<std::vector<std::byte>> copies;
    for (const ConstTensorBytes tensor : before) copies.emplace_back(tensor.begin(), tensor.end());
    baseline.decode(encoded, dtypes, {copies.begin(), copies.end()});
    for (std::size_t t = 0; t < table.size(); ++t) {
      if (!std::equal(copies[t].begin(), copies[t].end(), after[t].begin())) {
        throw Error(ErrorCode::kCorrupt, "does not decode to what was encoded", "baseline " + baseline.name);
      }
    }
    sizes.push_back(encoded.size());
  }
  return sizes;
}

int run_trace(const std::string& directory, bool json) {
  FileSystem& fs = FileSystem::posix();
  std::vector<std::string> paths;
  for (const std::string& name : fs.list(directory)) {
    if (name.ends_with(".safetensors")) paths.push_back(directory + "/" + name);
  }
  if (paths.size() < 2) throw Error(ErrorCode::kUsage, "an anchor and at least one sparse step are needed", directory);
  const Checkpoint anchor = Checkpoint::open(fs, paths[0]);
  const TensorTable& table = anchor.table();
  std::vector<std::vector<std::byte>> state;
  for (const ConstTensorBytes tensor : anchor.tensors()) state.emplace_back(tensor.begin(), tensor.end());

  const std::vector<std::pair<std::string, EncodeOptions>> ours = {
      {"auto + ulp", with(PositionMode::kAuto, ValueCodec::kUlp)},
      {"packed + ulp", with(PositionMode::kPacked, ValueCodec::kUlp)},
      {"auto + ulp, zstd 1", with(PositionMode::kAuto, ValueCodec::kUlp, 1)},
      {"packed + xor", with(PositionMode::kPacked, ValueCodec::kXor)},
      {"packed + raw", with(PositionMode::kPacked, ValueCodec::kRaw)},
      {"gap16 + raw", with(PositionMode::kGap16, ValueCodec::kRaw)},
      {"index32 + raw", with(PositionMode::kIndex32, ValueCodec::kRaw)},
  };
  std::vector<std::uint64_t> totals(ours.size() + baselines().size());
  std::uint64_t changed = 0;
  for (std::size_t step = 1; step < paths.size(); ++step) {
    const std::vector<std::vector<std::byte>> previous = state;
    changed += SparseStep::open(fs, paths[step], table).apply({std::vector<TensorBytes>(state.begin(), state.end())});
    const std::vector<ConstTensorBytes> before(previous.begin(), previous.end());
    const std::vector<ConstTensorBytes> after(state.begin(), state.end());
    for (std::size_t i = 0; i < ours.size(); ++i) totals[i] += file_bytes(table, before, after, ours[i].second);
    const std::vector<std::uint64_t> theirs = baseline_bytes(table, before, after);
    for (std::size_t i = 0; i < theirs.size(); ++i) totals[ours.size() + i] += theirs[i];
  }
  nlohmann::ordered_json result = {{"trace", directory}, {"steps", paths.size() - 1}, {"elements", table.elements()}, {"changed", changed}};
  if (!json) {
    fmt::print("# {}: {} steps, {} elements, {} changes ({:.3f} % a step)\n# {:<28} {:>12} {:>10}\n", directory,
               paths.size() - 1, table.elements(), changed,
               100.0 * static_cast<double>(changed) / static_cast<double>(table.elements() * (paths.size() - 1)), "coding",
               "bytes", "B/change");
  }
  for (std::size_t i = 0; i < totals.size(); ++i) {
    const bool own = i < ours.size();
    const std::string name = own ? "sparsecast " + ours[i].first : baselines()[i - ours.size()].name;
    const double per_change = static_cast<double>(totals[i]) / static_cast<double>(changed);
    result["codings"].push_back({{"name", name}, {"bytes", totals[i]}, {"bytes_per_change", per_change}});
    if (!json) fmt::print("  {:<28} {:>12} {:>10.3f}\n", name, totals[i], per_change);
  }
  if (json) fmt::print("{}\n", result.dump(2));
  return 0;
}

int run_sizes(std::uint64_t elements) {
  struct Case {
    const char* name;
    DType dtype;
    ChangeKind kind;
  };
  constexpr Case kCases[] = {{"bf16 adamw", DType::kBF16, ChangeKind::kAdamw}, {"bf16 wide", DType::kBF16, ChangeKind::kWide},
                             {"bf16 rows", DType::kBF16, ChangeKind::kRows},   {"fp8 rows", DType::kF8E4M3, ChangeKind::kRows},
                             {"fp8 wide", DType::kF8E4M3, ChangeKind::kWide},  {"f32 wide", DType::kF32, ChangeKind::kWide}};
  int worse = 0;  // Of the training-like cases: these are the promise, the others are stress.
  int worse_stress = 0;
  fmt::print("# {} elements; whole .scd file against the best baseline's streams\n# {:<12} {:>10} {:>10} {:>10}  {:<28} {:>8}\n",
             elements, "data", "density %", "auto B/ch", "best B/ch", "best baseline", "ratio");
  for (const Case& c : kCases) {
    for (const double density : {0.0001, 0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 0.6}) {
      const Pair pair = make_pair_of(elements, c.dtype, density, c.kind, 7);
      const TensorTable table({{"weight", c.dtype, {elements}}});
      const std::uint64_t own = file_bytes(table, one(pair.before), one(pair.after), with(PositionMode::kAuto, ValueCodec::kUlp));
      const std::vector<std::uint64_t> theirs = baseline_bytes(table, one(pair.before), one(pair.after));
      const auto best = static_cast<std::size_t>(std::min_element(theirs.begin(), theirs.end()) - theirs.begin());
      const double ratio = static_cast<double>(own) / static_cast<double>(theirs[best]);
      const auto changes = static_cast<double>(pair.changed);
      (c.kind == ChangeKind::kAdamw ? worse : worse_stress) += ratio > 1 ? 1 : 0;
      fmt::print("  {:<12} {:>10.4f} {:>10.3f} {:>10.3f}  {:<28} {:>8.3f}{}\n", c.name,
                 100 * changes / static_cast<double>(elements), static_cast<double>(own) / changes,
                 static_cast<double>(theirs[best]) / changes, baselines()[best].name, ratio, ratio > 1 ? "  LARGER" : "");
      std::fflush(stdout);
    }
  }
  fmt::print("# auto + ulp is larger than the best baseline in {} of 8 training-like cases (adamw), and in {} of {} stress cases\n",
             worse, worse_stress, (std::size(kCases) - 1) * 8);
  return worse == 0 ? 0 : 1;
}

}  // namespace sparsecast::bench
