// SPDX-License-Identifier: Apache-2.0

// control_plane: what the control plane costs with many ranks, by a discrete-event simulation of its messages, and by a
// run of its own code with every rank on a thread.

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <array>

#include "common/record.hpp"
#include "control_plane/run.hpp"
#include "control_plane/simulate.hpp"
#include "sparsecast/error.hpp"

namespace sparsecast::bench {
namespace {

struct NamedChannel {
  const char* name = "";
  Channel channel;
};

constexpr std::array<NamedChannel, 4> kChannels{{{"star, all to all", {0, false}},
                                                 {"tree of 32, all to all", {32, false}},
                                                 {"star, combined", {0, true}},
                                                 {"tree of 32, combined", {32, true}}}};

void add_row(Record& record, std::string name, const char* unit, double value, bool exact) {
  Measurement row{std::move(name), unit, value};
  row.exact = exact;
  record.results.push_back(std::move(row));
}

void print_simulation(const World& world, const Costs& costs, Record& record) {
  const std::array<std::pair<const char*, std::vector<Step>>, 2> phases{
      {{"regroup", steps_of_regroup(world)}, {"sync", steps_of_sync(world)}}};
  for (const auto& [phase, steps] : phases) {
    for (const NamedChannel& each : kChannels) {
      const Total total = simulate(steps, each.channel, costs);
      fmt::print("{:>6}  {:<8} {:<23} {:>12} {:>14} {:>14} {:>9} {:>10.2f}\n", world.size(), phase, each.name,
                 total.hub_in, total.hub_out, total.busiest, total.path_messages, 1e3 * total.seconds);
      const std::string name = fmt::format("{}/{}/{}/", phase, each.name, world.size());
      add_row(record, name + "hub_in", "B", static_cast<double>(total.hub_in), true);
      add_row(record, name + "hub_out", "B", static_cast<double>(total.hub_out), true);
      add_row(record, name + "seconds", "s", total.seconds, false);
    }
  }
}

void print_steps(const World& world) {
  fmt::print("\n{:<20} {:>12} {:>14} {:>14} {:>12} {:>12} {:>12}\n", fmt::format("{} ranks", world.size()), "bytes in",
             "out, gathered", "out, combined", "read all ms", "combine ms", "read one ms");
  for (const Step& step : steps_of_regroup(world)) {
    std::uint64_t in = 0;
    for (std::size_t r = 1; r < step.parts.size(); ++r) in += step.parts[r];
    const std::uint64_t others = step.parts.size() - 1;
    fmt::print("{:<20} {:>12} {:>14} {:>14} {:>12.2f} {:>12.2f} {:>12.2f}\n", step.name, in, others * step.gathered,
               others * step.reduced, 1e3 * step.all_seconds, 1e3 * step.combine_seconds, 1e3 * step.read_seconds);
  }
}

void print_run(const World& world, bool reduces, int repeats, Record& record) {
  const char* const how = reduces ? "combined" : "all to all";
  for (const HubStep& step : run_world(world, reduces, repeats, std::chrono::minutes(8))) {
    fmt::print("{:>6}  {:<12} {:<22} {:>12.2f} {:>12.2f}\n", world.size(), how, step.name, 1e3 * step.seconds,
               1e3 * step.processor_seconds);
    const std::string name = fmt::format("run/{}/{}/{}/", how, step.name, world.size());
    add_row(record, name + "wall", "ms", 1e3 * step.seconds, false);
    add_row(record, name + "hub", "ms", 1e3 * step.processor_seconds, false);
  }
}

int run(int argc, char** argv) {
  CLI::App app("Bytes and times of regroups and syncs in the control plane, by number of ranks", "control_plane");
  std::vector<int> ranks{8, 64, 512, 1536};
  int engines = 32;
  int tensors = 1000;
  int repeats = 10;
  bool runs = false;
  bool gathers = false;
  std::string json;
  Costs costs;
  double message_us = 1e6 * costs.message_seconds;
  app.add_option("--ranks", ranks, "Numbers of ranks, one third of them engines'")
      ->delimiter(',')
      ->capture_default_str();
  app.add_option("--engines", engines, "Most engines")->capture_default_str();
  app.add_option("--tensors", tensors, "Tensors of a layout")->capture_default_str();
  app.add_flag("--run", runs, "Run the library's code over TCP on loopback instead of simulating");
  app.add_flag("--all-to-all", gathers, "With --run: send the parts of all ranks to all ranks");
  app.add_option("--repeats", repeats, "With --run: votes of which the mean is taken")->capture_default_str();
  app.add_option("--message-us", message_us, "Processor time of a message at either end, in microseconds")
      ->capture_default_str();
  app.add_option("--json", json, "Write the record to this file (- for standard output)");
  CLI11_PARSE(app, argc, argv);
  costs.message_seconds = 1e-6 * message_us;

  const RecordFile file(json);
  Record record("control_plane");
  if (runs) {
    fmt::print("{:>6}  {:<12} {:<22} {:>12} {:>12}\n", "ranks", "", "step of the hub", "wall ms", "processor ms");
  } else {
    fmt::print("{:>6}  {:<8} {:<23} {:>12} {:>14} {:>14} {:>9} {:>10}\n", "ranks", "", "channel", "hub in B",
               "hub out B", "busiest B", "messages", "ms");
  }
  for (const int size : ranks) {
    const World world(size, engines, tensors);
    if (runs) {
      print_run(world, !gathers, repeats, record);
    } else {
      print_simulation(world, costs, record);
    }
  }
  if (!runs) print_steps(World(ranks.back(), engines, tensors));
  if (file.wanted()) file.write(record);
  return 0;
}

}  // namespace
}  // namespace sparsecast::bench

int main(int argc, char** argv) {
  try {
    return sparsecast::bench::run(argc, argv);
  } catch (const std::exception& error) {
    fmt::print(stderr, "control_plane: {}\n", error.what());
    return 1;
  }
}
