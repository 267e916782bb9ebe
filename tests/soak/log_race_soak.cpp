// SPDX-License-Identifier: Apache-2.0

// Publishers that race for one log on real files: after any number of races there is one commit a version, and no fork.

#include <filesystem>

#include "soak/soak.hpp"
#include "support/log_race.hpp"
#include "support/temporary_directory.hpp"

namespace {

constexpr const char* kUsage =
    "log_race_soak [--races N | --seconds N] [--publishers 8] [--seed 1]\n"
    "Each race: all publishers take the log over at once. --seconds: races of 20 until then. TMPDIR says where.\n";

int run(int argc, char** argv) {
  using namespace sparsecast;
  soak::Flags flags(argc, argv, kUsage);
  test::RaceSettings settings;
  const std::uint64_t races = flags.number("--races", 0);
  const std::uint64_t seconds = flags.number("--seconds", 10);
  settings.publishers = static_cast<int>(flags.number("--publishers", 8));
  settings.seed = flags.number("--seed", 1);
  flags.require_all_known();
  const soak::Stopwatch watch;
  std::uint64_t done = 0;
  test::RaceReport total;
  while (races != 0 ? done < races : watch.seconds() < static_cast<double>(seconds)) {
    settings.races = races != 0 ? std::min<std::uint64_t>(races - done, 500) : 20;
    const test::TemporaryDirectory directory;
    const test::RaceReport report = test::race_publishers(directory.path(), settings);
    if (!report.problem.empty()) {
      std::printf("FAILED (seed %llu): %s\n", static_cast<unsigned long long>(settings.seed), report.problem.c_str());
      return 1;
    }
    done += settings.races;
    ++settings.seed;
    total.versions += report.versions;
    total.takeovers += report.takeovers;
    total.fenced += report.fenced;
  }
  std::printf("%llu races of %d publishers in %.1f s: %llu versions (%llu takeovers), %llu calls fenced, one history\n",
              static_cast<unsigned long long>(done), settings.publishers, watch.seconds(),
              static_cast<unsigned long long>(total.versions), static_cast<unsigned long long>(total.takeovers),
              static_cast<unsigned long long>(total.fenced));
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  try {
    return run(argc, argv);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "log_race_soak: %s\n", error.what());
    return 2;
  }
}
