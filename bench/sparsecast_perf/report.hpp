// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "common/record.hpp"
#include "sparsecast_perf/options.hpp"

namespace sparsecast::perf {

/// What ranks sent and got in one step, or in all of them; empty for runs without layouts.
struct RankBytes {
  std::vector<std::uint64_t> sent;      ///< By trainer rank: its own deltas, each once.
  std::vector<std::uint64_t> received;  ///< By engine rank, engine after engine: deltas for it.
  std::vector<std::uint64_t> foreign;   ///< By process: deltas for others of its groups, dropped unread.
};

/// One step of the run. Times in seconds; what each means: docs/performance.md.
struct Row {
  std::string step;
  std::uint64_t elements = 0;
  std::uint64_t changed = 0;
  std::uint64_t dense_bytes = 0;
  std::uint64_t wire_bytes = 0;
  double encode = 0;
  double wire = 0;
  double apply = 0;
  double total = 0;
  double dense = 0;
  std::uint64_t wrong = 0;
  RankBytes by_rank = {};
};

/// Of a run by layouts.
struct FanoutHeader {
  std::size_t routes = 0;
  std::size_t groups = 0;
  std::uint32_t rounds = 0;
  std::size_t transfers = 0;
  std::string hash;            ///< The plan's.
  double regroup_seconds = 0;  ///< Meeting, plan, groups, and the anchors that seed the engines.
};

struct Header {
  std::string source;
  int ranks = 0;
  std::string roles;  ///< "1 publisher, 3 receivers"
  std::string transport;
  std::vector<std::string> libraries;  ///< Names and versions.
  std::string dense_call;              ///< What the dense broadcast calls.
  std::string device;                  ///< Its name; empty for a run without one.
  std::string detector;
  std::size_t tensors = 0;
  std::uint64_t elements = 0;
  std::optional<FanoutHeader> fanout;
};

/// Most columns of a line of the table.
inline constexpr std::size_t kTableColumns = 100;

/// Each returns whole lines, at most kTableColumns wide unless a single word is longer. The summary's last line says in
/// words how many times fewer bytes and how many times sooner; with `bars`, bars of both come before it.
std::string format_header(const Header& header, const Options& options);
std::string format_row(const Row& row);
std::string format_summary(const std::vector<Row>& rows, const Options& options, bool bars);
/// Returns true when nothing was wrong and there was at least one row.
bool all_right(const std::vector<Row>& rows);
/// Returns what --json writes: the fields of bench/README.md, and this program's own.
bench::Record make_record(const Header& header, const Options& options, const std::vector<Row>& rows);

}  // namespace sparsecast::perf
