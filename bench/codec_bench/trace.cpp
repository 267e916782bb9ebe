// SPDX-License-Identifier: Apache-2.0

// A recorded trace, step by step: whole delta files beside the baselines' streams.

#include <fmt/format.h>

#include <algorithm>

#include "codec_bench/commands.hpp"
#include "codec_bench/floors.hpp"
#include "codec_bench/measure.hpp"
#include "common/checkpoint_series.hpp"
#include "common/count_differing.hpp"

namespace sparsecast::bench {
namespace {

struct CodingSize {
  std::string name;
  std::uint64_t bytes = 0;  ///< Sum over all steps.
};

struct StepRow {
  std::string name;
  std::uint64_t changed = 0;
  std::uint64_t own = 0;  ///< Bytes of auto + ulp.
  std::uint64_t best = 0;
  std::string best_baseline;
};

struct Result {
  std::uint64_t elements = 0;
  std::uint64_t changed = 0;
  std::vector<CodingSize> own;
  std::vector<CodingSize> baselines;
  std::vector<StepRow> steps;
  Floors floors;  ///< Sums over all steps.

  const CodingSize& best_baseline() const {
    return *std::min_element(baselines.begin(), baselines.end(),
                             [](const CodingSize& a, const CodingSize& b) { return a.bytes < b.bytes; });
  }
};

using Options = std::vector<std::pair<std::string, EncodeOptions>>;

/// Codings of sparsecast. The first is the default.
const Options& own_codings() {
  static const Options all = {
      {"auto + ulp", with(PositionMode::kAuto, ValueCodec::kUlp)},
      {"packed + ulp", with(PositionMode::kPacked, ValueCodec::kUlp)},
      {"packed + ulp, large blocks", with_large_blocks(PositionMode::kPacked, ValueCodec::kUlp)},
      {"context + ulp", with(PositionMode::kContext, ValueCodec::kUlp)},
      {"auto + ulp, zstd 1", with(PositionMode::kAuto, ValueCodec::kUlp, 1)},
      {"packed + xor", with(PositionMode::kPacked, ValueCodec::kXor)},
      {"packed + raw", with(PositionMode::kPacked, ValueCodec::kRaw)},
      {"gap16 + raw", with(PositionMode::kGap16, ValueCodec::kRaw)},
      {"index32 + raw", with(PositionMode::kIndex32, ValueCodec::kRaw)},
  };
  return all;
}

using State = std::vector<std::vector<std::byte>>;

std::vector<MutableBytes> live(State& state) { return {state.begin(), state.end()}; }

void measure_step(const TensorTable& table, const State& previous, const State& state, const std::string& name,
                  Result& result) {
  StepRow row;
  row.name = name;
  const std::vector<ConstBytes> before(previous.begin(), previous.end());
  const std::vector<ConstBytes> after(state.begin(), state.end());
  for (std::size_t t = 0; t < table.size(); ++t) {
    row.changed += count_differing(before[t], after[t], element_size(table[t].dtype));
  }
  for (std::size_t i = 0; i < result.own.size(); ++i) {
    const std::uint64_t bytes = file_bytes(table, before, after, own_codings()[i].second);
    if (i == 0) row.own = bytes;
    result.own[i].bytes += bytes;
  }
  const std::vector<std::uint64_t> theirs = baseline_bytes(table, before, after, trace_baselines());
  for (std::size_t i = 0; i < theirs.size(); ++i) result.baselines[i].bytes += theirs[i];
  result.floors += floors_of(table, before, after);
  const auto best = std::min_element(theirs.begin(), theirs.end());
  row.best = *best;
  row.best_baseline = result.baselines[static_cast<std::size_t>(best - theirs.begin())].name;
  result.changed += row.changed;
  result.steps.push_back(std::move(row));
}

double per_change(std::uint64_t bytes, std::uint64_t changed) {
  return static_cast<double>(bytes) / static_cast<double>(std::max<std::uint64_t>(1, changed));
}

void print_table(const std::string& directory, const Result& result) {
  const std::uint64_t scanned = result.elements * result.steps.size();
  fmt::print("# {}: {} steps, {} elements, {} changes ({:.3f} % a step)\n", directory, result.steps.size(),
             result.elements, result.changed,
             100.0 * static_cast<double>(result.changed) / static_cast<double>(scanned));
  fmt::print("# {:<30} {:>10} {:>11} {:>11} {:>7}  {}\n", "step", "changes", "auto B/ch", "best B/ch", "ratio",
             "best baseline");
  for (const StepRow& row : result.steps) {
    fmt::print("  {:<30} {:>10} {:>11.3f} {:>11.3f} {:>7.3f}  {}\n", row.name, row.changed,
               per_change(row.own, row.changed), per_change(row.best, row.changed), per_change(row.own, row.best),
               row.best_baseline);
  }
  fmt::print("# {:<30} {:>10} {:>11}\n", "coding, over all steps", "bytes", "B/change");
  for (const auto* codings : {&result.own, &result.baselines}) {
    for (const CodingSize& coding : *codings) {
      fmt::print("  {:<30} {:>10} {:>11.3f}\n", coding.name, coding.bytes, per_change(coding.bytes, result.changed));
    }
  }
  for (const auto& [name, bits] : result.floors.rows()) {
    const auto bytes = static_cast<std::uint64_t>(bits / 8);
    fmt::print("  {:<30} {:>10} {:>11.3f}\n", name, bytes, per_change(bytes, result.changed));
  }
}

void add_rows(const std::string& directory, const Result& result, Record& record) {
  record.more["trace"] = {{"directory", directory},
                          {"steps", result.steps.size()},
                          {"elements", result.elements},
                          {"changed", result.changed}};
  const auto add = [&](const std::string& name, std::uint64_t bytes, std::uint64_t changed) {
    Measurement row{name, "B/change", per_change(bytes, changed)};
    row.exact = true;
    row.statistic = "total";
    record.results.push_back(std::move(row));
  };
  const std::string trace = fmt::format("trace/{}/", base_name(directory));
  for (const auto* codings : {&result.own, &result.baselines}) {
    for (const CodingSize& coding : *codings) add(trace + coding.name, coding.bytes, result.changed);
  }
  for (const auto& [name, bits] : result.floors.rows()) {
    add(trace + name, static_cast<std::uint64_t>(bits / 8), result.changed);
  }
  record.results.front().baseline = trace + result.best_baseline().name;
  for (const StepRow& row : result.steps) {
    add(trace + row.name + "/best baseline", row.best, row.changed);
    add(trace + row.name + "/" + result.own[0].name, row.own, row.changed);
    record.results.back().baseline = trace + row.name + "/best baseline";
  }
}

}  // namespace

int run_trace(const std::string& directory, Record& record) {
  const CheckpointSeries series(FileSystem::posix(), directory);
  const TensorTable& table = series.table();
  Result result;
  result.elements = table.elements();
  for (const auto& [name, options] : own_codings()) result.own.push_back({"sparsecast " + name});
  for (const Baseline& baseline : trace_baselines()) result.baselines.push_back({baseline.name});
  State state;
  for (const TensorSpec& spec : table) state.emplace_back(spec.bytes());
  series.load_first(live(state));
  for (std::size_t step = 1; step <= series.steps(); ++step) {
    const State previous = state;
    series.advance(step, live(state));
    measure_step(table, previous, state, series.name(step), result);
  }
  print_table(directory, result);
  add_rows(directory, result, record);
  const CodingSize& best = result.best_baseline();
  if (result.own[0].bytes <= best.bytes) return 0;
  fmt::print(stderr, "codec_bench: {} takes {} bytes, {} only {}\n", result.own[0].name, result.own[0].bytes, best.name,
             best.bytes);
  return 1;
}

}  // namespace sparsecast::bench
