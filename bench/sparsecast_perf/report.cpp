#include "sparsecast_perf/report.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "sparsecast/io.hpp"
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
  }
  return sum;
}

nlohmann::ordered_json to_json(const Row& row) {
  return {{"step", row.step},
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
}

}  // namespace

void print_header(const Header& header, const Options& options) {
  fmt::print("# sparsecast {}  backend {}, transport {}", version_string(), to_string(options.backend),
             header.transport);
  for (const std::string& library : header.libraries) fmt::print(", {}", library);
  fmt::print("\n# source     {}\n", header.source);
  if (!header.device.empty()) fmt::print("# device     {}\n", header.device);
  if (options.share_gpu) fmt::print("# all ranks of a machine share one device: this shows correctness, not speed\n");
  fmt::print("# ranks      {} (1 publisher, {} receivers), {} thread(s) each\n", header.ranks, header.ranks - 1,
             options.encode.threads);
  fmt::print("# model      {} tensors, {} elements\n", header.tensors, header.elements);
  fmt::print("# encoding   detector {}, positions {}, values {}, zstd {}, frames of {} MiB\n", header.detector,
             to_string(options.encode.positions), to_string(options.encode.values), options.encode.zstd_level,
             options.encode.frame_capacity >> 20);
  fmt::print("# dense      {}\n", header.dense_call);
  fmt::print("#\n# {:>14} {:>8} {:>10} {:>11} {:>10} {:>8} {:>7} {:>8} {:>8} {:>8} {:>8} {:>8} {:>8} {:>6}\n", "step",
             "density", "changed", "dense", "wire", "B/change", "ratio", "encode", "wire", "apply", "total", "dense",
             "speed-up", "#wrong");
  fmt::print("# {:>14} {:>8} {:>10} {:>11} {:>10} {:>8} {:>7} {:>8} {:>8} {:>8} {:>8} {:>8} {:>8} {:>6}\n", "", "(%)",
             "(elems)", "(bytes)", "(bytes)", "", "(x)", "(ms)", "(ms)", "(ms)", "(ms)", "(ms)", "(x)", "");
  std::fflush(stdout);
}

void print_row(const Row& row) {
  fmt::print(
      "  {:>14} {:>8.3f} {:>10} {:>11} {:>10} {:>8.3f} {:>7.1f} {:>8.3f} {:>8.3f} {:>8.3f} {:>8.3f} {:>8.3f} {:>8.2f} "
      "{:>6}\n",
      row.step, 100 * density(row), row.changed, row.dense_bytes, row.wire_bytes, per_change(row), compression(row),
      1e3 * row.encode, 1e3 * row.wire, 1e3 * row.apply, 1e3 * row.total, 1e3 * row.dense, ratio(row.dense, row.total),
      row.wrong);
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

void write_json(const std::string& path, const Header& header, const Options& options, const std::vector<Row>& rows) {
  nlohmann::ordered_json json = {{"program", "sparsecast_perf"},
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
                                 {"zstd", options.encode.zstd_level},
                                 {"rows", nlohmann::ordered_json::array()}};
  for (const Row& row : rows) json["rows"].push_back(to_json(row));
  Row sum = add_up(rows);
  sum.step = "all";
  json["summary"] = to_json(sum);
  const std::string text = json.dump(2) + "\n";
  AtomicFile file(FileSystem::posix(), path);
  file.append(std::as_bytes(std::span(text)));
  file.commit();
}

}  // namespace sparsecast::perf
