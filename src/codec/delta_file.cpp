// SPDX-License-Identifier: Apache-2.0

// A delta file: all records in order and nothing else (docs/wire-format.md §2).

#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <map>

#include "codec/apply.hpp"
#include "codec/record_layout.hpp"

namespace sparsecast {

using namespace layout;

namespace {

/// Cuts records off the front of a file, which it reads piece by piece with `read`; errors name the offset.
class RecordScanner {
 public:
  using Read = std::function<Bytes(std::uint64_t offset, std::uint64_t bytes)>;

  RecordScanner(std::uint64_t size, Read read) : size_(size), read_(std::move(read)) {}

  bool at_end() const { return offset_ == size_; }
  std::uint64_t offset() const { return offset_; }
  std::string where(const char* record) const { return fmt::format("{} record at offset {}", record, offset_); }

  RecordPrefix peek() const {
    return peek_record(read_(offset_, std::min<std::uint64_t>(kPeekBytes, size_ - offset_)));
  }

  Bytes next() {
    const RecordPrefix prefix = peek();
    if (prefix.bytes > size_ - offset_) {
      corrupt(
          fmt::format("the record needs {} bytes, {} are left: the file is cut off", prefix.bytes, size_ - offset_));
    }
    Bytes record = read_(offset_, prefix.bytes);
    offset_ += prefix.bytes;
    return record;
  }

 private:
  static constexpr std::uint64_t kPeekBytes = 8;

  std::uint64_t size_;
  Read read_;
  std::uint64_t offset_ = 0;
};

template <class Parse>
auto expect(RecordScanner& scanner, RecordKind kind, const char* name, const Parse& parse) {
  const std::string where = scanner.where(name);
  try {
    if (scanner.at_end()) corrupt("the file ends before this record");
    if (scanner.peek().kind != kind) corrupt("another kind of record stands here");
    return parse(scanner.next());
  } catch (const Error& error) {
    throw error.within(where);
  }
}

}  // namespace

DeltaFile DeltaFile::open(FileSystem& fs, const std::string& path) {
  DeltaFile delta;
  delta.name_ = path;
  delta.file_ = fs.open(path, OpenMode::kRead);
  delta.size_ = delta.file_->size();
  delta.scan();
  return delta;
}

DeltaFile DeltaFile::over(ConstBytes bytes, const std::string& name) {
  DeltaFile delta;
  delta.name_ = name;
  delta.memory_ = bytes;
  delta.size_ = bytes.size();
  delta.scan();
  return delta;
}

Bytes DeltaFile::read(std::uint64_t offset, std::uint64_t bytes) const {
  if (file_ == nullptr) {
    const ConstBytes piece = memory_.subspan(offset, bytes);
    return {piece.begin(), piece.end()};
  }
  Bytes piece(bytes);
  file_->read_at(offset, piece);
  return piece;
}

Bytes DeltaFile::frame(std::size_t i) const {
  try {
    return read(frames_[i].offset, frames_[i].bytes);
  } catch (const Error& error) {
    throw error.within(fmt::format("frame {} at offset {}", i, frames_[i].offset));
  }
}

void DeltaFile::scan() {
  try {
    RecordScanner scanner(size_, [this](std::uint64_t offset, std::uint64_t bytes) { return read(offset, bytes); });
    expect(scanner, RecordKind::kHeader, "header", [&](Bytes record) {
      header_ = parse_header(record);
      header_record_ = std::move(record);
      return 0;
    });
    expect(scanner, RecordKind::kTable, "table", [&](Bytes record) {
      table_ = parse_table(record, header_);
      table_record_ = std::move(record);
      return 0;
    });
    std::uint64_t changed = 0;
    std::uint64_t frame_bytes = 0;
    Bytes checksums;
    while (!scanner.at_end() && scanner.peek().kind == RecordKind::kFrame) {
      expect(scanner, RecordKind::kFrame, fmt::format("frame {}:", frames_.size()).c_str(), [&](const Bytes& record) {
        const FrameHeader frame = parse_frame_header(record);
        if (frame.delta_id != header_.delta_id) {
          throw Error(ErrorCode::kForeignStream, "the frame belongs to another delta");
        }
        if (frame.sequence != frames_.size()) corrupt(fmt::format("frame {} stands here", frame.sequence));
        changed += frame.changed;
        frame_bytes += record.size();
        const auto* checksum = reinterpret_cast<const std::byte*>(&frame.checksum);
        checksums.insert(checksums.end(), checksum, checksum + 8);
        frames_.push_back({scanner.offset() - record.size(), record.size()});
        return 0;
      });
    }
    expect(scanner, RecordKind::kCommit, "commit", [&](Bytes record) {
      commit_ = parse_commit(record);
      commit_record_ = std::move(record);
      const CommitRecord& commit = commit_;
      if (commit.delta_id != header_.delta_id) {
        throw Error(ErrorCode::kForeignStream, "the commit record belongs to another delta");
      }
      if (commit.version != header_.version || commit.frames != frames_.size() || commit.changed != changed ||
          commit.frame_bytes != frame_bytes || commit.frames_hash != xxh3_64(checksums)) {
        corrupt("the commit record does not match the frames");
      }
      if (frames_.empty() && commit.result_digest != header_.base_digest) {
        corrupt("a delta without frames promises another digest");
      }
      return 0;
    });
    if (!scanner.at_end())
      throw Error(ErrorCode::kCorrupt, "bytes follow the commit record", scanner.where("trailing"));
  } catch (const Error& error) {
    throw error.within(name_);
  }
}

namespace {

using ByTensor = std::map<std::uint32_t, DeltaReport::Tensor>;

void count(const BlockRef& block, DeltaReport& report, ByTensor& tensors) {
  ++report.blocks_by_codec[static_cast<std::size_t>(block.coding.positions)];
  DeltaReport::Tensor& tensor = tensors[block.tensor];
  tensor.index = block.tensor;
  tensor.changed += block.changed;
  tensor.bytes += kBlockEntryBytes + block.payload.size();
  tensor.dense_blocks += block.coding.positions == PositionCodec::kDense ? 1 : 0;
  ++tensor.blocks;
  report.changed += block.changed;
}

}  // namespace

DeltaReport report_of(const Delta& delta, const TensorTable& table) {
  DeltaReport report;
  ByTensor tensors;
  for (const Bytes& record : delta.frames) {
    const FrameReader frame(record, delta.info, table);
    for (const BlockRef& block : frame.blocks()) count(block, report, tensors);
  }
  for (const auto& [index, tensor] : tensors) report.tensors.push_back(tensor);
  return report;
}

DeltaReport DeltaFile::report() const {
  DeltaReport report;
  ByTensor tensors;
  ApplyScratch scratch;
  BlockRef last;
  bool any = false;
  try {
    for (std::size_t i = 0; i < frames_.size(); ++i) {
      const Bytes record = this->frame(i);
      const FrameReader frame(record, header_, table_);
      for (const BlockRef& block : frame.blocks()) {
        try {
          if (any && !follows(last, block)) corrupt("blocks of two frames are out of order or overlap");
          validate_block(block, table_[block.tensor].dtype, scratch);
        } catch (const Error& error) {
          throw error.within(describe(frame.header(), block, table_));
        }
        last = block;
        any = true;
        count(block, report, tensors);
      }
    }
  } catch (const Error& error) {
    throw error.within(name_);
  }
  for (const auto& [index, tensor] : tensors) report.tensors.push_back(tensor);
  return report;
}

}  // namespace sparsecast
