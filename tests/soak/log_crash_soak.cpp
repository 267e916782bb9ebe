// SPDX-License-Identifier: Apache-2.0

// Crash states of everything that writes a delta log, round after round with other seeds, and every failed call once.

#include "soak/soak.hpp"
#include "support/log_crash.hpp"

namespace {

constexpr const char* kUsage =
    "log_crash_soak [--rounds N | --seconds N]\n"
    "A round: a crash at every call of every operation, two states of each, every 7th recovery crashed itself.\n"
    "At the end every call fails once, cut short, and for ever.\n";

using Number = unsigned long long;

int run(int argc, char** argv) {
  using namespace sparsecast;
  soak::Flags flags(argc, argv, kUsage);
  const std::uint64_t rounds = flags.number("--rounds", 0);
  const std::uint64_t seconds = flags.number("--seconds", 10);
  flags.require_all_known();
  const soak::Stopwatch watch;
  std::vector<test::CrashCount> counts(test::log_scenarios().size());
  std::uint64_t round = 0;
  for (; round == 0 || (rounds != 0 ? round < rounds : watch.seconds() < static_cast<double>(seconds)); ++round) {
    for (std::size_t i = 0; i < counts.size(); ++i) {
      const test::CrashCount count = enumerate_crashes(test::log_scenarios()[i], {round * 2, 2, 7});
      counts[i].operations = count.operations;
      counts[i].states += count.states;
      counts[i].second_crashes += count.second_crashes;
      counts[i].advanced += count.advanced;
    }
  }
  std::printf("%-20s %8s %10s %14s\n", "operation", "calls", "states", "crashed again");
  test::CrashCount total;
  for (std::size_t i = 0; i < counts.size(); ++i) {
    std::printf("%-20s %8llu %10llu %14llu\n", test::log_scenarios()[i].name.c_str(), Number{counts[i].operations},
                Number{counts[i].states}, Number{counts[i].second_crashes});
    total.operations += counts[i].operations;
    total.states += counts[i].states;
    total.second_crashes += counts[i].second_crashes;
  }
  std::printf("%-20s %8llu %10llu %14llu\n", "all", Number{total.operations}, Number{total.states},
              Number{total.second_crashes});
  std::uint64_t failures = 0;
  for (const test::LogScenario& scenario : test::log_scenarios()) failures += enumerate_failures(scenario);
  std::printf("%llu failed calls, each reported, and the next attempt succeeded; %.1f s\n", Number{failures},
              watch.seconds());
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  try {
    return run(argc, argv);
  } catch (const std::exception& error) {
    std::printf("FAILED: %s\n", error.what());
    return 1;
  }
}
