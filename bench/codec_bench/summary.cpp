// Paired times: everything is measured alternately within one run, and ratios are of medians.

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <functional>

#include "codec/apply.hpp"
#include "codec_bench/commands.hpp"
#include "codec_bench/data.hpp"
#include "common/clock.hpp"
#include "core/parallel.hpp"
#include "core/word.hpp"
#include "sync/encoder.hpp"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "codec_bench/summary.cpp"
#include <hwy/foreach_target.h>
//
#include <hwy/highway.h>

HWY_BEFORE_NAMESPACE();
namespace sparsecast::bench::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

/// Counts the differing elements and does nothing else; four vectors a turn.
template <class T>
std::uint64_t ScanWords(const std::byte* current, const std::byte* base, std::uint64_t count) {
  const hn::ScalableTag<T> d;
  const std::uint64_t lanes = hn::Lanes(d);
  const T* a = reinterpret_cast<const T*>(current);
  const T* b = reinterpret_cast<const T*>(base);
  std::uint64_t differing = 0;
  std::uint64_t i = 0;
  const auto count_at = [&](std::uint64_t at)
                            HWY_ATTR { return hn::CountTrue(d, hn::Ne(hn::LoadU(d, a + at), hn::LoadU(d, b + at))); };
  for (; i + 4 * lanes <= count; i += 4 * lanes) {
    differing += count_at(i) + count_at(i + lanes) + count_at(i + 2 * lanes) + count_at(i + 3 * lanes);
  }
  for (; i < count; ++i) differing += a[i] != b[i] ? 1 : 0;
  return differing;
}

std::uint64_t Scan(const std::byte* current, const std::byte* base, std::uint64_t count, std::size_t element_bytes) {
  switch (element_bytes) {
    case 1:
      return ScanWords<std::uint8_t>(current, base, count);
    case 2:
      return ScanWords<std::uint16_t>(current, base, count);
    case 4:
      return ScanWords<std::uint32_t>(current, base, count);
    default:
      return ScanWords<std::uint64_t>(current, base, count);
  }
}

}  // namespace sparsecast::bench::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace sparsecast::bench {
HWY_EXPORT(Scan);
namespace {

struct Subject {
  TensorTable table;
  Pair pair;
  std::uint64_t elements;
  std::size_t size;
  int threads;
};

/// Splits [0, elements) in whole tiles between the threads.
void each_part(const Subject& subject, const std::function<void(std::uint64_t first, std::uint64_t count)>& work) {
  const std::uint64_t tiles = (subject.elements + kTileElems - 1) / kTileElems;
  const auto parts = static_cast<std::uint64_t>(resolve_threads(subject.threads));
  parallel_for(subject.threads, parts, [&](std::size_t, std::size_t p) {
    const std::uint64_t begin = tiles * p / parts * kTileElems;
    const std::uint64_t end = std::min(subject.elements, tiles * (p + 1) / parts * kTileElems);
    work(begin, end - begin);
  });
}

struct Frames {
  DeltaHeader header;
  std::vector<Bytes> records;
};

Frames encode(const Subject& subject, bool digest) {
  EncodeOptions options;
  options.threads = subject.threads;
  Frames frames;
  frames.header = make_header(subject.table, options, {}, 0, 1, {});
  pack_header(frames.header);
  const auto detector = make_compare_detector(subject.table, {ConstTensorBytes(subject.pair.after)},
                                              {ConstTensorBytes(subject.pair.before)});
  encode_frames(subject.table, *detector, frames.header, options, false, digest,
                [&](Bytes&& record) { frames.records.push_back(std::move(record)); });
  return frames;
}

void apply(const Subject& subject, const Frames& frames, std::vector<std::byte>& live, bool digest) {
  constexpr std::size_t kRun = 64;
  for (const Bytes& record : frames.records) {
    const FrameReader frame(record, frames.header, subject.table);
    std::vector<ApplyScratch> scratch(static_cast<std::size_t>(resolve_threads(subject.threads)));
    const std::size_t runs = (frame.blocks().size() + kRun - 1) / kRun;
    parallel_for(subject.threads, runs, [&](std::size_t worker, std::size_t run) {
      StateDigest change;
      for (std::size_t b = run * kRun; b < std::min(frame.blocks().size(), (run + 1) * kRun); ++b) {
        const BlockRef& block = frame.blocks()[b];
        ApplyTarget target;
        target.window = live.data() + block.first_element * subject.size;
        target.dtype = subject.table[0].dtype;
        target.key = subject.table.digest_key(0);
        target.change = digest ? &change : nullptr;
        apply_block(block, target, Direction::kForward, scratch[worker]);
      }
    });
  }
}

void measure(const Subject& subject, const char* name, int repeat) {
  enum { kScan, kCopy, kEncode, kEncodeDigest, kApply, kApplyDigest, kDigest, kCount };
  std::vector<double> samples[kCount];
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
        const std::uint64_t part =
            HWY_DYNAMIC_DISPATCH(Scan)(subject.pair.after.data() + first * subject.size,
                                       subject.pair.before.data() + first * subject.size, count, subject.size);
        const std::lock_guard<std::mutex> lock(found_mutex);
        found += part;
      });
    });
    times[kEncode] = timed([&] { frames = encode(subject, false); });
    times[kEncodeDigest] = timed([&] { frames = encode(subject, true); });
    times[kApply] = timed([&] { apply(subject, frames, live, false); });
    right = right && found == subject.pair.changed && live == subject.pair.after;
    times[kCopy] = timed([&] {
      each_part(subject, [&](std::uint64_t first, std::uint64_t count) {
        std::memcpy(live.data() + first * subject.size, subject.pair.before.data() + first * subject.size,
                    count * subject.size);
      });
    });
    times[kApplyDigest] = timed([&] { apply(subject, frames, live, true); });
    live = subject.pair.before;
    times[kDigest] =
        timed([&] { digest_tensors(subject.table, std::vector<ConstTensorBytes>{live}, subject.threads); });
    bytes = 0;
    for (const Bytes& record : frames.records) bytes += record.size();
    if (round == 0) continue;  // Warm-up.
    for (int i = 0; i < kCount; ++i) samples[i].push_back(times[i]);
  }
  double ms[kCount];
  for (int i = 0; i < kCount; ++i) ms[i] = 1e3 * median(samples[i]);
  fmt::print(
      "  {:<6} {:>9.4f} {:>8.3f} {:>8.2f} {:>7.1f} {:>8.2f} {:>8.2f} {:>6.0f} {:>8.2f} {:>6.0f} {:>8.2f} {:>8.2f} "
      "{:>8.2f} {:>8.2f}{}\n",
      name, 100.0 * static_cast<double>(subject.pair.changed) / static_cast<double>(subject.elements),
      static_cast<double>(bytes) / static_cast<double>(subject.pair.changed), ms[kScan],
      static_cast<double>(2 * subject.elements * subject.size) / ms[kScan] / 1e6, ms[kCopy], ms[kEncode],
      100 * ms[kScan] / ms[kEncode], ms[kEncodeDigest], 100 * ms[kScan] / ms[kEncodeDigest], ms[kApply],
      ms[kApply] / ms[kEncode], ms[kApplyDigest], ms[kDigest], right ? "" : "  WRONG");
  std::fflush(stdout);
}

}  // namespace

