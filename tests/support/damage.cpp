// SPDX-License-Identifier: Apache-2.0
#include "support/damage.hpp"

#include <bit>

#include "codec/context_model.hpp"
#include "codec/frame_reader.hpp"
#include "sparsecast/subscriber.hpp"
#include "support/delta_bytes.hpp"
#include "support/round_trip.hpp"

namespace sparsecast::test {
namespace {

Bytes file_of(const RandomDelta& delta) {
  return encode_file(*delta.table, delta.old_state, delta.new_state, delta.options);
}

/// A weight.
struct Victim {
  std::size_t tensor = 0;
  std::uint64_t element = 0;
};

std::optional<Victim> pick_weight(const RandomDelta& delta, const std::vector<Bytes>& records, Random& random) {
  std::vector<BlockRef> blocks;
  const DeltaHeader header = parse_header(records[0]);
  for (const Bytes& record : records) {
    if (peek_record(record).kind != RecordKind::kFrame) continue;
    const FrameReader frame(record, header, *delta.table);
    for (const BlockRef& block : frame.blocks()) {
      if (block.coding.positions == PositionCodec::kContext) blocks.push_back(block);
    }
  }
  if (blocks.empty()) return std::nullopt;
  const BlockRef& block = blocks[random.below(blocks.size())];
  return Victim{block.tensor, block.first_element + random.below(block.span)};
}

}  // namespace

void receive_file(const RandomDelta& delta, ConstBytes file, TensorState& live) {
  const DeltaFile parsed = DeltaFile::over(file, "damaged");
  parsed.report();
  Subscriber subscriber(delta.table, refs_to(*delta.table, live_views(live)), {});
  subscriber.stage(parsed.header_record());
  for (std::size_t i = 0; i < parsed.frames(); ++i) subscriber.stage(parsed.frame(i));
  subscriber.stage(parsed.commit_record());
  subscriber.apply();
}

void require_refused(const RandomDelta& delta, ConstBytes file, const std::string& damage) {
  TensorState live = delta.old_state;
  try {
    receive_file(delta, file, live);
  } catch (const Error& error) {
    require(!error.message().empty() && std::string(error.what()).find("damaged") != std::string::npos,
            std::string("the error names the file: ") + error.what());
    require(live == delta.old_state, "nothing is written by a delta with " + damage);
    return;
  }
  throw RoundTripFailure("accepted with " + damage);
}

void check_every_flip_and_truncation(const RandomDelta& delta) {
  Bytes file = file_of(delta);
  for (std::size_t bit = 0; bit < 8 * file.size(); ++bit) {
    file[bit / 8] ^= static_cast<std::byte>(1U << bit % 8);
    require_refused(delta, file, "bit " + std::to_string(bit) + " flipped");
    file[bit / 8] ^= static_cast<std::byte>(1U << bit % 8);
  }
  for (std::size_t size = 0; size < file.size(); ++size) {
    require_refused(delta, ConstBytes(file).first(size), "only " + std::to_string(size) + " bytes");
  }
}

bool check_flipped_exponent(const RandomDelta& delta, Random& random) {
  const std::vector<Bytes> records = encode_records(*delta.table, delta.old_state, delta.new_state, delta.options);
  const std::optional<Victim> victim = pick_weight(delta, records, random);
  if (!victim) return false;
  TensorState live = delta.old_state;
  Subscriber subscriber(delta.table, refs_to(*delta.table, live_views(live)), {});

  const DType dtype = (*delta.table)[victim->tensor].dtype;
  const ExponentField field = exponent_field(dtype);
  const std::uint64_t bit = field.shift + random.below(static_cast<std::uint64_t>(std::popcount(field.mask)));
  std::byte* const bits = live[victim->tensor].data();
  const std::size_t size = element_size(dtype);
  write_element(bits, size, victim->element, read_element(bits, size, victim->element) ^ std::uint64_t{1} << bit);
  const TensorState damaged = live;
  try {
    for (const Bytes& record : records) subscriber.stage(record);
  } catch (const Error& error) {
    require(error.code() == ErrorCode::kWrongBase, std::string("the error is about the base: ") + error.what());
    require(live == damaged, "nothing is written to a receiver with a flipped exponent bit");
    return true;
  }
  throw RoundTripFailure("staged on a flipped exponent bit of tensor '" + (*delta.table)[victim->tensor].name +
                         "', element " + std::to_string(victim->element));
}

}  // namespace sparsecast::test
