// SPDX-License-Identifier: Apache-2.0

// Every single bit of a small published history, one at a time: refused or harmless.

#include "soak/soak.hpp"
#include "support/log_flips.hpp"

namespace {

constexpr const char* kUsage =
    "log_flip_soak [--all | --seconds N]\n"
    "--all: every bit once. --seconds: every 101st bit from another one on, again and again, until then.\n";

using Number = unsigned long long;

int run(int argc, char** argv) {
  using namespace sparsecast;
  soak::Flags flags(argc, argv, kUsage);
  const bool all = flags.number("--all", 0) != 0;
  const std::uint64_t seconds = flags.number("--seconds", 10);
  flags.require_all_known();
  const soak::Stopwatch watch;
  test::FlipCount total;
  for (std::uint64_t first = 0; first == 0 || (!all && watch.seconds() < static_cast<double>(seconds)); ++first) {
    const test::FlipCount count = test::flip_bits(first, all ? 1 : 101);
    total.bits = count.bits;
    total.flips += count.flips;
    total.harmless += count.harmless;
    for (const auto& [code, times] : count.refused) total.refused[code] += times;
  }
  std::printf("%llu flips in a history of %llu bits, %.1f s: %llu harmless, refused:", Number{total.flips},
              Number{total.bits}, watch.seconds(), Number{total.harmless});
  for (const auto& [code, times] : total.refused) std::printf(" %s %llu", code.c_str(), Number{times});
  std::printf("; none silent\n");
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
