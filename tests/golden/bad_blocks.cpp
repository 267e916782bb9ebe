// SPDX-License-Identifier: Apache-2.0

// Directories and payloads that break the rules of docs/wire-format.md §2.3 and §4 under valid checksums.

#include "golden_vectors.hpp"
#include "support/forge.hpp"
#include "support/forged_bits.hpp"

namespace sparsecast::test {
namespace {

constexpr std::uint32_t kFloats = 0;  ///< bf16, 40 elements.
constexpr std::uint32_t kBytes = 1;   ///< u8, 20,000 elements: two tiles.
/// In the body of add_altered's frame.
constexpr std::size_t kFirstCount = 4;
constexpr std::size_t kSecondCount = 12;
constexpr std::size_t kFirstPayloadEnd = 16 + 8;
const std::vector<std::uint64_t> kPositions = {5, 17, 30};
const std::vector<UlpStep> kSteps = {{false, 0}, {true, 2}, {false, 9}};

ReferenceBlock block_of(PositionCodec positions, ValueCodec values, std::uint32_t changed, const ForgedBits& payload,
                        const Parameters& parameters = {}) {
  ReferenceBlock block;
  block.changed = changed;
  block.coding = coding_word(positions, values, parameters);
  block.payload = payload.bytes();
  return block;
}

ReferenceBlock index32_block(const std::vector<std::uint64_t>& positions, std::uint32_t width = 16) {
  ForgedBits bits;
  for (const std::uint64_t position : positions) bits.field(position, 32);
  for (std::size_t i = 0; i < positions.size(); ++i) bits.field(i + 1, width);
  return block_of(PositionCodec::kIndex32, ValueCodec::kXor, static_cast<std::uint32_t>(positions.size()), bits);
}

class Collection {
 public:
  void add_frame(const std::string& name, const std::string& why, ValueCodec values, const ForgedFrame& frame) {
    DeltaHeader header = header_for(start_.table, start_.base);
    header.values = values;
    const StateDigest promised = sum(digest_tensors(start_.table, refs_to(start_.table, views(start_.result))));
    vectors_.push_back({name, why, ErrorCode::kCorrupt, join(forge_records(start_.table, header, {frame}, promised))});
  }
  void add(const std::string& name, const std::string& why, const ReferenceBlock& block,
           std::uint32_t tensor = kFloats) {
    ForgedFrame frame;
    frame.groups.push_back({tensor, {block}});
    add_frame(name, why, static_cast<ValueCodec>(block.coding >> 3 & 3), frame);
  }
  /// A valid frame of two groups, of one block and of two, whose body `alter` spoils.
  template <class Alter>
  void add_altered(const std::string& name, const std::string& why, const Alter& alter) {
    ReferenceBlock second = index32_block({3}, 8);
    second.first_tile = 1;
    ForgedFrame frame;
    frame.groups.push_back({kFloats, {index32_block({3})}});
    frame.groups.push_back({kBytes, {index32_block({3}, 8), second}});
    DeltaHeader header = header_for(start_.table, start_.base);
    header.values = ValueCodec::kXor;
    std::vector<Bytes> records = forge_records(start_.table, header, {frame}, {});
    alter(records[2]);
    refresh_checksums(records);
    vectors_.push_back({name, why, ErrorCode::kCorrupt, join(records)});
  }
  std::vector<BadVector> take() { return std::move(vectors_); }

