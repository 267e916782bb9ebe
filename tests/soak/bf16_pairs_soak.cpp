// SPDX-License-Identifier: Apache-2.0

// All 2^32 pairs of old and new bf16 bit patterns, through publisher and subscriber, under each value codec.
//
// Each old pattern has a tensor: its even elements keep the old pattern, its odd ones change to all 65,536 new
// patterns in turn, starting from the old one. Only half of the elements change, so that blocks do not go dense and
// every ULP difference is coded as sign, low bits and exception; neighbours have similar differences, so parameters
// vary.

#include <array>
#include <atomic>
#include <mutex>
#include <optional>
#include <thread>
#include <vector>

#include "soak.hpp"
#include "sparsecast/publisher.hpp"
#include "sparsecast/subscriber.hpp"
#include "support/oracle.hpp"

namespace {

using namespace sparsecast;
using namespace sparsecast::test;

constexpr const char* kUsage =
    "bf16_pairs_soak [--seconds S] [--threads T] [--first PATTERN] [--last PATTERN]\n"
    "  Every pair of bf16 bit patterns whose old one is in [PATTERN, PATTERN] (0 to 65535) survives raw, xor and ulp.\n"
    "  With S, ends after that many seconds and says how far it came.\n";
constexpr std::uint64_t kPatterns = 65'536;
constexpr std::array kCodecs = {ValueCodec::kRaw, ValueCodec::kXor, ValueCodec::kUlp};

/// One thread's buffers.
class PairChecker {
 public:
  PairChecker()
      : table_(std::make_shared<const TensorTable>(std::vector<TensorSpec>{{"pairs", DType::kBF16, {2 * kPatterns}}})),
        old_(4 * kPatterns),
        new_(4 * kPatterns),
        live_(4 * kPatterns) {}

  /// Empty when all pairs survive; the count of blocks that were not sent dense is added to `coded_blocks`.
  std::string check(std::uint64_t old_pattern, ValueCodec values, std::atomic<std::uint64_t>& coded_blocks) {
    for (std::uint64_t i = 0; i < 2 * kPatterns; ++i) write_element(old_.data(), 2, i, old_pattern);
    new_ = old_;
    live_ = old_;
    for (std::uint64_t i = 0; i < kPatterns; ++i)
      write_element(new_.data(), 2, 2 * i + 1, (old_pattern + i) % kPatterns);

    PublisherOptions options;
    options.encode.values = values;
    Publisher publisher(table_, make_compare_detector(*table_, {new_}, {old_}), options,
                        sum(digest_tensors(*table_, {ref_to((*table_)[0], old_.data())})));
    const Delta& delta = publisher.publish();
    if (delta.result.changed != kPatterns - 1) return "not every changed pair was found";
    const std::vector<TensorRef> live{ref_to((*table_)[0], live_.data())};
    Subscriber subscriber(table_, live, {});
    subscriber.stage(delta);
    subscriber.apply();
    if (sum(digest_tensors(*table_, live)) != subscriber.digest()) return "the digests disagree";
    coded_blocks += count_coded(delta);
    if (live_ == new_) return {};
    return first_difference(*table_, {live_}, {new_});
  }

 private:
  std::uint64_t count_coded(const Delta& delta) const {
    std::uint64_t coded = 0;
    for (const Bytes& frame : delta.frames) {
      const FrameHeader header = parse_frame_header(frame);
      for (std::uint32_t b = 0; b < header.blocks; ++b) {
        const std::uint64_t coding = read_element(frame.data() + 64 + 8 * header.groups + 16 * b + 12, 4, 0);
        coded += (coding & 7) != static_cast<std::uint64_t>(PositionCodec::kDense) ? 1 : 0;
      }
    }
    return coded;
  }

  std::shared_ptr<const TensorTable> table_;
  Bytes old_;
  Bytes new_;
  Bytes live_;
};

struct Progress {
  std::atomic<std::uint64_t> next;
  std::atomic<std::uint64_t> done{0};
  std::atomic<std::uint64_t> failures{0};
  std::atomic<std::uint64_t> coded_blocks{0};
  std::mutex print;
};

void work(Progress& progress, std::uint64_t last, double seconds, const soak::Stopwatch& watch) {
  PairChecker checker;
  for (std::uint64_t old_pattern = progress.next++; old_pattern <= last; old_pattern = progress.next++) {
    if (seconds > 0 && watch.seconds() > seconds) return;
    for (const ValueCodec values : kCodecs) {
      std::string problem;
      try {
        problem = checker.check(old_pattern, values, progress.coded_blocks);
      } catch (const std::exception& error) {
        problem = error.what();
      }
      if (problem.empty()) continue;
      ++progress.failures;
      const std::lock_guard<std::mutex> lock(progress.print);
      std::printf("FAILED old pattern %#llx, %s values: %s\n", static_cast<unsigned long long>(old_pattern),
                  std::string(to_string(values)).c_str(), problem.c_str());
    }
    const std::uint64_t done = ++progress.done;
    if (done % 4096 != 0) continue;
    const std::lock_guard<std::mutex> lock(progress.print);
    std::printf("  %llu old patterns, %.1f s\n", static_cast<unsigned long long>(done), watch.seconds());
  }
}

int run(soak::Flags& flags) {
  const std::uint64_t first = flags.number("--first", 0);
  const std::uint64_t last = flags.number("--last", kPatterns - 1);
  const auto seconds = static_cast<double>(flags.number("--seconds", 0));
  const std::uint64_t threads = flags.number("--threads", 2);
  flags.require_all_known();
  if (first > last || last >= kPatterns) throw std::runtime_error("patterns are 0 to 65535");

  const soak::Stopwatch watch;
  Progress progress;
  progress.next = first;
  {
    std::vector<std::jthread> workers;
    for (std::uint64_t i = 0; i < threads; ++i) {
      workers.emplace_back([&] { work(progress, last, seconds, watch); });
    }
  }
  const std::uint64_t done = progress.done;
  const bool complete = done == last - first + 1;
  std::printf(
      "%llu of %llu old patterns x 65536 new ones x raw, xor, ulp in %.1f s%s; %llu blocks coded, not dense; "
      "%llu failures\n",
      static_cast<unsigned long long>(done), static_cast<unsigned long long>(last - first + 1), watch.seconds(),
      complete ? "" : " (stopped by --seconds)", static_cast<unsigned long long>(progress.coded_blocks),
      static_cast<unsigned long long>(progress.failures));
  return progress.failures == 0 && (complete || seconds > 0) ? 0 : 1;
}

}  // namespace

int main(int argc, char** argv) {
  std::setvbuf(stdout, nullptr, _IOLBF, BUFSIZ);  // A log shows how far a run came, however it ends.
  try {
    soak::Flags flags(argc, argv, kUsage);
    return run(flags);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "bf16_pairs_soak: %s\n", error.what());
    return 1;
  }
}
