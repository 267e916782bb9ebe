// SPDX-License-Identifier: Apache-2.0
#include "codec_bench/frames.hpp"

#include <algorithm>

#include "codec/apply.hpp"
#include "core/parallel.hpp"
#include "memory/encoder.hpp"

namespace sparsecast::bench {

Frames encode(const TensorTable& table, const Pair& pair, const EncodeOptions& options, bool digest) {
  Frames frames;
  frames.header = make_header(table, options, {}, 0, 1, {});
  pack_header(frames.header);
  const auto detector = make_compare_detector(table, {ConstBytes(pair.after)}, {ConstBytes(pair.before)});
  encode_frames(table, *detector, frames.header, options, false, digest, [&](Bytes&& record) {
    frames.bytes += record.size();
    frames.records.push_back(std::move(record));
  });
  return frames;
}

void apply(const Frames& frames, const TensorTable& table, std::span<std::byte> live, int threads, bool digest) {
  constexpr std::size_t kRun = 64;
  const DigestIndex index = digest_index_of(table, 0);
  std::vector<ApplyScratch> scratch(static_cast<std::size_t>(resolve_threads(threads)));
  for (const Bytes& record : frames.records) {
    const FrameReader frame(record, frames.header, table);
    const std::size_t runs = (frame.blocks().size() + kRun - 1) / kRun;
    parallel_for(threads, runs, [&](std::size_t worker, std::size_t run) {
      StateDigest change;
      for (std::size_t b = run * kRun; b < std::min(frame.blocks().size(), (run + 1) * kRun); ++b) {
        const BlockRef& block = frame.blocks()[b];
        ApplyTarget target = target_in(live.data(), nullptr, table[0].dtype, block);
        target.index = &index;
        target.change = digest ? &change : nullptr;
        apply_block(block, target, Direction::kForward, scratch[worker]);
      }
    });
  }
}

}  // namespace sparsecast::bench
