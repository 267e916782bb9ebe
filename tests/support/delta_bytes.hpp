// SPDX-License-Identifier: Apache-2.0
#pragma once

// Deltas as plain bytes: encode in one call, join records to a file, take a file apart.

#include <cstring>
#include <utility>

#include "codec/apply.hpp"
#include "sparsecast/publisher.hpp"
#include "support/oracle.hpp"

namespace sparsecast::test {

struct Step {
  std::uint64_t base_version = 0;
  std::uint64_t version = 1;
};

inline Bytes join(const std::vector<Bytes>& records) {
  Bytes file;
  for (const Bytes& record : records) file.insert(file.end(), record.begin(), record.end());
  return file;
}

/// Every record of a well-formed file.
inline std::vector<Bytes> split(ConstBytes file) {
  std::vector<Bytes> records;
  while (!file.empty()) {
    const std::size_t size = peek_record(file).bytes;
    records.emplace_back(file.begin(), file.begin() + static_cast<std::ptrdiff_t>(size));
    file = file.subspan(size);
  }
  return records;
}

/// The header that a delta from `old_state` starts with.
inline DeltaHeader header_for(const TensorTable& table, const TensorState& old_state, const Step& step = {}) {
  DeltaHeader header;
  header.stream = table.hash();
  header.base_version = step.base_version;
  header.version = step.version;
  header.base_digest = sum(digest_tensors(table, refs_to(table, views(old_state))));
  return header;
}

/// Header, table, frames, commit.
inline std::vector<Bytes> encode_records(const TensorTable& table, const TensorState& old_state,
                                         const TensorState& new_state, const EncodeOptions& options,
                                         const Step& step = {}) {
  const auto detector = make_compare_detector(table, views(new_state), views(old_state));
  std::vector<Bytes> records;
  encode_delta(table, *detector, header_for(table, old_state, step), options, true,
               [&](Bytes&& record) { records.push_back(std::move(record)); });
  return records;
}

inline Bytes encode_file(const TensorTable& table, const TensorState& old_state, const TensorState& new_state,
                         const EncodeOptions& options, const Step& step = {}) {
  return join(encode_records(table, old_state, new_state, options, step));
}

/// Applies the frames among `records` (the header comes first) to `state` by the block functions alone, without
/// versions, commit or digest.
inline void apply_blocks(const std::vector<Bytes>& records, const TensorTable& table, TensorState& state) {
  const DeltaHeader header = parse_header(records.front());
  ApplyScratch scratch;
  for (const Bytes& record : records) {
    if (peek_record(record).kind != RecordKind::kFrame) continue;
    const FrameReader frame(record, header, table);
    for (const BlockRef& block : frame.blocks()) {
      const DType dtype = table[block.tensor].dtype;
      ApplyTarget target;
      target.window = state[block.tensor].data() + block.first_element * element_size(dtype);
      target.dtype = dtype;
      apply_block(block, target, Direction::kForward, scratch);
    }
  }
}
inline void apply_blocks(const Bytes& file, TensorState& state) {
  apply_blocks(split(file), DeltaFile::over(file, "delta").table(), state);
}

/// The file of a published delta.
inline Bytes file_of(const TensorTable& table, const Delta& delta) {
  std::vector<Bytes> records{delta.header, pack_table(table, delta.info.delta_id)};
  records.insert(records.end(), delta.frames.begin(), delta.frames.end());
  records.push_back(delta.commit);
  return join(records);
}

}  // namespace sparsecast::test
