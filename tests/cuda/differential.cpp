// SPDX-License-Identifier: Apache-2.0
#include "cuda/differential.hpp"
#include "support/detectors.hpp"

#include <gtest/gtest.h>

#include <cstring>

#include "codec/codec_common.hpp"
#include "memory/encoder.hpp"

namespace sparsecast::test {
namespace {

std::size_t random_skew(Random& random) { return random.chance(0.7) ? 0 : random.between(1, 15); }

/// Those of two tensors that are compared: the one given, or random, and in half of the cases the same.
std::pair<std::size_t, std::size_t> two_skews(Random& random, std::optional<std::size_t> given) {
  const std::size_t one = given.value_or(random_skew(random));
  return {one, given || random.chance(0.5) ? one : random_skew(random)};
}

}  // namespace

std::vector<std::size_t> element_sizes(const TensorTable& table) {
  std::vector<std::size_t> sizes;
  for (const TensorSpec& spec : table) sizes.push_back(element_size(spec.dtype));
  return sizes;
}

DeviceState::DeviceState(const std::vector<std::size_t>& element_bytes,
                         const std::vector<std::vector<std::byte>>& tensors, std::size_t skew) {
  for (std::size_t t = 0; t < tensors.size(); ++t) {
    offsets_.push_back(skew * element_bytes[t]);
    sizes_.push_back(tensors[t].size());
    storage_.emplace_back(allocate_shared(offsets_[t] + sizes_[t]));
    if (sizes_[t] != 0) std::memcpy(storage_[t].get() + offsets_[t], tensors[t].data(), sizes_[t]);
  }
}

DeltaHeader test_header(const TensorTable& table, const EncodeOptions& options) {
  DeltaHeader header = make_header(table, options, StreamId{7, 9}, 41, 42, {});
  static_cast<void>(pack_header(header));
  return header;
}

ExpectedFrames encode_on_cpu(const TensorTable& table, TileDetector& detector, const EncodeOptions& options) {
  ExpectedFrames expected;
  const EncodedFrames encoded =
      encode_frames(table, detector, test_header(table, options), options, !detector.snapshot().empty(), true,
                    [&](Bytes&& frame) { expected.frames.push_back(std::move(frame)); });
  expected.commit = encoded.commit;
  expected.digest_change = encoded.digest_change;
  return expected;
}

void expect_same_frames(const cuda::DeviceFrames& found, const ExpectedFrames& expected) {
  EXPECT_EQ(found.commit.delta_id, expected.commit.delta_id);
  EXPECT_EQ(found.commit.version, expected.commit.version);
  EXPECT_EQ(found.commit.changed, expected.commit.changed);
  EXPECT_EQ(found.commit.frames, expected.commit.frames);
  EXPECT_EQ(found.digest_change, expected.digest_change);
  ASSERT_EQ(found.frames.size(), expected.frames.size());
  for (std::size_t f = 0; f < found.frames.size(); ++f) {
    const Bytes record = read_device(found.frames[f].d_record, found.frames[f].record_bytes, nullptr);
    ASSERT_EQ(record.size(), expected.frames[f].size()) << "frame " << f;
    for (std::size_t i = 0; i < record.size(); ++i) {
      ASSERT_EQ(record[i], expected.frames[f][i]) << "frame " << f << ", byte " << i << " of " << record.size();
    }
    EXPECT_EQ(parse_frame_header(record).checksum, found.frames[f].header.checksum);
  }
  EXPECT_EQ(found.commit.frame_bytes, expected.commit.frame_bytes);
  EXPECT_EQ(found.commit.frames_hash, expected.commit.frames_hash);
}

void expect_compare_agrees(const RandomDelta& delta, Random& random, const cuda::DeviceEncoderOptions& device,
                           std::optional<std::size_t> skew) {
  const TensorTable& table = *delta.table;
  const auto detector = make_compare_detector(table, views(delta.new_state), views(delta.old_state));
  const ExpectedFrames expected = encode_on_cpu(table, *detector, delta.options);

  const bool refresh = random.chance(0.8);
  const auto [current_skew, old_skew] = two_skews(random, skew);
  DeviceState current(element_sizes(table), delta.new_state, current_skew);
  DeviceState old(element_sizes(table), delta.old_state, old_skew);
  std::vector<cuda::CompareTensor> tensors;
  for (std::size_t t = 0; t < table.size(); ++t) tensors.push_back({current[t], old[t]});
  cuda::DeviceEncoder encoder = cuda::DeviceEncoder::compare(table, tensors, refresh, delta.options, device);
  encoder.start(nullptr);
  expect_same_frames(encoder.finish(test_header(table, delta.options)), expected);
  for (std::size_t t = 0; t < table.size(); ++t) {
    EXPECT_EQ(current.bytes(t), delta.new_state[t]);
    EXPECT_TRUE(old.bytes(t) == (refresh ? delta.new_state[t] : delta.old_state[t])) << "snapshot of tensor " << t;
  }
}

void expect_cast_agrees(const RandomDelta& delta, Random& random, const cuda::DeviceEncoderOptions& device,
                        std::optional<std::size_t> skew) {
  const TensorTable& table = *delta.table;
  // Masters that cast to the new bits or near them, and those with more bits than bf16 has.
  std::vector<std::vector<float>> masters(table.size());
  for (std::size_t t = 0; t < table.size(); ++t) {
    if (table[t].dtype != DType::kBF16 || random.chance(0.1)) continue;
    for (std::uint64_t i = 0; i < table[t].elements(); ++i) {
      std::uint16_t high;
      std::memcpy(&high, delta.new_state[t].data() + 2 * i, 2);
      const std::uint32_t bits = std::uint32_t{high} << 16 | (random.chance(0.02) ? random.next() & 0xFFFF : 0);
      masters[t].push_back(std::bit_cast<float>(bits));
    }
  }
  TensorState cpu_bf16 = delta.old_state;
  const auto detector = host_fused_cast(table, {masters.begin(), masters.end()}, live_views(cpu_bf16));
  const ExpectedFrames expected = encode_on_cpu(table, *detector, delta.options);

  std::vector<std::vector<std::byte>> master_bytes;
  for (const auto& tensor : masters) {
    const auto* bytes = reinterpret_cast<const std::byte*>(tensor.data());
    master_bytes.emplace_back(bytes, bytes + tensor.size() * 4);
  }
  const auto [masters_skew, old_skew] = two_skews(random, skew);
  DeviceState old(element_sizes(table), delta.old_state, old_skew);
  DeviceState device_masters(std::vector<std::size_t>(table.size(), 4), master_bytes, masters_skew);
  std::vector<cuda::CastTensor> tensors;
  for (std::size_t t = 0; t < table.size(); ++t) {
    tensors.push_back({masters[t].empty() ? nullptr : reinterpret_cast<const float*>(device_masters[t]), old[t]});
  }
  cuda::DeviceEncoder encoder = cuda::DeviceEncoder::fused_cast(table, tensors, delta.options, device);
  encoder.start(nullptr);
  expect_same_frames(encoder.finish(test_header(table, delta.options)), expected);
  for (std::size_t t = 0; t < table.size(); ++t) EXPECT_TRUE(old.bytes(t) == cpu_bf16[t]) << "bf16 of tensor " << t;
}

void expect_mask_agrees(const RandomDelta& delta, Random& random, const cuda::DeviceEncoderOptions& device) {
  const TensorTable& table = *delta.table;
  EncodeOptions options = delta.options;
  options.values = ValueCodec::kRaw;
  const auto detector = host_mask(table, views(delta.new_state));
  std::vector<std::vector<std::uint64_t>> masks;
  const double flagged_too = random.chance(0.5) ? 0.0 : random.log_uniform(1e-4, 0.1);
  for (std::size_t t = 0; t < table.size(); ++t) {
    const std::size_t size = element_size(table[t].dtype);
    std::vector<std::uint64_t>& mask = masks.emplace_back((table[t].elements() + 63) / 64);
    for (std::uint64_t i = 0; i < table[t].elements(); ++i) {
      const bool changed =
          read_element(delta.new_state[t].data(), size, i) != read_element(delta.old_state[t].data(), size, i);
      if (changed || random.chance(flagged_too)) mask[i / 64] |= std::uint64_t{1} << i % 64;
    }
    detector->mark(t, mask.data());
    // Bits beyond the last element do not count.
    if (table[t].elements() % 64 != 0) mask.back() |= ~std::uint64_t{0} << table[t].elements() % 64;
  }
  const ExpectedFrames expected = encode_on_cpu(table, *detector, options);

  std::vector<std::vector<std::byte>> mask_bytes;
  for (const auto& mask : masks) {
    const auto* bytes = reinterpret_cast<const std::byte*>(mask.data());
    mask_bytes.emplace_back(bytes, bytes + mask.size() * 8);
  }
  DeviceState device_masks(std::vector<std::size_t>(table.size(), 8), mask_bytes, 0);
  DeviceState current(element_sizes(table), delta.new_state, random_skew(random));
  std::vector<cuda::MaskTensor> tensors;
  for (std::size_t t = 0; t < table.size(); ++t) {
    tensors.push_back({current[t], reinterpret_cast<const std::uint64_t*>(device_masks[t])});
  }
  cuda::DeviceEncoder encoder = cuda::DeviceEncoder::mask(table, tensors, options, device);
  encoder.start(nullptr);
  expect_same_frames(encoder.finish(test_header(table, options)), expected);
}

}  // namespace sparsecast::test
