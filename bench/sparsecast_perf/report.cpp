// SPDX-License-Identifier: Apache-2.0
#include "sparsecast_perf/report.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "sparsecast/version.hpp"

namespace sparsecast::perf {
namespace {

double ratio(double a, double b) { return b == 0 ? 0 : a / b; }
double per_change(const Row& row) {
  return ratio(static_cast<double>(row.wire_bytes), static_cast<double>(row.changed));
}
double density(const Row& row) { return ratio(static_cast<double>(row.changed), static_cast<double>(row.elements)); }
double compression(const Row& row) {
  return ratio(static_cast<double>(row.dense_bytes), static_cast<double>(row.wire_bytes));
}

void add_up(const std::vector<std::uint64_t>& values, std::vector<std::uint64_t>& sums) {
  sums.resize(values.size());
  for (std::size_t i = 0; i < values.size(); ++i) sums[i] += values[i];
}

/// "17-4711", the least and the most.
std::string range_of(const std::vector<std::uint64_t>& values) {
  const auto [least, most] = std::ranges::minmax_element(values);
  return least == values.end() ? "" : fmt::format("{}-{}", *least, *most);
}

Row add_up(const std::vector<Row>& rows) {
  Row sum;
  for (const Row& row : rows) {
    sum.elements += row.elements;
    sum.changed += row.changed;
    sum.dense_bytes += row.dense_bytes;
    sum.wire_bytes += row.wire_bytes;
    sum.encode += row.encode;
    sum.wire += row.wire;
    sum.apply += row.apply;
    sum.total += row.total;
    sum.dense += row.dense;
    sum.wrong += row.wrong;
    add_up(row.by_rank.sent, sum.by_rank.sent);
    add_up(row.by_rank.received, sum.by_rank.received);
    add_up(row.by_rank.foreign, sum.by_rank.foreign);
  }
  return sum;
}

nlohmann::ordered_json to_json(const Row& row) {
  nlohmann::ordered_json json = {{"step", row.step},
                                 {"elements", row.elements},
                                 {"changed", row.changed},
                                 {"density", density(row)},
                                 {"dense_bytes", row.dense_bytes},
                                 {"wire_bytes", row.wire_bytes},
                                 {"bytes_per_change", per_change(row)},
                                 {"ratio", compression(row)},
                                 {"encode_seconds", row.encode},
                                 {"wire_seconds", row.wire},
                                 {"apply_seconds", row.apply},
                                 {"total_seconds", row.total},
                                 {"dense_seconds", row.dense},
                                 {"speed_up", ratio(row.dense, row.total)},
                                 {"wrong", row.wrong}};
  if (row.by_rank.sent.empty()) return json;
  json["sent_bytes"] = row.by_rank.sent;
  json["received_bytes"] = row.by_rank.received;
  json["foreign_bytes"] = row.by_rank.foreign;
  return json;
}

nlohmann::ordered_json to_json(const FanoutHeader& fanout, const FanoutOptions& options) {
  return {{"trainer", options.trainer},
          {"engine", options.engine},
          {"engines", options.engines},
          {"scale_down", options.scale_down},
          {"density_asked", options.density},
          {"routes", fanout.routes},
          {"groups", fanout.groups},
          {"rounds", fanout.rounds},
          {"transfers", fanout.transfers},
          {"plan", fanout.hash},
          {"regroup_seconds", fanout.regroup_seconds}};
}

/// Returns what the names of the record's results begin with: what moves, and how.
std::string name_of(const Header& header, const Options& options) {
  const std::string source =
      options.by_layouts() ? bench::base_name(options.fanout.trainer) + " to " + bench::base_name(options.fanout.engine)
      : !options.checkpoints.empty() ? bench::base_name(options.checkpoints)
                                     : std::string("synthetic");
  const std::string link = options.link_gbps == 0 ? "" : fmt::format("{:g} Gb/s/", options.link_gbps);
  return fmt::format("{}/{} elements/{}, {}/{} ranks/{}/{}", source, header.elements, to_string(options.backend),
                     header.transport, header.ranks, header.detector, link);
}

/// Adds the phases' times, one sample per step, beside the dense broadcast of the same step; and bytes per change.
void add_results(const std::string& name, const std::vector<Row>& rows, const Row& sum, bench::Record& record) {
  const auto add = [&](const char* phase, double Row::*seconds) {
    std::vector<double> ms;
    for (const Row& row : rows) ms.push_back(1e3 * row.*seconds);
    bench::Measurement result = bench::median_of(name + phase, "ms", std::move(ms));
    if (seconds != &Row::dense) result.baseline = name + "dense";
    result.paired = true;
    record.results.push_back(std::move(result));
  };
  add("dense", &Row::dense);
  add("total", &Row::total);
  add("encode", &Row::encode);
  add("wire", &Row::wire);
  add("apply", &Row::apply);
  bench::Measurement size{name + "size", "B/change", per_change(sum)};
  size.exact = true;
  size.statistic = "total";
  record.results.push_back(std::move(size));
}

/// Four significant digits, in at most six characters: 0.125, 12.35, 1234, 1e+06.
std::string number(double value) {
  if (value < 9.9995) return fmt::format("{:.3f}", value);
  if (value < 99.995) return fmt::format("{:.2f}", value);
  if (value < 999.95) return fmt::format("{:.1f}", value);
  return value < 999999.5 ? fmt::format("{:.0f}", value) : fmt::format("{:.0e}", value);
}

/// "12.35 MB", in powers of 1000.
std::string byte_count(double bytes) {
  for (const auto& [unit, name] : {std::pair(1e9, "GB"), std::pair(1e6, "MB"), std::pair(1e3, "kB")}) {
    if (bytes >= unit) return fmt::format("{} {}", number(bytes / unit), name);
  }
  return fmt::format("{:.0f} bytes", bytes);
}

/// Appends words to lines that begin with "# " and are at most kTableColumns long; a longer word has a line of its own.
std::string wrapped(const std::string& first, const std::string& text) {
  std::string all;
  std::string line = first;
  bool fresh = true;
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t end = std::min(text.find(' ', at), text.size());
    const std::string word = text.substr(at, end - at);
    if (!fresh && line.size() + 1 + word.size() > kTableColumns) {
      all += line + "\n";
      line = "#           ";
      fresh = true;
    }
    line += (fresh ? "" : " ") + word;
    fresh = false;
    at = end + 1;
  }
  return all + line + "\n";
}

/// One line of the head, or several.
std::string field(const char* name, const std::string& text) { return wrapped(fmt::format("# {:<10}", name), text); }

std::string format_plan(const FanoutHeader& fanout) {
  return field("plan", fmt::format("{} routes in {} groups, opened in {} round(s); {} transfers; {}", fanout.routes,
                                   fanout.groups, fanout.rounds, fanout.transfers, fanout.hash)) +
         field("regroup",
               fmt::format("{:.1f} ms, with the anchors that seed the engines", 1e3 * fanout.regroup_seconds));
}

/// "paced to 1 Gb/s"
std::string pace_of(const Options& options) {
  return options.link_gbps == 0 ? "not paced" : fmt::format("paced to {:g} Gb/s", options.link_gbps);
}

constexpr const char* kForm = "{} {:>11} {:>7} {:>6} {:>7} {:>5} {:>6} {:>6} {:>6} {:>6} {:>6} {:>6} {:>8}{}\n";

std::string columns() {
  return fmt::format(kForm, '#', "step", "density", "dense", "wire", "B/chg", "ratio", "encode", "wire", "apply",
                     "total", "dense", "speed-up", " #wrong") +
         fmt::format(kForm, '#', "", "(%)", "(MB)", "(kB)", "", "(x)", "(ms)", "(ms)", "(ms)", "(ms)", "(ms)", "(x)",
                     "");
}

/// "##########      " of a length that `part` is of `whole`; something of it is always seen.
std::string bar(double part, double whole) {
  constexpr double kLength = 60;
  const auto length = static_cast<std::size_t>(std::max(1.0, kLength * ratio(part, whole) + 0.5));
  return std::string(length, '#');
}

}  // namespace

