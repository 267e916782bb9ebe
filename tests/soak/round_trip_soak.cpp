// SPDX-License-Identifier: Apache-2.0

// Millions of random deltas from publisher to subscriber, every byte compared: all dtypes and codecs, both objectives,
// both sizes of blocks. One in 16 is also held to the reference encoder, goes through a delta file and is rolled back;
// one in 16 comes with a chain of deltas that are joined and inverted; each with `context` blocks meets a receiver with
// a flipped exponent bit; and of one small delta in 512 every flipped bit and every truncation is refused.

#include <array>
#include <atomic>
#include <mutex>
#include <thread>
#include <vector>

#include "soak.hpp"
#include "support/damage.hpp"
#include "support/delta_chain.hpp"
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

/// How often a case, or all cases, have tested what; `kNames` are for printing.
struct Tally {
  static constexpr std::array kNames = {"elements",
                                        "deltas with context blocks",
                                        "deltas with blocks of 4096 changes",
                                        "chains joined and inverted",
                                        "deltas with every bit flipped",
                                        "receivers with a flipped exponent bit"};
  enum Count { kElements, kContext, kLargeBlocks, kChains, kDamaged, kFlipped };

  std::array<std::uint64_t, kNames.size()> counts{};

  void operator+=(const Tally& other) {
    for (std::size_t i = 0; i < counts.size(); ++i) counts[i] += other.counts[i];
  }
};

Tally run_case(std::uint64_t seed) {
  Random random(seed);
  const RandomLimits limits = limits_of(random);
  RandomDelta delta =
      random.chance(1.0 / 8) ? context_step(random, {2, 20'000, 0.5, true}) : random_delta(random, limits);
  const bool deep = random.chance(1.0 / 16);
  const std::uint64_t elements = delta.table->elements();
  Tally tally;
  tally.counts[Tally::kElements] = elements;
  tally.counts[Tally::kLargeBlocks] = delta.options.block_changes == kLargeBlockChanges ? 1 : 0;
  if (delta.options.positions == PositionMode::kContext) {
    tally.counts[Tally::kFlipped] = check_flipped_exponent(delta, random) ? 1 : 0;
  }
  const DeltaReport report = check_round_trip(std::move(delta), random, {deep && elements < 1'000'000, deep, deep});
  const auto context = static_cast<std::size_t>(PositionCodec::kContext);
  tally.counts[Tally::kContext] = report.blocks_by_codec[context] > 0 ? 1 : 0;
  if (random.chance(1.0 / 16)) {
    const auto values = static_cast<ValueCodec>(random.below(3));
    check_group_laws(random_chain(random, values, random.between(2, 4), {3, 20'000, 0.02, true}), random);
    tally.counts[Tally::kChains] = 1;
  }
  if (random.chance(1.0 / 512)) {
    check_every_flip_and_truncation(random.chance(0.5) ? random_delta(random, {2, 600, 0, true})
                                                       : context_step(random, {1, 2'000, 1}));
    tally.counts[Tally::kDamaged] = 1;
  }
  return tally;
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
    std::printf("%llu deltas in %.1f s: %.0f a second; %llu failures; seed %llu\n", as_print(done_), seconds,
                static_cast<double>(done_) / seconds, as_print(failures_), as_print(seed_));
    for (std::size_t i = 0; i < Tally::kNames.size(); ++i) {
      std::printf("  %llu %s\n", as_print(tally_.counts[i]), Tally::kNames[i]);
    }
    return failures_ == 0;
  }

 private:
  static unsigned long long as_print(std::uint64_t value) { return value; }

  bool over() const { return failures_ >= kMostFailures || (seconds_ > 0 && watch_.seconds() > seconds_); }

  void work() {
    for (std::uint64_t index = next_++; index < count_ && !over(); index = next_++) {
      try {
        const Tally tested = run_case(case_seed(seed_, index));
        const std::lock_guard<std::mutex> lock(mutex_);
        tally_ += tested;
      } catch (const std::exception& error) {
        ++failures_;
        const std::lock_guard<std::mutex> lock(mutex_);
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
      const std::lock_guard<std::mutex> lock(mutex_);
      std::printf("  %llu deltas, %.0f a second\n", as_print(done_), static_cast<double>(done_) / watch_.seconds());
    }
  }

  const std::uint64_t seed_;
  const std::uint64_t count_;
  const double seconds_;
  soak::Stopwatch watch_;
  std::atomic<std::uint64_t> next_{0};
  std::atomic<std::uint64_t> done_{0};
  std::atomic<std::uint64_t> failures_{0};
  std::atomic<bool> ended_{false};
  std::mutex mutex_;  ///< Of what is printed, and of tally_.
  Tally tally_;
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
