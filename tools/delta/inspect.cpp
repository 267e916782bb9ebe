// SPDX-License-Identifier: Apache-2.0

// sparsecast inspect: validates a delta and prints its contents.

#include <fmt/format.h>

#include "codec/frame_reader.hpp"
#include "sparsecast/delta.hpp"
#include "sparsecast/error.hpp"
#include "sparsecast/safetensors.hpp"
#include "tools/common/commands.hpp"
#include "tools/common/options.hpp"
#include "tools/common/report.hpp"

namespace sparsecast::tools {
namespace {

using nlohmann::ordered_json;

struct InspectFlags {
  std::string delta;
  bool tensors = false;
  bool json = false;
};

ordered_json tensor_object(const TensorSpec& spec, const DeltaReport::Tensor& row) {
  return {{"name", spec.name},
          {"dtype", to_string(spec.dtype)},
          {"shape", spec.shape},
          {"elements", spec.elements()},
          {"changed", row.changed},
          {"density", ratio(static_cast<double>(row.changed), static_cast<double>(spec.elements()))},
          {"bytes", row.bytes},
          {"bytes_per_change", ratio(static_cast<double>(row.bytes), static_cast<double>(row.changed))},
          {"blocks", row.blocks},
          {"dense_blocks", row.dense_blocks}};
}

void print_tensors(Console& console, const DeltaFile& delta, const DeltaReport& found) {
  Columns columns({"tensor", "dtype", "elements", "changed", "density", "bytes", "B/change", "blocks", "dense"});
  for (const DeltaReport::Tensor& row : found.tensors) {
    const TensorSpec& spec = delta.table()[row.index];
    columns.add({spec.name, std::string(to_string(spec.dtype)), human_count(spec.elements()), human_count(row.changed),
                 human_percent(ratio(static_cast<double>(row.changed), static_cast<double>(spec.elements()))),
                 human_count(row.bytes),
                 fmt::format("{:.3f}", ratio(static_cast<double>(row.bytes), static_cast<double>(row.changed))),
                 human_count(row.blocks), human_count(row.dense_blocks)});
  }
  console.out << '\n';
  columns.print(console.out);
  const std::size_t untouched = delta.table().size() - found.tensors.size();
  if (untouched > 0) console.out << fmt::format("({} more tensors do not change)\n", untouched);
}

void add_blocks(Report& report, const DeltaReport& found) {
  ordered_json blocks = ordered_json::object();
  std::string text;
  for (std::size_t codec = 0; codec < std::size(found.blocks_by_codec); ++codec) {
    const std::string name(to_string(static_cast<PositionCodec>(codec)));
    const std::uint64_t count = found.blocks_by_codec[codec];
    blocks[name] = count;
    if (count > 0) text += fmt::format("{}{} {}", text.empty() ? "" : ", ", human_count(count), name);
  }
  report.add("blocks", std::move(blocks), "blocks", text.empty() ? "none" : text);
}

/// Returns what is at `path` if it is something else that sparsecast knows, with the command for it; or an empty text.
std::string what_else(FileSystem& fs, const std::string& path) {
  if (fs.is_directory(path) && fs.exists(path + "/commits")) return "a delta log: see 'sparsecast log status'";
  try {
    const std::size_t tensors = Checkpoint::open(fs, path).table().size();
    return fmt::format("a checkpoint of {} tensors: see 'sparsecast digest'", tensors);
  } catch (const Error&) {
    return fs.is_directory(path) ? "a directory that is no checkpoint" : "";
  }
}

DeltaFile open_delta(FileSystem& fs, const std::string& path) {
  try {
    return DeltaFile::open(fs, path);
  } catch (const Error&) {
    const std::string kind = fs.exists(path) ? what_else(fs, path) : "";
    if (kind.empty()) throw;
    throw Error(ErrorCode::kUsage, fmt::format("is no delta but {}", kind), path);
  }
}

int run_inspect(Console& console, const InspectFlags& flags) {
  const DeltaFile delta = open_delta(console.fs, flags.delta);
  const DeltaReport found = delta.report();
  const DeltaHeader& header = delta.header();
  const CommitRecord& commit = delta.commit();
  const auto changed = static_cast<double>(commit.changed);
  const double density = ratio(changed, static_cast<double>(header.elements));
  const double per_change = ratio(static_cast<double>(delta.bytes()), changed);
  const double smaller = ratio(static_cast<double>(delta.table().bytes()), static_cast<double>(delta.bytes()));
  Report report;
  report.add("file", flags.delta, "file");
  report.add("stream", header.stream, "stream");
  report.add("base_version", header.base_version, "");
  report.add("version", header.version, "version", fmt::format("{} -> {}", header.base_version, header.version));
  report.add("tensors", std::uint64_t{header.tensors}, "tensors");
  report.add("elements", header.elements, "elements");
  report.add("changed", commit.changed, "changed");
  report.add("density", density, "density", human_percent(density));
  report.add("dense_bytes", delta.table().bytes(), "dense bytes",
             fmt::format("{} ({})", human_count(delta.table().bytes()), human_bytes(delta.table().bytes())));
  report.add("delta_bytes", delta.bytes(), "delta bytes",
             fmt::format("{} ({})", human_count(delta.bytes()), human_bytes(delta.bytes())));
  report.add("bytes_per_change", per_change, "bytes per change", fmt::format("{:.4f}", per_change));
  report.add("ratio", smaller, "ratio", fmt::format("{:.4g} times smaller than dense", smaller));
  report.add("positions", std::string(to_string(header.positions)), "positions");
  report.add("values", std::string(to_string(header.values)), "values");
  report.add("frames", std::uint64_t{commit.frames}, "frames");
  report.add("frame_capacity", std::uint64_t{header.frame_capacity}, "frame capacity");
  add_blocks(report, found);
  const bool needs_base = found.blocks_by_codec[static_cast<std::size_t>(PositionCodec::kContext)] > 0;
  report.add("needs_base", needs_base, needs_base ? "needs" : "",
             fmt::format("the weights of {}, to say which elements change", describe_base(header)));
  report.add("table_hash", header.table_hash, "table hash");
  report.add("base_digest", header.base_digest.value, "base digest");
  report.add("result_digest", commit.result_digest.value, "result digest");
  if (flags.tensors) {
    ordered_json rows = ordered_json::array();
    for (const DeltaReport::Tensor& row : found.tensors) rows.push_back(tensor_object(delta.table()[row.index], row));
    report.add("tensor_rows", std::move(rows), "", "");
  }
  report.print(console, flags.json);
  if (flags.tensors && !flags.json) print_tensors(console, delta, found);
  return kExitGood;
}

}  // namespace

AddedCommand add_inspect(Parser& app, Console& console) {
  auto flags = std::make_shared<InspectFlags>();
  Parser* parser = app.add_subcommand("inspect", "Show what a delta holds, and verify all of it");
  parser->add_option("delta", flags->delta, "The delta file")->required()->type_name("DELTA");
  parser->add_flag("--tensors", flags->tensors, "A row for each tensor that changes");
  add_json(*parser, flags->json);
  parser->footer(
      "Every checksum is verified and every block decoded, so a good exit code means that the file is whole.\n"
      "Whether it fits a checkpoint is known when it is applied.\n\n"
      "Example:\n"
      "  sparsecast inspect 101.scd --tensors");
  return {parser, [flags, &console] { return run_inspect(console, *flags); }};
}

}  // namespace sparsecast::tools
