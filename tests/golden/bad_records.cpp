// SPDX-License-Identifier: Apache-2.0

// Damaged records: cut, altered with and without the checksum, taken out, repeated, mixed.

#include <zstd.h>

#include <functional>

#include "golden_vectors.hpp"
#include "support/forge.hpp"

namespace sparsecast::test {

BadBase bad_base() {
  BadBase start{TensorTable(std::vector<TensorSpec>{
                    {"floats", DType::kBF16, {40}}, {"bytes", DType::kU8, {20'000}}, {"words", DType::kF32, {6}}}),
                {},
                {}};
  for (const TensorSpec& spec : start.table) {
    Bytes& bits = start.base.emplace_back(spec.bytes());
    for (std::size_t i = 0; i < bits.size(); ++i) bits[i] = static_cast<std::byte>(i * i / 7);
  }
  start.result = start.base;
  for (const std::size_t at : {10, 34, 60}) start.result[0][at] ^= std::byte{1};
  for (const std::size_t at : {100, 16'500, 19'999}) start.result[1][at] ^= std::byte{2};
  start.result[2][8] ^= std::byte{3};
  return start;
}

namespace {

using Records = std::vector<Bytes>;
using Alter = std::function<void(Records&)>;
constexpr std::size_t kHeader = 0;
constexpr std::size_t kTable = 1;
constexpr std::size_t kFrame = 2;

Records good_records(int zstd_level = 0) {
  const BadBase start = bad_base();
  EncodeOptions options;
  options.zstd_level = zstd_level;
  options.positions = zstd_level > 0 ? PositionMode::kBitmap : PositionMode::kAuto;
  return encode_records(start.table, start.base, start.result, options, {4, 5});
}

class Collection {
 public:
  void add_bytes(const std::string& name, const std::string& why, Bytes delta, ErrorCode code = ErrorCode::kCorrupt) {
    vectors_.push_back({name, why, code, std::move(delta)});
  }
  /// The records altered, checksums left as they were.
  void torn(const std::string& name, const std::string& why, const Alter& alter, ErrorCode code = ErrorCode::kCorrupt) {
    Records records = good_records();
    alter(records);
    add_bytes(name, why, join(records), code);
  }
  /// The records altered and checksummed again; the commit agrees with the frames.
  void checksummed(const std::string& name, const std::string& why, const Alter& alter,
                   ErrorCode code = ErrorCode::kCorrupt) {
    Records records = good_records();
    alter(records);
    refresh_checksums(records);
    add_bytes(name, why, join(records), code);
  }
  /// The commit's own claims altered under a valid checksum.
  void commit(const std::string& name, const std::string& why, const Alter& alter,
              ErrorCode code = ErrorCode::kCorrupt) {
    Records records = good_records();
    alter(records);
    refresh_checksums(records, Sums::kKeep);
    add_bytes(name, why, join(records), code);
  }
  std::vector<BadVector> take() { return std::move(vectors_); }

 private:
  std::vector<BadVector> vectors_;
};

void add_cut(Collection& all) {
  const Bytes whole = join(good_records());
  const auto cut = [&](const std::string& name, const std::string& where, std::size_t size) {
    all.add_bytes(name, "the file ends " + where,
                  Bytes(whole.begin(), whole.begin() + static_cast<std::ptrdiff_t>(size)));
  };
  const Records records = good_records();
  const std::size_t table_end = 128 + records[kTable].size();
  cut("cut_to_nothing", "before its first byte", 0);
  cut("cut_in_magic", "inside the first magic", 3);
  cut("cut_in_header", "inside the header", 100);
  cut("cut_after_header", "after the header", 128);
  cut("cut_in_table", "inside the table", 150);
  cut("cut_after_table", "after the table", table_end);
  cut("cut_in_frame", "inside a frame", table_end + 80);
  cut("cut_before_commit", "before the commit record: there is no version", whole.size() - 96);
  cut("cut_in_commit", "inside the commit record", whole.size() - 8);
}

void add_header(Collection& all) {
  const auto set = [](std::size_t offset, auto value) {
    return [=](Records& records) { set_field(records[kHeader], offset, value); };
  };
  all.torn("header_magic", "the header's magic is unknown", set(0, std::uint8_t{'X'}));
  all.torn("header_checksum", "a bit of the version is flipped", set(32, std::uint8_t{77}));
  all.torn("header_record_bytes", "the header says 136 bytes", set(4, 136U));
  all.checksummed("format_major_2", "a format of another major version", set(8, std::uint16_t{2}),
                  ErrorCode::kUnsupported);
  all.checksummed("format_minor_1", "a format of a later minor version", set(10, std::uint16_t{1}),
                  ErrorCode::kUnsupported);
  all.checksummed("header_flags", "a feature that no reader knows", set(12, 0x10U), ErrorCode::kUnsupported);
  all.checksummed("frame_capacity_small", "frame_capacity below 2^20", set(92, (1U << 20) - 1));
  all.checksummed("frame_capacity_large", "frame_capacity over 2^30", set(92, (1U << 30) + 1));
  all.checksummed("position_mode", "an unknown position mode", set(96, std::uint8_t{6}));
  all.checksummed("context_without_ulp", "position mode context with raw values", set(96, std::uint16_t{5}));
  all.checksummed("value_codec", "an unknown value codec", set(97, std::uint8_t{3}));
  all.checksummed("header_reserved_first", "a reserved byte of the header is set", set(98, std::uint8_t{1}));
  all.checksummed("header_reserved_last", "a reserved byte of the header is set", set(119, std::uint8_t{1}));
  all.checksummed("header_elements", "another number of elements than the table's", set(80, std::uint64_t{20'047}));
  all.checksummed("header_tensors", "another number of tensors than the table's", set(88, 4U));
  all.checksummed("header_table_hash", "the header names another table", set(48, std::uint64_t{1}),
                  ErrorCode::kTableMismatch);
  all.checksummed("header_base_digest", "the delta starts from other bytes", set(64, std::uint64_t{1}),
                  ErrorCode::kWrongBase);
}

void add_order(Collection& all) {
  all.torn("trailing_byte", "a byte follows the commit record", [](Records& r) { r.push_back(Bytes(1)); });
  all.torn("trailing_zeros", "eight zero bytes follow the commit record", [](Records& r) { r.push_back(Bytes(8)); });
  all.torn("trailing_commit", "a second commit record follows", [](Records& r) { r.push_back(r.back()); });
  all.torn("trailing_delta", "a second delta follows", [](Records& r) {
    const Records again = r;
    r.insert(r.end(), again.begin(), again.end());
  });
  all.torn("no_header", "the file begins with the table", [](Records& r) { r.erase(r.begin()); });
  all.torn("no_table", "the file has no table", [](Records& r) { r.erase(r.begin() + kTable); });
  all.torn("two_headers", "the header stands twice", [](Records& r) { r.insert(r.begin(), r[kHeader]); });
  all.torn("two_tables", "the table stands twice", [](Records& r) { r.insert(r.begin() + kTable, r[kTable]); });
  all.torn("frame_before_table", "a frame stands before the table",
           [](Records& r) { std::swap(r[kTable], r[kFrame]); });
  all.torn("frame_after_commit", "a frame stands after the commit record",
           [](Records& r) { std::swap(r[kFrame], r.back()); });
  all.torn("frame_missing", "the commit promises a frame that is not there",
           [](Records& r) { r.erase(r.begin() + kFrame); });
  all.torn("frame_twice", "a frame stands twice", [](Records& r) { r.insert(r.begin() + kFrame, r[kFrame]); });
  all.checksummed("frame_twice_sealed", "a frame stands twice, and the commit counts both",
                  [](Records& r) { r.insert(r.begin() + kFrame, r[kFrame]); });
  all.checksummed("frames_overlap", "two frames change the same blocks", [](Records& r) {
    Bytes again = r[kFrame];
    set_field(again, at::kFrameSequence, 1U);
    r.insert(r.end() - 1, again);
  });
}

void add_frame(Collection& all) {
  const auto set = [](std::size_t offset, auto value) {
    return [=](Records& records) { set_field(records[kFrame], offset, value); };
  };
  all.torn("frame_magic", "a record of an unknown kind", set(0, std::uint8_t{'X'}));
  all.torn("frame_record_bytes", "a record size that is no multiple of 8", set(4, 65U));
  all.torn("frame_checksum", "a bit of the body is flipped", set(at::kFrameBody + 20, std::uint8_t{0xEE}));
  all.torn("frame_checksum_of_fields", "a bit of the frame's fields is flipped",
           set(at::kFrameChanged, std::uint8_t{9}));
  all.torn(
      "frame_of_another_delta", "the frame names another delta",
      [](Records& r) {
        Records other = good_records();
        set_field(other[kHeader], 32, std::uint64_t{6});
        refresh_checksums(other);
        r[kFrame] = other[kFrame];
      },
      ErrorCode::kForeignStream);
  all.checksummed("frame_sequence", "the first frame says it is the second", set(at::kFrameSequence, 1U));
  all.checksummed("frame_version", "the frame names another version", set(48, std::uint64_t{6}),
                  ErrorCode::kForeignStream);
  all.checksummed("frame_flags", "a feature that no reader knows", set(at::kFrameFlags, 2U), ErrorCode::kUnsupported);
  all.checksummed("frame_body_bytes", "stored as it is, but of two lengths", set(at::kFrameBodyBytes, 64U));
  all.checksummed("frame_no_groups", "a frame without groups", set(at::kFrameGroups, 0U));
  all.checksummed("frame_many_groups", "more groups than blocks", set(at::kFrameGroups, 100U));
  all.checksummed("frame_many_blocks", "more blocks than the body can hold", set(at::kFrameBlocks, 0xFFFFFFFFU));
  all.checksummed("frame_changed", "another number of changes than its blocks'",
                  set(at::kFrameChanged, std::uint64_t{8}));
  all.checksummed("frame_padding", "a padding byte after the body is set", [](Records& r) {
    const auto stored = field<std::uint32_t>(r[kFrame], at::kFrameStored);
    if (stored % 8 == 0) throw std::logic_error("the frame of the bad vectors has no padding");
    r[kFrame].back() = std::byte{1};
  });
  all.checksummed("frame_empty", "a frame without a body",
                  [](Records& r) { r[kFrame] = wrap_body({}, 0, 0, 0, 0, 5, false, 0); });
}

void add_commit(Collection& all) {
  const auto set = [](std::size_t offset, auto value) {
    return [=](Records& records) { set_field(records.back(), offset, value); };
  };
  all.torn("commit_checksum", "a bit of the result digest is flipped", set(at::kCommitDigest, std::uint8_t{1}));
  all.torn("commit_record_bytes", "the commit says 104 bytes", set(4, 104U));
  all.torn(
      "commit_of_another_delta", "the commit names another delta",
      [](Records& r) {
        Records other = good_records();
        set_field(other[kHeader], 32, std::uint64_t{6});
        refresh_checksums(other);
        r.back() = other.back();
      },
      ErrorCode::kForeignStream);
  all.commit("commit_version", "the commit names another version", set(16, std::uint64_t{6}));
  all.commit("commit_flags", "a feature that no reader knows", set(28, 1U), ErrorCode::kUnsupported);
  all.commit("commit_frames", "another number of frames", set(at::kCommitFrames, 2U));
  all.commit("commit_changed", "another number of changes", set(at::kCommitChanged, std::uint64_t{8}));
  all.commit("commit_frame_bytes", "another size of the frames", set(at::kCommitFrameBytes, std::uint64_t{8}));
  all.commit("commit_frames_hash", "another hash of the frames", set(at::kCommitFramesHash, std::uint64_t{8}));
  all.commit("commit_reserved", "a reserved byte of the commit is set", set(80, std::uint8_t{1}));
  all.commit("commit_digest", "the result has another digest", set(at::kCommitDigest, std::uint64_t{1}),
             ErrorCode::kDigestMismatch);
  all.checksummed("commit_digest_without_frames", "no frame, but another digest than the base's",
                  [](Records& r) { r.erase(r.begin() + kFrame); });
}

Bytes zstd_frame(ConstBytes raw, bool content_size = true) {
  ZSTD_CCtx* context = ZSTD_createCCtx();
  ZSTD_CCtx_setParameter(context, ZSTD_c_contentSizeFlag, content_size ? 1 : 0);
  Bytes out(ZSTD_compressBound(raw.size()));
  out.resize(ZSTD_compress2(context, out.data(), out.size(), raw.data(), raw.size()));
  ZSTD_freeCCtx(context);
  return out;
}

void add_zstd(Collection& all) {
  const Records good = good_records(1);
  if (field<std::uint32_t>(good[kFrame], at::kFrameFlags) != 1)
    throw std::logic_error("the zstd vector is not compressed");
  const auto groups = field<std::uint32_t>(good[kFrame], at::kFrameGroups);
  const auto blocks = field<std::uint32_t>(good[kFrame], at::kFrameBlocks);
  const auto changed = field<std::uint64_t>(good[kFrame], at::kFrameChanged);
  const auto body_bytes = field<std::uint32_t>(good[kFrame], at::kFrameBodyBytes);
  const ConstBytes stored =
      ConstBytes(good[kFrame]).subspan(at::kFrameBody, field<std::uint32_t>(good[kFrame], at::kFrameStored));
  const Bytes compressed(stored.begin(), stored.end());
  Bytes body(body_bytes);
  if (ZSTD_decompress(body.data(), body.size(), compressed.data(), compressed.size()) != body.size()) {
    throw std::logic_error("the zstd vector does not decode");
  }
  const auto add = [&](const std::string& name, const std::string& why, const Bytes& bytes, std::uint32_t says) {
    Records records = good;
    records[kFrame] = wrap_body(bytes, 0, groups, blocks, changed, 5, true, says);
    refresh_checksums(records);
    all.add_bytes("zstd_" + name, why, join(records));
  };
  add("garbage", "the stored bytes are no zstd frame", Bytes(40, std::byte{0x5A}), body_bytes);
  add("other_size", "the zstd frame states another size than the record", compressed, body_bytes + 4);
  add("no_size", "the zstd frame does not state its size", zstd_frame(body, false), body_bytes);
  Bytes two = compressed;
  two.insert(two.end(), compressed.begin(), compressed.end());
  add("two_frames", "two zstd frames are stored", two, body_bytes);
  Bytes longer = compressed;
  longer.insert(longer.end(), 3, std::byte{0});
  add("trailing", "bytes follow the zstd frame", longer, body_bytes);
  add("cut", "the zstd frame is cut off", Bytes(compressed.begin(), compressed.end() - 5), body_bytes);
  Bytes bomb = zstd_frame(Bytes(std::size_t{1} << 26));
  add("bomb", "64 MiB of zeros, more than any frame may hold", bomb, 1U << 26);
  // One segment, size in 4 bytes at offset 5: it states less than it holds.
  if ((static_cast<unsigned>(bomb[4]) >> 6) == 2) {
    std::memcpy(bomb.data() + (((static_cast<unsigned>(bomb[4]) >> 5) & 1) != 0 ? 5 : 6), &body_bytes, 4);
    add("lying_size", "a zstd frame that states less than it holds", bomb, body_bytes);
  } else {
    throw std::logic_error("the zstd bomb has an unexpected frame header");
  }
}

}  // namespace

std::vector<BadVector> bad_records() {
  Collection all;
  add_cut(all);
  add_header(all);
  add_order(all);
  add_frame(all);
  add_commit(all);
  add_zstd(all);
  return all.take();
}

}  // namespace sparsecast::test
