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
  return fmt::format("{}/{} elements/{}, {}/{} ranks/{}/", source, header.elements, to_string(options.backend),
                     header.transport, header.ranks, header.detector);
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

void print_plan(const FanoutHeader& fanout) {
  fmt::print("# plan       {} routes in {} groups, opened in {} round(s); {} transfers; {}\n", fanout.routes,
             fanout.groups, fanout.rounds, fanout.transfers, fanout.hash);
  fmt::print("# regroup    {:.1f} ms, with the anchors that seed the engines\n", 1e3 * fanout.regroup_seconds);
}

void print_columns(const Header& header) {
  constexpr const char* kForm =
      "# {:>14} {:>8} {:>10} {:>11} {:>10} {:>8} {:>7} {:>8} {:>8} {:>8} {:>8} {:>8} {:>8} {:>6}";
  constexpr const char* kByRank = " {:>17} {:>17} {:>17}";
  const bool by_rank = header.fanout.has_value();
  fmt::print("#\n");
  fmt::print(kForm, "step", "density", "changed", "dense", "wire", "B/change", "ratio", "encode", "wire", "apply",
             "total", "dense", "speed-up", "#wrong");
  if (by_rank) fmt::print(kByRank, "sent/rank", "received/rank", "foreign/rank");
  fmt::print("\n");
  fmt::print(kForm, "", "(%)", "(elems)", "(bytes)", "(bytes)", "", "(x)", "(ms)", "(ms)", "(ms)", "(ms)", "(ms)",
             "(x)", "");
  if (by_rank) fmt::print(kByRank, "(bytes)", "(bytes)", "(bytes)");
  fmt::print("\n");
}

}  // namespace

void print_header(const Header& header, const Options& options) {
  fmt::print("# sparsecast {}  backend {}, transport {}", version_string(), to_string(options.backend),
             header.transport);
  for (const std::string& library : header.libraries) fmt::print(", {}", library);
  fmt::print("\n# source     {}\n", header.source);
  if (!header.device.empty()) fmt::print("# device     {}\n", header.device);
  if (options.share_gpu) fmt::print("# all ranks of a machine share one device: this shows correctness, not speed\n");
  fmt::print("# ranks      {} ({}), {} thread(s) each\n", header.ranks, header.roles, options.encode.threads);
  fmt::print("# model      {} tensors, {} elements\n", header.tensors, header.elements);
  if (header.fanout) print_plan(*header.fanout);
  fmt::print("# encoding   detector {}, positions {}, values {}, zstd {}, frames of {} MiB\n", header.detector,
             to_string(options.encode.positions), to_string(options.encode.values), options.encode.zstd_level,
             options.encode.frame_capacity >> 20);
  fmt::print("# dense      {}\n", header.dense_call);
  print_columns(header);
  std::fflush(stdout);
}

void print_row(const Row& row) {
  fmt::print(
      "  {:>14} {:>8.3f} {:>10} {:>11} {:>10} {:>8.3f} {:>7.1f} {:>8.3f} {:>8.3f} {:>8.3f} {:>8.3f} {:>8.3f} {:>8.2f} "
      "{:>6}",
      row.step, 100 * density(row), row.changed, row.dense_bytes, row.wire_bytes, per_change(row), compression(row),
      1e3 * row.encode, 1e3 * row.wire, 1e3 * row.apply, 1e3 * row.total, 1e3 * row.dense, ratio(row.dense, row.total),
      row.wrong);
  if (!row.by_rank.sent.empty()) {
    fmt::print(" {:>17} {:>17} {:>17}", range_of(row.by_rank.sent), range_of(row.by_rank.received),
               range_of(row.by_rank.foreign));
  }
  fmt::print("\n");
  std::fflush(stdout);
}

bool print_summary(const std::vector<Row>& rows) {
  Row sum = add_up(rows);
  sum.step = "all";
  if (rows.size() > 1) print_row(sum);
  const bool good = sum.wrong == 0 && !rows.empty();
  fmt::print(
      "# {} steps, {:.3f} bytes per change, {:.1f} times fewer bytes than dense, {:.2f} times its speed here, "
      "#wrong {}: {}\n",
      rows.size(), per_change(sum), compression(sum), ratio(sum.dense, sum.total), sum.wrong, good ? "OK" : "FAILED");
  std::fflush(stdout);
  return good;
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
          {"ranks", header.ranks},
          {"threads", options.encode.threads},
          {"detector", header.detector},
          {"positions", to_string(options.encode.positions)},
          {"values", to_string(options.encode.values)},
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