std::string format_header(const Header& header, const Options& options) {
  std::string libraries;
  for (const std::string& library : header.libraries) libraries += ", " + library;
  std::string text = wrapped("#", fmt::format(" sparsecast {}  backend {}, transport {}{}", version_string(),
                                              to_string(options.backend), header.transport, libraries));
  text += field("source", header.source);
  if (!header.device.empty()) text += field("device", header.device);
  if (options.share_gpu) text += "# all ranks of a machine share one device: this shows correctness, not speed\n";
  text += field("ranks", fmt::format("{} ({}), {} thread(s) each", header.ranks, header.roles, options.encode.threads));
  text += field("model", fmt::format("{} tensors, {} elements", header.tensors, header.elements));
  if (header.fanout) text += format_plan(*header.fanout);
  text +=
      field("encoding",
            fmt::format("detector {}, positions {}, values {}, blocks of {} changes, zstd {}, frames of {} MiB",
                        header.detector, to_string(options.encode.positions), to_string(options.encode.values),
                        options.encode.block_changes, options.encode.zstd_level, options.encode.frame_capacity >> 20));
  text += field("dense", header.dense_call);
  text += field("link", pace_of(options) + (options.link_gbps == 0 ? "" : ", sparse and dense alike"));
  return text + "#\n" + columns();
}

