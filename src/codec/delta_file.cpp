// SPDX-License-Identifier: Apache-2.0

// A delta file: all records in order and nothing else (docs/wire-format.md §2).

#include <fmt/format.h>

#include <map>

#include "codec/apply.hpp"
#include "codec/record_layout.hpp"

namespace sparsecast {

using namespace layout;

namespace {

/// Cuts records off the front of a file; errors say at which offset.
class RecordScanner {
 public:
  explicit RecordScanner(ConstBytes bytes) : bytes_(bytes) {}

  bool at_end() const { return offset_ == bytes_.size(); }
  std::string where(const char* record) const { return fmt::format("{} record at offset {}", record, offset_); }

  RecordKind peek() const { return peek_record(bytes_.subspan(offset_)).kind; }

  ConstBytes next() {
    const RecordPrefix prefix = peek_record(bytes_.subspan(offset_));
    if (prefix.bytes > bytes_.size() - offset_) {
      corrupt(fmt::format("the record needs {} bytes, {} are left: the file is cut off", prefix.bytes,
                          bytes_.size() - offset_));
    }
    const ConstBytes record = bytes_.subspan(offset_, prefix.bytes);
    offset_ += prefix.bytes;
    return record;
  }

 private:
  ConstBytes bytes_;
  std::uint64_t offset_ = 0;
};

template <class Parse>
auto expect(RecordScanner& scanner, RecordKind kind, const char* name, const Parse& parse) {
  const std::string where = scanner.where(name);
  try {
    if (scanner.at_end()) corrupt("the file ends before this record");
    if (scanner.peek() != kind) corrupt("another kind of record stands here");
    return parse(scanner.next());
  } catch (const Error& error) {
    throw error.within(where);
  }
}

}  // namespace

DeltaFile DeltaFile::open(FileSystem& fs, const std::string& path) {
  std::shared_ptr<FileMapping> mapping = fs.map(path);
  const ConstBytes bytes = mapping->bytes();
  return scan(bytes, path, std::move(mapping));
}

DeltaFile DeltaFile::over(ConstBytes bytes, const std::string& name) { return scan(bytes, name, nullptr); }

void DeltaFile::release_frame(std::size_t i) const noexcept {
  if (mapping_ == nullptr) return;
  mapping_->release(static_cast<std::uint64_t>(frames_[i].data() - mapping_->bytes().data()), frames_[i].size());
}

DeltaFile DeltaFile::scan(ConstBytes bytes, const std::string& name, std::shared_ptr<FileMapping> mapping) {
  try {
    DeltaFile file;
    file.mapping_ = std::move(mapping);
    file.name_ = name;
    file.size_ = bytes.size();
    RecordScanner scanner(bytes);
    expect(scanner, RecordKind::kHeader, "header", [&](ConstBytes record) {
      file.header_record_ = record;
      file.header_ = parse_header(record);
      return 0;
    });
    file.table_ = expect(scanner, RecordKind::kTable, "table",
                         [&](ConstBytes record) { return parse_table(record, file.header_); });
    std::uint64_t changed = 0;
    std::uint64_t frame_bytes = 0;
    Bytes checksums;
    while (!scanner.at_end() && scanner.peek() == RecordKind::kFrame) {
      expect(scanner, RecordKind::kFrame, fmt::format("frame {}:", file.frames_.size()).c_str(),
             [&](ConstBytes record) {
               const FrameHeader frame = parse_frame_header(record);
               if (frame.delta_id != file.header_.delta_id) {
                 throw Error(ErrorCode::kForeignStream, "the frame belongs to another delta");
               }
               if (frame.sequence != file.frames_.size()) corrupt(fmt::format("frame {} stands here", frame.sequence));
               changed += frame.changed;
               frame_bytes += record.size();
               const auto* checksum = reinterpret_cast<const std::byte*>(&frame.checksum);
               checksums.insert(checksums.end(), checksum, checksum + 8);
               file.frames_.push_back(record);
               file.release_frame(file.frames_.size() - 1);
               return 0;
             });
    }
    expect(scanner, RecordKind::kCommit, "commit", [&](ConstBytes record) {
      file.commit_record_ = record;
      file.commit_ = parse_commit(record);
      const CommitRecord& commit = file.commit_;
      if (commit.delta_id != file.header_.delta_id) {
        throw Error(ErrorCode::kForeignStream, "the commit record belongs to another delta");
      }
      if (commit.version != file.header_.version || commit.frames != file.frames_.size() || commit.changed != changed ||
          commit.frame_bytes != frame_bytes || commit.frames_hash != xxh3_64(checksums)) {
        corrupt("the commit record does not match the frames");
      }
      if (file.frames_.empty() && commit.result_digest != file.header_.base_digest) {
        corrupt("a delta without frames promises another digest");
      }
      return 0;
    });
    if (!scanner.at_end())
      throw Error(ErrorCode::kCorrupt, "bytes follow the commit record", scanner.where("trailing"));
    return file;
  } catch (const Error& error) {
    throw error.within(name);
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
      const FrameReader frame(frames_[i], header_, table_);
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
      release_frame(i);
    }
  } catch (const Error& error) {
    throw error.within(name_);
  }
  for (const auto& [index, tensor] : tensors) report.tensors.push_back(tensor);
  return report;
}

}  // namespace sparsecast
