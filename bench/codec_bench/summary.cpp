// SPDX-License-Identifier: Apache-2.0

// Paired times: every round measures each operation once, so that a disturbance hits all of them. Printed ratios are of
// medians.

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <functional>
#include <mutex>

#include "codec_bench/commands.hpp"
#include "codec_bench/data.hpp"
#include "codec_bench/frames.hpp"
#include "codec_bench/scan.hpp"
#include "common/clock.hpp"
#include "core/parallel.hpp"

namespace sparsecast::bench {
namespace {

struct PairedSubject {
  TensorTable table;
  Pair pair;
  std::uint64_t elements = 0;
  std::size_t size = 0;
  int threads = 1;
  PositionMode positions = PositionMode::kAuto;
  std::uint32_t block_changes = kBlockChanges;
  Objective objective;
};

/// Runs `work` on parts of [0, elements), in whole tiles, one part per thread.
void each_part(const PairedSubject& subject,
               const std::function<void(std::uint64_t first, std::uint64_t count)>& work) {
  const std::uint64_t tiles = (subject.elements + kTileElems - 1) / kTileElems;
  const auto parts = static_cast<std::uint64_t>(resolve_threads(subject.threads));
  parallel_for(subject.threads, parts, [&](std::size_t, std::size_t p) {
    const std::uint64_t begin = tiles * p / parts * kTileElems;
    const std::uint64_t end = std::min(subject.elements, tiles * (p + 1) / parts * kTileElems);
    work(begin, end - begin);
  });
}

enum { kScan, kCopy, kEncode, kEncodeDigest, kApply, kApplyDigest, kDigest, kCount };

/// Adds a row for each of the kCount series of seconds. Encoding and digests are compared with the scan, applying with
/// encoding.
void add_rows(const std::string& name, const std::vector<double> (&seconds)[kCount], double bytes_per_change,
              Record& record) {
  constexpr const char* kNames[kCount] = {"scan",  "memcpy",         "encode", "encode + digest",
                                          "apply", "apply + digest", "digest"};
  constexpr int kBaselines[kCount] = {kCount, kScan, kScan, kScan, kEncode, kEncode, kScan};
  for (int i = 0; i < kCount; ++i) {
    std::vector<double> ms;
    for (const double sample : seconds[i]) ms.push_back(1e3 * sample);
    Measurement row = median_of(name + kNames[i], "ms", std::move(ms));
    if (kBaselines[i] != kCount) row.baseline = name + kNames[kBaselines[i]];
    row.paired = true;
    record.results.push_back(std::move(row));
  }
  Measurement size{name + "size", "B/change", bytes_per_change};
  size.exact = true;
  record.results.push_back(std::move(size));
}

/// Prints and records one case; returns false when a result is not bit for bit right.
bool measure(const PairedSubject& subject, const char* name, int repeat, const std::string& row_name, Record& record) {
  std::vector<double> samples[kCount];
  EncodeOptions options;
  options.threads = subject.threads;
  options.positions = subject.positions;
  options.block_changes = subject.block_changes;
  options.objective = subject.objective;
  std::vector<std::byte> live = subject.pair.before;
  std::uint64_t bytes = 0;
  bool right = true;
  for (int round = 0; round <= repeat; ++round) {
    Frames frames;
    std::uint64_t found = 0;
    std::mutex found_mutex;
    double times[kCount];
    times[kScan] = timed([&] {
      each_part(subject, [&](std::uint64_t first, std::uint64_t count) {
        const std::uint64_t part = scan(subject.pair.after.data() + first * subject.size,
                                        subject.pair.before.data() + first * subject.size, count, subject.size);
        const std::lock_guard<std::mutex> lock(found_mutex);
        found += part;
      });
    });
    times[kEncode] = timed([&] { frames = encode(subject.table, subject.pair, options, false); });
    times[kEncodeDigest] = timed([&] { frames = encode(subject.table, subject.pair, options, true); });
    times[kApply] = timed([&] { apply(frames, subject.table, live, subject.threads, false); });
    right = right && found == subject.pair.changed && live == subject.pair.after;
    times[kCopy] = timed([&] {
      each_part(subject, [&](std::uint64_t first, std::uint64_t count) {
        std::memcpy(live.data() + first * subject.size, subject.pair.before.data() + first * subject.size,
                    count * subject.size);
      });
    });
    times[kApplyDigest] = timed([&] { apply(frames, subject.table, live, subject.threads, true); });
    live = subject.pair.before;
    times[kDigest] = timed(
        [&] { digest_tensors(subject.table, refs_to(subject.table, std::vector<ConstBytes>{live}), subject.threads); });
    bytes = frames.bytes;
    if (round == 0) continue;  // Warm-up.
    for (int i = 0; i < kCount; ++i) samples[i].push_back(times[i]);
  }
  double ms[kCount];
  for (int i = 0; i < kCount; ++i) ms[i] = 1e3 * median(samples[i]);
  const double per_change = static_cast<double>(bytes) / static_cast<double>(subject.pair.changed);
  fmt::print(
      "  {:<6} {:>9.4f} {:>8.3f} {:>8.2f} {:>7.1f} {:>8.2f} {:>8.2f} {:>6.0f} {:>8.2f} {:>6.0f} {:>8.2f} {:>8.2f} "
      "{:>8.2f} {:>8.2f}{}\n",
      name, 100.0 * static_cast<double>(subject.pair.changed) / static_cast<double>(subject.elements), per_change,
      ms[kScan], static_cast<double>(2 * subject.elements * subject.size) / ms[kScan] / 1e6, ms[kCopy], ms[kEncode],
      100 * ms[kScan] / ms[kEncode], ms[kEncodeDigest], 100 * ms[kScan] / ms[kEncodeDigest], ms[kApply],
      ms[kApply] / ms[kEncode], ms[kApplyDigest], ms[kDigest], right ? "" : "  WRONG");
  std::fflush(stdout);
  add_rows(row_name, samples, per_change, record);
  return right;
}

}  // namespace

int run_summary(std::uint64_t mib, int threads, int repeat, Record& record) {
  fmt::print("# arrays of {} MiB each, {} thread(s), medians of {} alternating rounds; times in ms\n", mib, threads,
             repeat);
  fmt::print("# {:<6} {:>9} {:>8} {:>8} {:>7} {:>8} {:>8} {:>6} {:>8} {:>6} {:>8} {:>8} {:>8} {:>8}\n", "dtype",
             "density%", "B/change", "scan", "GB/s", "memcpy", "encode", "%scan", "+digest", "%scan", "apply",
             "/encode", "+digest", "digest");
  struct SummaryCase {
    const char* name = "";
    double density = 0;
    DType dtype = DType::kBF16;
    PositionMode positions = PositionMode::kAuto;
    std::uint32_t block_changes = kBlockChanges;
    Objective objective = Objective::speed();
  };
  constexpr Objective kSmallest = Objective::link(100e6);  // Of all but context, without quick blocks.
  constexpr SummaryCase kCases[] = {{"bf16", 0.0001, DType::kBF16},
                                    {"bf16", 0.001, DType::kBF16},
                                    {"bf16", 0.003, DType::kBF16},
                                    {"bf16", 0.01, DType::kBF16},
                                    {"bf16", 0.03, DType::kBF16},
                                    {"bf16", 0.1, DType::kBF16},
                                    {"bf16", 0.3, DType::kBF16},
                                    {"bf16", 0.6, DType::kBF16},
                                    {"fp8", 0.01, DType::kF8E4M3},
                                    {"f32", 0.01, DType::kF32},
                                    {"f64", 0.01, DType::kF64},
                                    {"bf16L", 0.001, DType::kBF16, PositionMode::kAuto, kLargeBlockChanges},
                                    {"bf16L", 0.01, DType::kBF16, PositionMode::kAuto, kLargeBlockChanges},
                                    {"bf16L", 0.1, DType::kBF16, PositionMode::kAuto, kLargeBlockChanges},
                                    {"bf16S", 0.3, DType::kBF16, PositionMode::kAuto, kBlockChanges, kSmallest},
                                    {"bf16S", 0.6, DType::kBF16, PositionMode::kAuto, kBlockChanges, kSmallest},
                                    {"bf16c", 0.001, DType::kBF16, PositionMode::kContext},
                                    {"bf16c", 0.01, DType::kBF16, PositionMode::kContext},
                                    {"bf16c", 0.1, DType::kBF16, PositionMode::kContext}};
  bool all_right = true;
  for (const SummaryCase& c : kCases) {
    const std::size_t size = element_size(c.dtype);
    const std::uint64_t elements = (mib << 20) / size;
    const ChangeKind kind = c.dtype == DType::kBF16 ? ChangeKind::kAdamw : ChangeKind::kWide;
    const PairedSubject subject{TensorTable({{"weight", c.dtype, {elements}}}),
                                make_pair_of(elements, c.dtype, c.density, kind, 11),
                                elements,
                                size,
                                threads,
                                c.positions,
                                c.block_changes,
                                c.objective};
    const std::string row_name =
        fmt::format("summary/{}/{:g}%/{} MiB/{} threads/", c.name, 100 * c.density, mib, resolve_threads(threads));
    all_right = measure(subject, c.name, repeat, row_name, record) && all_right;
  }
  return all_right ? 0 : 1;
}

}  // namespace sparsecast::bench