std::string format_row(const Row& row) {
  std::string text =
      fmt::format(kForm, ' ', row.step, number(100 * density(row)), number(1e-6 * static_cast<double>(row.dense_bytes)),
                  number(1e-3 * static_cast<double>(row.wire_bytes)), number(per_change(row)), number(compression(row)),
                  number(1e3 * row.encode), number(1e3 * row.wire), number(1e3 * row.apply), number(1e3 * row.total),
                  number(1e3 * row.dense), number(ratio(row.dense, row.total)), fmt::format(" {:>6}", row.wrong));
  if (!row.by_rank.sent.empty()) {
    text += field("bytes/rank", fmt::format(" sent {}, received {}, foreign {}", range_of(row.by_rank.sent),
                                            range_of(row.by_rank.received), range_of(row.by_rank.foreign)));
  }
  return text;
}

std::string format_summary(const std::vector<Row>& rows, const Options& options, bool bars) {
  Row sum = add_up(rows);
  sum.step = "all";
  std::string text = rows.size() > 1 ? format_row(sum) : "";
  const auto dense = static_cast<double>(sum.dense_bytes);
  const auto sparse = static_cast<double>(sum.wire_bytes);
  if (bars && !rows.empty()) {
    text += fmt::format("#\n# bytes  dense  {} {}\n", bar(dense, std::max(dense, sparse)), byte_count(dense));
    text += fmt::format("#        sparse {} {}\n", bar(sparse, std::max(dense, sparse)), byte_count(sparse));
    const double longer = std::max(sum.dense, sum.total);
    text += fmt::format("# time   dense  {} {} ms\n", bar(sum.dense, longer), number(1e3 * sum.dense));
    text += fmt::format("#        sparse {} {} ms\n#\n", bar(sum.total, longer), number(1e3 * sum.total));
  }
  text += fmt::format("# {} steps, {:.3f} bytes per change, {}\n", rows.size(), per_change(sum), pace_of(options));
  const double speed_up = ratio(sum.dense, sum.total);
  const bool sooner = speed_up >= 1;
  return text + fmt::format("# {:.1f} times fewer bytes than dense, {:.1f} times {}, #wrong {}: {}\n", compression(sum),
                            sooner ? speed_up : ratio(sum.total, sum.dense), sooner ? "sooner" : "later", sum.wrong,
                            all_right(rows) ? "OK" : "FAILED");
}

bool all_right(const std::vector<Row>& rows) {
  return !rows.empty() && std::ranges::all_of(rows, [](const Row& row) { return row.wrong == 0; });
}

bench::Record make_record(const Header& header, const Options& options, const std::vector<Row>& rows) {
  bench::Record record("sparsecast_perf");
  record.gpu = header.device;
  for (const std::string& library : header.libraries) {
    const std::size_t space = library.rfind(' ');
    if (space != std::string::npos) record.versions[library.substr(0, space)] = library.substr(space + 1);
  }
  nlohmann::ordered_json& json = record.more;
  json = {{"program", "sparsecast_perf"},
          {"version", version_string()},
          {"source", header.source},
          {"backend", to_string(options.backend)},
          {"transport", header.transport},
          {"libraries", header.libraries},
          {"device", header.device},
          {"share_gpu", options.share_gpu},
          {"dense_call", header.dense_call},
          {"link_gbps", options.link_gbps},
          {"ranks", header.ranks},
          {"threads", options.encode.threads},
          {"detector", header.detector},
          {"positions", to_string(options.encode.positions)},
          {"values", to_string(options.encode.values)},
          {"block_changes", options.encode.block_changes},
          {"zstd", options.encode.zstd_level}};
  if (header.fanout) json["fanout"] = to_json(*header.fanout, options.fanout);
  json["rows"] = nlohmann::ordered_json::array();
  for (const Row& row : rows) json["rows"].push_back(to_json(row));
  Row sum = add_up(rows);
  sum.step = "all";
  json["summary"] = to_json(sum);
  add_results(name_of(header, options), rows, sum, record);
  return record;
}

}  // namespace sparsecast::perf
