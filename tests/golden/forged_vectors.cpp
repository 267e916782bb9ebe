// SPDX-License-Identifier: Apache-2.0

// Deltas that are valid although our encoder would choose other parameters: a reader must not rely on §5.

#include "golden_vectors.hpp"
#include "support/forge.hpp"
#include "support/forged_bits.hpp"
#include "support/random.hpp"

namespace sparsecast::test {
namespace {

constexpr std::uint64_t kElements = 3'000;
const std::vector<std::uint64_t> kPositions = {0, 1, 17, 1'030, 1'031, 2'999};
const std::vector<UlpStep> kSteps = {{false, 0}, {true, 0}, {true, 5}, {false, 300}, {true, 1'000}, {false, 0}};

/// A bf16 tensor of random bits and a u8 tensor of two tiles.
struct Start {
  TensorTable table = TensorTable({{"floats", DType::kBF16, {kElements}}, {"bytes", DType::kU8, {20'000}}});
  TensorState base;

  Start() {
    Random random(11);
    for (const TensorSpec& spec : table) {
      Bytes& bits = base.emplace_back(spec.bytes());
      for (std::byte& byte : bits) byte = static_cast<std::byte>(random.next());
    }
  }
};

class Collection {
 public:
  /// The result is what the library's block functions make of the base; the independent decoder has to agree.
  void add(const std::string& name, ValueCodec values, const std::vector<ForgedFrame>& frames) {
    DeltaHeader header = header_for(start_.table, start_.base);
    header.values = values;
    std::vector<Bytes> records = forge_records(start_.table, header, frames, {});
    TensorState result = start_.base;
    apply_blocks(records, start_.table, result);
    set_field(records.back(), at::kCommitDigest,
              sum(digest_tensors(start_.table, refs_to(start_.table, views(result)))).value);
    refresh_checksums(records);
    vectors_.push_back(
        {"valid_" + name, "valid_" + name, start_.table, start_.base, std::move(result), join(records), false});
  }
  void add_block(const std::string& name, ValueCodec values, const ReferenceBlock& block) {
    ForgedFrame frame;
    frame.groups.push_back({0, {block}});
    add(name, values, {frame});
  }
  void add_ulp(const std::string& name, const Parameters& parameters) {
    add_block(name, ValueCodec::kUlp, packed_ulp_block(kPositions, kSteps, parameters));
  }
  const Start& start() const { return start_; }
  std::vector<GoodVector> take() { return std::move(vectors_); }

 private:
  Start start_;
  std::vector<GoodVector> vectors_;
};

ReferenceBlock block_of(PositionCodec positions, ValueCodec values, std::uint32_t kp, const ForgedBits& payload) {
  ReferenceBlock block;
  block.changed = static_cast<std::uint32_t>(kPositions.size());
  block.coding = coding_word(positions, values, {kp, 0, 0});
  block.payload = payload.bytes();
  return block;
}

/// One block a frame, so that several frames need not be large.
std::vector<ForgedFrame> frame_a_block(const Start& start) {
  TensorState result = start.base;
  for (std::size_t i = 0; i < result[0].size(); i += 50) result[0][i] ^= std::byte{1};
  for (std::size_t i = 0; i < result[1].size(); i += 20) result[1][i] ^= std::byte{8};
  std::vector<ForgedFrame> frames;
  for (const ForgedGroup& group :
       frame_of(start.table, start.base, result, PositionMode::kAuto, ValueCodec::kXor).groups) {
    for (const ReferenceBlock& block : group.blocks) frames.emplace_back().groups.push_back({group.tensor, {block}});
  }
  return frames;
}

}  // namespace

std::vector<GoodVector> forged_vectors() {
  Collection all;
  all.add_ulp("kp_0", {0, 0, 0});
  all.add_ulp("kp_22", {22, 3, 1});
  all.add_ulp("kv_15", {8, 15, 0});
  all.add_ulp("ke_22", {8, 2, 22});
  all.add_ulp("lengths", {8, 0, 0, true});
  all.add("several_frames", ValueCodec::kXor, frame_a_block(all.start()));

  ForgedBits wide_gaps;
  for (const std::uint64_t gap : {0U, 0U, 15U, 1'012U, 0U, 1'967U}) wide_gaps.field(gap, 32);
  for (const std::uint64_t word : {1U, 2U, 3U, 4U, 5U, 0xFFFFU}) wide_gaps.field(word, 16);
  all.add_block("gap16_u32_without_need", ValueCodec::kXor,
                block_of(PositionCodec::kGap16, ValueCodec::kXor, 1, wide_gaps));

  ForgedBits zero_words;
  for (const std::uint64_t position : kPositions) zero_words.field(position, 32);
  for (const std::uint64_t word : {0U, 2U, 0U, 0U, 5U, 0U}) zero_words.field(word, 16);
  all.add_block("xor_words_of_zero", ValueCodec::kXor,
                block_of(PositionCodec::kIndex32, ValueCodec::kXor, 0, zero_words));

  ForgedBits same_bits;
  for (const std::uint64_t position : kPositions) same_bits.field(position, 32);
  for (const std::uint64_t position : kPositions)
    same_bits.field(read_element(all.start().base[0].data(), 2, position), 16);
  all.add_block("raw_words_as_they_were", ValueCodec::kRaw,
                block_of(PositionCodec::kIndex32, ValueCodec::kRaw, 0, same_bits));

  // Dense: n only informs.
  ForgedBits dense_words;
  for (std::uint64_t i = 0; i < kElements; ++i) dense_words.field(i % 3 == 0 ? i : 0, 16);
  all.add_block("dense_with_any_n", ValueCodec::kUlp,
                block_of(PositionCodec::kDense, ValueCodec::kUlp, 0, dense_words));

  // A run that begins and ends with tiles without changes.
  ReferenceBlock run =
      block_of(PositionCodec::kIndex32, ValueCodec::kRaw, 0, ForgedBits().field(17'000, 32).field(7, 8));
  run.changed = 1;
  run.tiles = 2;
  ForgedFrame frame;
  frame.groups.push_back({1, {run}});
  all.add("run_with_an_idle_tile", ValueCodec::kRaw, {frame});
  return all.take();
}

}  // namespace sparsecast::test
