// SPDX-License-Identifier: Apache-2.0
#include "codec_bench/measure.hpp"

#include <algorithm>

#include "sparsecast/error.hpp"

namespace sparsecast::bench {

EncodeOptions with(PositionMode positions, ValueCodec values, int zstd) {
  EncodeOptions options;
  options.positions = positions;
  options.values = values;
  options.objective = Objective::link(100e6);  // Fast enough for `auto` without context, too slow for quick blocks.
  options.zstd_level = zstd;
  return options;
}

EncodeOptions with_large_blocks(PositionMode positions, ValueCodec values) {
  EncodeOptions options = with(positions, values);
  options.block_changes = kLargeBlockChanges;
  return options;
}

std::uint64_t file_bytes(const TensorTable& table, const std::vector<ConstBytes>& before,
                         const std::vector<ConstBytes>& after, const EncodeOptions& options) {
  const auto detector = make_compare_detector(table, after, before);
  DeltaHeader header;
  header.version = 1;
  header.base_digest = sum(digest_tensors(table, refs_to(table, before), options.threads));
  std::uint64_t bytes = 0;
  encode_delta(table, *detector, header, options, true, [&](Bytes&& record) { bytes += record.size(); });
  return bytes;
}

std::vector<std::uint64_t> baseline_bytes(const TensorTable& table, const std::vector<ConstBytes>& before,
                                          const std::vector<ConstBytes>& after, const std::vector<Baseline>& of) {
  std::vector<Change> changes;
  std::vector<DType> dtypes;
  for (std::size_t t = 0; t < table.size(); ++t) {
    changes.push_back({table[t].dtype, before[t], after[t]});
    dtypes.push_back(table[t].dtype);
  }
  std::vector<std::uint64_t> sizes;
  for (const Baseline& baseline : of) {
    const Bytes encoded = baseline.encode(changes);
    std::vector<std::vector<std::byte>> copies;
    for (const ConstBytes tensor : before) copies.emplace_back(tensor.begin(), tensor.end());
    baseline.decode(encoded, dtypes, {copies.begin(), copies.end()});
    for (std::size_t t = 0; t < table.size(); ++t) {
      if (!std::equal(copies[t].begin(), copies[t].end(), after[t].begin())) {
        throw Error(ErrorCode::kCorrupt, "does not decode to what was encoded", "baseline " + baseline.name);
      }
    }
    sizes.push_back(encoded.size());
  }
  return sizes;
}

}  // namespace sparsecast::bench
