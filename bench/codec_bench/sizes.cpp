// SPDX-License-Identifier: Apache-2.0

// Generated data from 0.01 % to 60 %: the whole delta file beside the smallest baseline.

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "codec_bench/commands.hpp"
#include "codec_bench/data.hpp"
#include "codec_bench/measure.hpp"

namespace sparsecast::bench {
namespace {

struct SizeCase {
  const char* name;
  DType dtype;
  ChangeKind kind;
};

constexpr SizeCase kCases[] = {
    {"bf16 adamw", DType::kBF16, ChangeKind::kAdamw}, {"bf16 wide", DType::kBF16, ChangeKind::kWide},
    {"bf16 rows", DType::kBF16, ChangeKind::kRows},   {"fp8 rows", DType::kF8E4M3, ChangeKind::kRows},
    {"fp8 wide", DType::kF8E4M3, ChangeKind::kWide},  {"f32 wide", DType::kF32, ChangeKind::kWide},
    {"f64 wide", DType::kF64, ChangeKind::kWide}};
constexpr double kDensities[] = {0.0001, 0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 0.6};

/// The least number of changes: with fewer, the fixed 400 bytes of a file would decide.
constexpr std::uint64_t kMinChanges = 4096;

/// Returns data of the case with at least `elements` elements and kMinChanges changes.
Pair enough_changes(const SizeCase& c, double density, std::uint64_t elements) {
  elements = std::max(elements, static_cast<std::uint64_t>(std::ceil(1.25 * kMinChanges / density)));
  for (;; elements *= 2) {
    Pair pair = make_pair_of(elements, c.dtype, density, c.kind, 7);
    if (pair.changed >= kMinChanges) return pair;
  }
}

/// Prints and records the case's row; returns true when sparsecast's file is larger than the best baseline, or with
/// `context` more than 1 % larger than without.
bool measure(const SizeCase& c, double density, std::uint64_t least_elements, Record& record) {
  const Pair pair = enough_changes(c, density, least_elements);
  const std::uint64_t elements = pair.before.size() / element_size(c.dtype);
  const TensorTable table({{"weight", c.dtype, {elements}}});
  const std::vector<ConstBytes> before{pair.before};
  const std::vector<ConstBytes> after{pair.after};
  const std::uint64_t own = file_bytes(table, before, after, with(PositionMode::kAuto, ValueCodec::kUlp));
  const std::uint64_t context = file_bytes(table, before, after, with(PositionMode::kContext, ValueCodec::kUlp));
  const bool too_large = 100 * context > 101 * own;
  const std::vector<std::uint64_t> theirs = baseline_bytes(table, before, after);
  const auto best = static_cast<std::size_t>(std::min_element(theirs.begin(), theirs.end()) - theirs.begin());
  const auto changes = static_cast<double>(pair.changed);
  fmt::print("  {:<12} {:>10.4f} {:>9} {:>9} {:>10.3f} {:>10.3f} {:>10.3f}  {:<26} {:>7.3f}{}\n", c.name,
             100 * changes / static_cast<double>(elements), elements, pair.changed, static_cast<double>(own) / changes,
             static_cast<double>(context) / changes, static_cast<double>(theirs[best]) / changes,
             baselines()[best].name, static_cast<double>(own) / static_cast<double>(theirs[best]),
             own > theirs[best] || too_large ? "  LARGER" : "");
  std::fflush(stdout);
  const std::string name = fmt::format("sizes/{}/{:g}%/{} elements", c.name, 100 * density, elements);
  const auto add = [&](const std::string& coding, std::uint64_t bytes, const std::string& baseline) {
    Measurement row{name + "/" + coding, "B/change", static_cast<double>(bytes) / changes};
    row.baseline = baseline;
    row.exact = true;
    record.results.push_back(std::move(row));
  };
  add("best baseline", theirs[best], "");
  add("auto + ulp", own, name + "/best baseline");
  add("context + ulp", context, name + "/auto + ulp");
  return own > theirs[best] || too_large;
}

}  // namespace

int run_sizes(std::uint64_t elements, Record& record) {
  fmt::print(
      "# whole .scd file (auto + ulp) against the best baseline's streams; each case has at least {} elements and as "
      "many\n"
      "# more as give {} changes\n"
      "# {:<12} {:>10} {:>9} {:>9} {:>10} {:>10} {:>10}  {:<26} {:>7}\n",
      elements, kMinChanges, "data", "density %", "elements", "changes", "auto B/ch", "context", "best B/ch",
      "best baseline", "ratio");
  int larger = 0;
  for (const SizeCase& c : kCases) {
    for (const double density : kDensities) larger += measure(c, density, elements, record) ? 1 : 0;
  }
  fmt::print("# auto + ulp is larger than the best baseline, or context than auto + 1 %, in {} of {} cases\n", larger,
             std::size(kCases) * std::size(kDensities));
  return larger == 0 ? 0 : 1;
}

}  // namespace sparsecast::bench
