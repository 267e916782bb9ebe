// SPDX-License-Identifier: Apache-2.0

// Power losses at every operation of a follower, in place and by copies, files and directories, deltas and anchors:
// each state that the disk could then be in must become the newest version at the next start.

#include "soak.hpp"
#include "support/follower_crash.hpp"

namespace {

using namespace sparsecast;
using namespace sparsecast::test;

constexpr const char* kUsage =
    "log_follower_soak [--seconds S] [--seed SEED] [--luck N]\n"
    "  Every operation, with N (6) random disk states each and as many after a second crash; then, while S (0) "
    "seconds\n"
    "  are not over, again with other luck.\n";

unsigned long long as_print(std::uint64_t value) { return value; }

int run(soak::Flags& flags) {
  const std::uint64_t seed = flags.number("--seed", run_seed());
  const auto seconds = static_cast<double>(flags.number("--seconds", 0));
  const std::uint64_t luck = flags.number("--luck", 6);
  flags.require_all_known();
  const soak::Stopwatch watch;
  Random random(seed);
  CrashCounts total;
  // In a short run all scenarios are tried at fewer points.
  const std::uint64_t stride = seconds > 0 && seconds < 10 ? 7 : 1;
  do {
    for (const FollowedCheckpoint& how : kFollowedCheckpoints) {
      for (const CrashScenario scenario : kCrashScenarios) {
        FollowerCrash crash(how, scenario, random.next());
        const std::uint64_t operations = crash.operations();
        CrashCounts counts;
        for (std::uint64_t point = random.below(stride); point < operations; point += stride) {
          counts += crash.crash_at(point, stride > 1 ? 1 : luck, random);
        }
        std::printf(
            "%-22s %-36s %5llu points %7llu states, %6llu with an undo record, %5llu between renames, %llu failures\n",
            how.name, name_of(scenario), as_print(counts.points), as_print(counts.states), as_print(counts.undone),
            as_print(counts.between), as_print(counts.failures.size()));
        total += counts;
      }
    }
  } while (watch.seconds() < seconds && total.failures.empty() && stride == 1);
  for (std::size_t i = 0; i < total.failures.size() && i < 20; ++i)
    std::printf("FAILED %s\n", total.failures[i].c_str());
  std::printf("%llu crash points, %llu states in %.1f s: %llu failures; seed %llu\n", as_print(total.points),
              as_print(total.states), watch.seconds(), as_print(total.failures.size()), as_print(seed));
  return total.failures.empty() ? 0 : 1;
}

}  // namespace

int main(int argc, char** argv) {
  std::setvbuf(stdout, nullptr, _IOLBF, BUFSIZ);
  try {
    soak::Flags flags(argc, argv, kUsage);
    return run(flags);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "log_follower_soak: %s\n", error.what());
    return 1;
  }
}