 private:
  BadBase start_ = bad_base();
  std::vector<BadVector> vectors_;
};

void add_groups(Collection& all) {
  const auto groups = [&](const std::string& name, const std::string& why, const std::vector<ForgedGroup>& list) {
    all.add_frame(name, why, ValueCodec::kXor, {list, {}});
  };
  const ReferenceBlock one = index32_block({3});
  const ReferenceBlock byte = index32_block({3}, 8);
  groups("group_tensor", "a group of a tensor that does not exist", {{3, {one}}});
  groups("group_order", "groups are out of order", {{kBytes, {byte}}, {kFloats, {one}}});
  groups("group_twice", "two groups of one tensor", {{kFloats, {one}}, {kFloats, {one}}});
  all.add_altered("group_without_blocks", "a group without blocks", [](Bytes& frame) {
    set_field(frame, at::kFrameBody + kFirstCount, 0U);
    set_field(frame, at::kFrameBody + kSecondCount, 3U);
  });
  all.add_altered("group_counts", "the groups have fewer blocks than the frame",
                  [](Bytes& frame) { set_field(frame, at::kFrameBody + kSecondCount, 1U); });
  all.add_altered("group_counts_overflow", "the groups' block counts overflow", [](Bytes& frame) {
    set_field(frame, at::kFrameBody + kFirstCount, 0xFFFFFFFFU);
    set_field(frame, at::kFrameBody + kSecondCount, 4U);
  });
  ReferenceBlock second = byte;
  second.first_tile = 1;
  groups("block_order", "blocks are out of order", {{kBytes, {second, byte}}});
  groups("block_twice", "two blocks overlap", {{kBytes, {byte, byte}}});
  ReferenceBlock run = byte;
  run.tiles = 2;
  groups("block_overlap", "a run of tiles overlaps the next block", {{kBytes, {run, second}}});
}

void add_entries(Collection& all) {
  const auto entry = [&](const std::string& name, const std::string& why, auto alter, std::uint32_t tensor = kFloats) {
    ReferenceBlock block = index32_block({3, 4}, tensor == kFloats ? 16 : 8);
    alter(block);
    all.add(name, why, block, tensor);
  };
  entry("first_tile", "a block that begins beyond its tensor", [](ReferenceBlock& b) { b.first_tile = 1; });
  entry("first_tile_huge", "a block that begins far beyond its tensor",
        [](ReferenceBlock& b) { b.first_tile = 0xFFFFFFFF; });
  entry(
      "tiles", "a block that ends beyond its tensor", [](ReferenceBlock& b) { b.tiles = 3; }, kBytes);
  entry("no_changes", "a block without changes", [](ReferenceBlock& b) {
    b.changed = 0;
    b.payload.clear();
  });
  entry("more_changes_than_elements", "more changes than elements", [](ReferenceBlock& b) { b.changed = 41; });
  entry("position_codec", "position codec 5", [](ReferenceBlock& b) { b.coding = coding_word(5U, ValueCodec::kXor); });
  entry("position_codec_7", "position codec 7",
        [](ReferenceBlock& b) { b.coding = coding_word(7U, ValueCodec::kXor); });
  entry("coding_reserved", "a reserved bit of the coding is set", [](ReferenceBlock& b) { b.coding |= 1U << 22; });
  entry("coding_kp", "a Rice parameter with index32", [](ReferenceBlock& b) { b.coding |= 1U << 5; });
  entry("coding_kv", "low bits with xor", [](ReferenceBlock& b) { b.coding |= 1U << 10; });
  entry("coding_ke", "an exceptions' parameter with xor", [](ReferenceBlock& b) { b.coding |= 1U << 16; });
  ForgedFrame other;
  other.groups.push_back({kFloats, {index32_block({3})}});
  all.add_frame("block_value_codec", "a block of another value codec than the header's", ValueCodec::kRaw, other);
  const auto ulp = [&](const std::string& name, const std::string& why, const Parameters& encoded,
                       const Parameters& stated) {
    ReferenceBlock block = packed_ulp_block(kPositions, kSteps, encoded);
    block.coding = coding_word(PositionCodec::kPacked, ValueCodec::kUlp, stated);
    all.add(name, why, block);
  };
  ulp("kp_23", "kp over 22", {23, 0, 0}, {23, 0, 0});
  ulp("ke_23", "ke over 22", {3, 0, 23}, {3, 0, 23});
  ulp("kv_16", "kv as wide as the element", {3, 16, 0}, {3, 16, 0});
  ulp("ke_without_exceptions", "ke is set, but there is no exception", {3, 8, 0}, {3, 8, 1});

  all.add_altered("payload_end_back", "a payload that ends before it begins",
                  [](Bytes& frame) { set_field(frame, at::kFrameBody + kFirstPayloadEnd, 0xFFFFFFFCU); });
  all.add_altered("payload_end_odd", "a payload that does not end at a multiple of 4", [](Bytes& frame) {
    const auto end = field<std::uint32_t>(frame, at::kFrameBody + kFirstPayloadEnd);
    set_field(frame, at::kFrameBody + kFirstPayloadEnd, end + 2);
  });
  ForgedFrame after{{{kFloats, {index32_block({3})}}}, Bytes(4)};
  all.add_frame("payload_after_last", "bytes follow the last block's payload", ValueCodec::kXor, after);
}

void add_positions(Collection& all) {
  all.add("index32_out_of_range", "a position beyond the block", index32_block({3, 40}));
  all.add("index32_repeated", "a position twice", index32_block({3, 3}));
  all.add("index32_back", "positions go back", index32_block({4, 3}));
  all.add("gap16_out_of_range", "a gap beyond the block",
          block_of(PositionCodec::kGap16, ValueCodec::kXor, 2,
                   ForgedBits().field(3, 16).field(36, 16).field(1, 16).field(2, 16)));
  all.add("gap16_padding", "padding after the gaps is set",
          block_of(PositionCodec::kGap16, ValueCodec::kXor, 1, ForgedBits().field(3, 16).field(1, 16).field(1, 32)));
  all.add("gap32_overflow", "a gap that overflows 32 bits",
          block_of(PositionCodec::kGap16, ValueCodec::kXor, 2,
                   ForgedBits().field(3, 32).field(0xFFFFFFFF, 32).field(1, 16).field(2, 16), {1, 0, 0}));
  ReferenceBlock kp2 =
      block_of(PositionCodec::kGap16, ValueCodec::kXor, 1, ForgedBits().field(3, 32).field(1, 32), {2, 0, 0});
  all.add("gap16_kp", "kp 2 with gap16", kp2);
  all.add("packed_out_of_range", "a packed position beyond the block", packed_ulp_block({5, 40}, {{}, {}}, {2, 0, 0}));
  all.add("packed_overrun", "a unary code that runs past the payload",
          block_of(PositionCodec::kPacked, ValueCodec::kXor, 1, ForgedBits().zeros(96)));
  all.add("packed_quotient_30_zeros", "a quotient of 30 zeros",
          block_of(PositionCodec::kPacked, ValueCodec::kXor, 1, ForgedBits().unary(30).field(1, 32).field(1, 16)));
  all.add("packed_tail_overrun", "a quotient's tail runs past the payload",
          block_of(PositionCodec::kPacked, ValueCodec::kXor, 2, ForgedBits().unary(28).unary(2)));
  all.add(
      "packed_tail_out_of_range", "a quotient whose tail takes the position beyond the block",
      block_of(PositionCodec::kPacked, ValueCodec::kXor, 1, ForgedBits().unary(13).field(31, 5).pad().field(1, 16)));
  all.add("packed_tail_overflow", "a quotient that overflows 32 bits once shifted",
          block_of(PositionCodec::kPacked, ValueCodec::kXor, 1,
                   ForgedBits().field(0, 22).unary(29).field((1 << 21) - 1, 21).pad().field(1, 16), {22, 0, 0}));
  all.add("packed_padding", "padding after the positions is set",
          block_of(PositionCodec::kPacked, ValueCodec::kXor, 1, ForgedBits().unary(3).pad(true).field(1, 16)));
  all.add("bitmap_too_few", "fewer bits than changes",
          block_of(PositionCodec::kBitmap, ValueCodec::kXor, 2, ForgedBits().field(8, 64).field(1, 16).field(2, 16)));
  all.add("bitmap_too_many", "more bits than changes",
          block_of(PositionCodec::kBitmap, ValueCodec::kXor, 1, ForgedBits().field(9, 64).field(1, 16)));
  all.add("bitmap_padding", "a bit beyond the block is set",
          block_of(PositionCodec::kBitmap, ValueCodec::kXor, 2,
                   ForgedBits().field(8 | std::uint64_t{1} << 40, 64).field(1, 16).field(2, 16)));
  all.add("bitmap_short", "a bitmap that is cut off",
          block_of(PositionCodec::kBitmap, ValueCodec::kXor, 1, ForgedBits().field(8, 32)));
}

void add_values(Collection& all) {
  const auto words = [](const ForgedBits& payload) {
    return block_of(PositionCodec::kIndex32, ValueCodec::kXor, 1, payload);
  };
  all.add("words_missing", "no words after the positions", words(ForgedBits().field(3, 32)));
  all.add("words_too_long", "four bytes too many", words(ForgedBits().field(3, 32).field(1, 16).pad().field(0, 32)));
  all.add("words_padding", "padding after the words is set",
          words(ForgedBits().field(3, 32).field(1, 16).field(1, 16)));
  ForgedBits dense;
  for (int i = 0; i < 40; ++i) dense.field(1, 16);
  ReferenceBlock dense_block = block_of(PositionCodec::kDense, ValueCodec::kXor, 40, dense);
  dense_block.payload.resize(76);
  all.add("dense_short", "a dense block without its last words", dense_block);
  dense_block.payload.resize(84);
  all.add("dense_long", "a dense block with a word too many", dense_block);
  dense_block.payload.resize(80);
  dense_block.coding |= 1U << 10;
  all.add("dense_kv", "low bits with dense", dense_block);

  const auto ulp = [&](const std::string& name, const std::string& why, const ForgedBits& values,
                       const Parameters& parameters = {}) {
    ReferenceBlock block = block_of(PositionCodec::kPacked, ValueCodec::kUlp, 3, ForgedBits(), parameters);
    block.payload = packed_positions(kPositions, parameters.kp).bytes();
    const Bytes bytes = values.bytes();
    block.payload.insert(block.payload.end(), bytes.begin(), bytes.end());
    all.add("ulp_" + name, why, block);
  };
  // Three signs, then what the name says.
  const auto signs = [](std::uint64_t bits = 0) { return ForgedBits().field(bits, 3); };
  ulp("missing", "no values after the positions", ForgedBits());
  ulp("too_long", "four bytes too many", signs().exp_golomb(0).pad().field(0, 32));
  ulp("padding", "padding after the values is set", signs().exp_golomb(0).pad(true));
  ulp("too_many_exceptions", "more exceptions than changes", signs().exp_golomb(4).field(0xFF, 8));
  ulp("exception_out_of_range", "an exception beyond the changes", signs().exp_golomb(1).unary(3).exp_golomb(0));
  ulp("second_exception_out_of_range", "an exception beyond the changes",
      signs().exp_golomb(2).unary(2).unary(0).unary(0).unary(0));
  ulp("overrun", "an exception's code runs past the payload", signs().exp_golomb(1).unary(0).zeros(59));
  ulp("exp_golomb_64", "an exponential-Golomb code of 64 leading zeros",
      signs().exp_golomb(1).unary(0).zeros(64).field(1, 1).zeros(64));
  ulp("exp_golomb_count_64", "a count of 64 leading zeros", signs().zeros(64).field(1, 1).zeros(64));
  ulp("magnitude_up", "a distance up of 2^15, over the width", signs().exp_golomb(1).unary(0).exp_golomb(0x7FFF - 1));
  ulp("magnitude_down", "a distance down over 2^15", signs(1).exp_golomb(1).unary(0).exp_golomb(0x8000 - 1));
  ulp("magnitude_huge", "a distance of 2^63", signs(1).exp_golomb(1).unary(0).exp_golomb(0x7FFFFFFFFFFFFFFF));
  ulp("magnitude_low_bits", "low bits that make a distance up of 2^15",
      signs().field(0x7FFF, 15).field(0, 15).field(0, 15).exp_golomb(0), {0, 15, 0});
  ulp("magnitude_shifted", "an exception that is too large once shifted",
      signs().field(0, 8).field(0, 8).field(0, 8).exp_golomb(1).unary(0).exp_golomb(0x80 - 1), {0, 8, 0});
  const auto lengths = [&](const std::string& name, const std::string& why, const ForgedBits& values) {
    ulp("lengths_" + name, why, values, {0, 0, 0, true});
  };
  lengths("overrun", "the bits of a length run past the payload", signs().field(15, 4).field(15, 4).field(15, 4));
  lengths("missing", "no lengths after the signs", ForgedBits());
  lengths("padding", "padding after the values is set", signs().field(0, 12).pad(true));
  lengths("too_long", "four bytes too many", signs().field(0, 12).pad().field(0, 32));
  lengths("magnitude_up", "a distance up of 2^15", signs().field(15, 4).field(0, 8).field(0x3FFF, 14));
  ulp("lengths_and_kv", "lengths with low bits", signs().field(0, 3).field(0, 12), {0, 1, 0, true});
  ulp("lengths_and_ke", "lengths with a parameter of exceptions", signs().field(0, 12), {0, 0, 1, true});
  all.add(
      "xor_lengths", "lengths with xor",
      block_of(PositionCodec::kIndex32, ValueCodec::kXor, 1, ForgedBits().field(3, 32).field(1, 32), {0, 0, 0, true}));
}

}  // namespace

std::vector<BadVector> bad_blocks() {
  Collection all;
  add_groups(all);
  add_entries(all);
  add_positions(all);
  add_values(all);
  return all.take();
}

}  // namespace sparsecast::test
