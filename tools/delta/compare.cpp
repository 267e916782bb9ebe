// SPDX-License-Identifier: Apache-2.0

// sparsecast compare: compares two checkpoints bit for bit.

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <mutex>

#include "checkpoint/checkpoint_apply.hpp"
#include "checkpoint/streaming_detectors.hpp"
#include "checkpoint/table_difference.hpp"
#include "core/parallel.hpp"
#include "tools/common/commands.hpp"
#include "tools/common/options.hpp"
#include "tools/common/progress.hpp"
#include "tools/common/report.hpp"

namespace sparsecast::tools {
namespace {

constexpr std::size_t kShownTensors = 10;

struct CompareFlags {
  std::string first;
  std::string second;
  bool json = false;
  int threads = 0;
};

struct TensorDifference {
  std::uint64_t elements = 0;               ///< Number of elements that differ.
  std::uint64_t first = ~std::uint64_t{0};  ///< Index of the first element that differs.
};

std::vector<TensorDifference> find_differences(const TensorTable& table, TileDetector& detector, int threads,
                                               const Progress& progress) {
  struct Section {
    std::size_t tensor;
    std::uint64_t first;
    std::uint64_t end;
  };
  std::vector<Section> sections;
  for (std::size_t t = 0; t < table.size(); ++t) {
    for (std::uint64_t first = 0; first < table[t].elements(); first += kSectionElems) {
      sections.push_back({t, first, std::min<std::uint64_t>(first + kSectionElems, table[t].elements())});
    }
  }
  std::vector<TensorDifference> differences(table.size());
  std::vector<std::unique_ptr<TileWorkspace>> workspaces(static_cast<std::size_t>(resolve_threads(threads)));
  for (auto& workspace : workspaces) workspace = std::make_unique<TileWorkspace>();
  std::mutex mutex;
  std::atomic<std::uint64_t> done{0};
  parallel_for(threads, sections.size(), [&](std::size_t worker, std::size_t s) {
    const Section& section = sections[s];
    TensorDifference found;
    for (std::uint64_t at = section.first; at < section.end; at += kTileElems) {
      const auto count = static_cast<std::uint32_t>(std::min<std::uint64_t>(kTileElems, section.end - at));
      const TileView view = detector.detect(section.tensor, at, count, *workspaces[worker]);
      if (view.changed == 0) continue;
      if (found.elements == 0) found.first = at + workspaces[worker]->positions[0];
      found.elements += view.changed;
    }
    const std::uint64_t so_far = done += section.end - section.first;
    if (progress) progress("comparing", so_far, table.elements());
    const std::lock_guard<std::mutex> lock(mutex);
    differences[section.tensor].elements += found.elements;
    differences[section.tensor].first = std::min(differences[section.tensor].first, found.first);
  });
  return differences;
}

/// Returns the storage bits of an element, most significant digit first.
std::string bits_text(const Checkpoint& checkpoint, std::size_t tensor, std::uint64_t index) {
  const std::size_t size = element_size(checkpoint.table()[tensor].dtype);
  std::vector<std::byte> bytes(size);
  checkpoint.read(tensor, index * size, bytes);
  std::string text = "0x";
  for (std::size_t i = size; i > 0; --i) text += fmt::format("{:02x}", static_cast<unsigned>(bytes[i - 1]));
  return text;
}

int report_tables(Console& console, const CompareFlags& flags, const std::string& difference) {
  Report report;
  report.add("identical", false, "result", "the tensors are not the same");
  report.add("table_difference", difference, "difference");
  report.print(console, flags.json);
  return kExitDiffers;
}

int report_values(Console& console, const CompareFlags& flags, const Checkpoint& first, const Checkpoint& second,
                  const std::vector<TensorDifference>& differences) {
  const TensorTable& table = first.table();
  std::uint64_t elements = 0;
  std::uint64_t tensors = 0;
  nlohmann::ordered_json rows = nlohmann::ordered_json::array();
  Columns columns({"tensor", "differ", "of", "first index", "bits", "against"});
  for (std::size_t t = 0; t < table.size(); ++t) {
    if (differences[t].elements == 0) continue;
    elements += differences[t].elements;
    if (++tensors > kShownTensors && !flags.json) continue;
    const std::string a = bits_text(first, t, differences[t].first);
    const std::string b = bits_text(second, t, differences[t].first);
    columns.add({table[t].name, human_count(differences[t].elements), human_count(table[t].elements()),
                 std::to_string(differences[t].first), a, b});
    rows.push_back({{"name", table[t].name},
                    {"differing", differences[t].elements},
                    {"elements", table[t].elements()},
                    {"first_index", differences[t].first},
                    {"first_bits", a},
                    {"second_bits", b}});
  }
  const bool identical = elements == 0;
  Report report;
  report.add("identical", identical, "result", identical ? "identical, bit for bit" : "different");
  report.add("tensors", std::uint64_t{table.size()}, "tensors");
  report.add("elements", table.elements(), "elements");
  report.add("differing_tensors", tensors, identical ? "" : "differing tensors");
  report.add("differing_elements", elements, identical ? "" : "differing elements");
  report.add("tensor_rows", std::move(rows), "", "");
  report.print(console, flags.json);
  if (!identical && !flags.json) {
    console.out << '\n';
    columns.print(console.out);
    if (tensors > kShownTensors) console.out << fmt::format("({} more)\n", tensors - kShownTensors);
  }
  return identical ? kExitGood : kExitDiffers;
}

int run_compare(Console& console, const CompareFlags& flags) {
  require_not_interrupted(console.fs, flags.first);
  require_not_interrupted(console.fs, flags.second);
  Checkpoint first = Checkpoint::open(console.fs, flags.first);
  Checkpoint second = Checkpoint::open(console.fs, flags.second);
  second.declare(pairs_of(first.table()));
  first.declare(pairs_of(second.table()));
  const std::string difference = explain_difference(first.table(), flags.first, second.table(), flags.second);
  if (!difference.empty()) return report_tables(console, flags, difference);
  const std::unique_ptr<TileDetector> detector = make_checkpoint_detector(first, second);
  std::vector<TensorDifference> differences;
  {
    ProgressBar bar(console);
    differences = find_differences(first.table(), *detector, flags.threads, bar.callback());
  }
  return report_values(console, flags, first, second, differences);
}

}  // namespace

AddedCommand add_compare(Parser& app, Console& console) {
  auto flags = std::make_shared<CompareFlags>();
  Parser* parser = app.add_subcommand("compare", "Compare two checkpoints bit for bit; exit code 1 when they differ");
  parser->add_option("first", flags->first, "A checkpoint")->required()->type_name("A");
  parser->add_option("second", flags->second, "Another one")->required()->type_name("B");
  add_threads(*parser, flags->threads);
  add_json(*parser, flags->json);
  parser->footer(
      "Tensors are compared, not files: how they are cut into files, and __metadata__, do not matter.\n\n"
      "Example:\n"
      "  sparsecast compare step_101.safetensors copy_101.safetensors && echo same");
  return {parser, [flags, &console] { return run_compare(console, *flags); }};
}

}  // namespace sparsecast::tools