int run_summary(std::uint64_t mib, int threads, int repeat) {
  fmt::print("# arrays of {} MiB each, {} thread(s), medians of {} alternating rounds; times in ms\n", mib, threads,
             repeat);
  fmt::print("# {:<6} {:>9} {:>8} {:>8} {:>7} {:>8} {:>8} {:>6} {:>8} {:>6} {:>8} {:>8} {:>8} {:>8}\n", "dtype",
             "density%", "B/change", "scan", "GB/s", "memcpy", "encode", "%scan", "+digest", "%scan", "apply",
             "/encode", "+digest", "digest");
  struct Case {
    DType dtype;
    const char* name;
    double density;
  };
  constexpr Case kCases[] = {
      {DType::kBF16, "bf16", 0.0001}, {DType::kBF16, "bf16", 0.001}, {DType::kBF16, "bf16", 0.003},
      {DType::kBF16, "bf16", 0.01},   {DType::kBF16, "bf16", 0.03},  {DType::kBF16, "bf16", 0.1},
      {DType::kBF16, "bf16", 0.3},    {DType::kBF16, "bf16", 0.6},   {DType::kF8E4M3, "fp8", 0.01},
      {DType::kF32, "f32", 0.01},     {DType::kF64, "f64", 0.01}};
  for (const Case& c : kCases) {
    const std::size_t size = element_size(c.dtype);
    const std::uint64_t elements = (mib << 20) / size;
    const ChangeKind kind = c.dtype == DType::kBF16 ? ChangeKind::kAdamw : ChangeKind::kWide;
    const Subject subject{TensorTable({{"weight", c.dtype, {elements}}}),
                          make_pair_of(elements, c.dtype, c.density, kind, 11), elements, size, threads};
    measure(subject, c.name, repeat);
  }
  return 0;
}

}  // namespace sparsecast::bench
#endif  // HWY_ONCE
