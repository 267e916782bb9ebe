// SPDX-License-Identifier: Apache-2.0

// Millions of random deltas from publisher to subscriber, every byte compared. One delta in 16 is also held to the
// reference encoder, goes through a delta file and is rolled back again.

#include <atomic>
#include <mutex>
#include <thread>
#include <vector>

#include "soak.hpp"
#include "support/huge_tensor.hpp"
#include "support/round_trip.hpp"

namespace {

using namespace sparsecast;
using namespace sparsecast::test;

constexpr const char* kUsage =
    "round_trip_soak [--count N] [--seconds S] [--threads T] [--seed SEED] [--case INDEX] [--huge]\n"
    "  Round-trips N (10000000) random deltas, or as many as S seconds allow, on T (2) threads.\n"
    "  --case INDEX runs that one alone, to reproduce a failure of the same seed.\n"
    "  --huge adds tensors of more than 2^32 elements, one for each value codec.\n";
constexpr std::uint64_t kMostFailures = 10;

RandomLimits limits_of(Random& random) {
  if (random.chance(1.0 / 200'000)) return {2, 9'000'000, 1.0, true};
  if (random.chance(1.0 / 2'000)) return {3, 200'000, 0.5, true};
  return {3, 20'000, 0.003, true};
}

std::uint64_t run_case(std::uint64_t seed) {
  Random random(seed);
  const RandomLimits limits = limits_of(random);
  RandomDelta delta = random_delta(random, limits);
  const bool deep = random.chance(1.0 / 16);
  const std::uint64_t elements = delta.table->elements();
  check_round_trip(std::move(delta), random, {deep && elements < 1'000'000, deep, deep});
  return elements;
}

class Soak {
 public:
  Soak(std::uint64_t seed, std::uint64_t count, double seconds) : seed_(seed), count_(count), seconds_(seconds) {}

  bool run(std::uint64_t threads) {
    std::printf("seed %llu, %llu deltas, %llu threads\n", as_print(seed_), as_print(count_), as_print(threads));
    {
      std::vector<std::jthread> workers;
      for (std::uint64_t i = 0; i < threads; ++i) workers.emplace_back([this] { work(); });
      report_progress();
    }
    const double seconds = watch_.seconds();
    std::printf("%llu deltas of %llu elements in %.1f s: %.0f a second; %llu failures; seed %llu\n", as_print(done_),
                as_print(elements_), seconds, static_cast<double>(done_) / seconds, as_print(failures_),
                as_print(seed_));
    return failures_ == 0;
  }

 private:
  static unsigned long long as_print(std::uint64_t value) { return value; }

  bool over() const { return failures_ >= kMostFailures || (seconds_ > 0 && watch_.seconds() > seconds_); }

  void work() {
    for (std::uint64_t index = next_++; index < count_ && !over(); index = next_++) {
      try {
        elements_ += run_case(case_seed(seed_, index));
      } catch (const std::exception& error) {
        ++failures_;
        const std::lock_guard<std::mutex> lock(print_);
        std::printf("FAILED case %llu: %s\n  again: round_trip_soak --seed %llu --case %llu\n", as_print(index),
                    error.what(), as_print(seed_), as_print(index));
      }
      ++done_;
    }
    ended_ = true;
  }

  void report_progress() {
    double next_report = 10;
    while (!ended_) {
      std::this_thread::sleep_for(std::chrono::milliseconds(50));
      if (watch_.seconds() < next_report) continue;
      next_report += 10;
      const std::lock_guard<std::mutex> lock(print_);
      std::printf("  %llu deltas, %.0f a second\n", as_print(done_), static_cast<double>(done_) / watch_.seconds());
    }
  }

  const std::uint64_t seed_;
  const std::uint64_t count_;
  const double seconds_;
  soak::Stopwatch watch_;
  std::atomic<std::uint64_t> next_{0};
  std::atomic<std::uint64_t> done_{0};
  std::atomic<std::uint64_t> elements_{0};
  std::atomic<std::uint64_t> failures_{0};
  std::atomic<bool> ended_{false};
  std::mutex print_;
};

void run_huge(int threads) {
  for (const ValueCodec values : {ValueCodec::kRaw, ValueCodec::kXor, ValueCodec::kUlp}) {
    const soak::Stopwatch watch;
    check_huge_tensor(PositionMode::kAuto, values, threads);
    std::printf("a tensor of more than 2^32 elements, %s values: good, %.1f s\n",
                std::string(to_string(values)).c_str(), watch.seconds());
  }
}

int run(soak::Flags& flags) {
  const std::uint64_t seed = flags.number("--seed", run_seed());
  const bool one_case = flags.given("--case");
  const std::uint64_t index = flags.number("--case", 0);
  const std::uint64_t count = flags.number("--count", 10'000'000);
  const auto seconds = static_cast<double>(flags.number("--seconds", 0));
  const std::uint64_t threads = flags.number("--threads", 2);
  const bool huge = flags.number("--huge", 0) != 0;
  flags.require_all_known();
  if (one_case) {
    run_case(case_seed(seed, index));
    std::printf("case %llu of seed %llu is good\n", static_cast<unsigned long long>(index),
                static_cast<unsigned long long>(seed));
    return 0;
  }
  if (huge) run_huge(static_cast<int>(threads));
  return Soak(seed, count, seconds).run(threads) ? 0 : 1;
}

}  // namespace

int main(int argc, char** argv) {
  std::setvbuf(stdout, nullptr, _IOLBF, BUFSIZ);  // A log shows how far a run came, however it ends.
  try {
    soak::Flags flags(argc, argv, kUsage);
    return run(flags);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "round_trip_soak: %s\n", error.what());
    return 1;
  }
}
