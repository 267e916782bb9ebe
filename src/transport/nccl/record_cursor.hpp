#pragma once

#include <algorithm>
#include <cstring>
#include <span>
#include <vector>

#include "sparsecast/delta.hpp"

namespace sparsecast {

/// Walks over records, copying to or from staging, a piece at a time. A receiver's record takes memory when its first
/// byte is there.
class RecordCursor {
 public:
  RecordCursor(std::vector<Bytes>& records, std::span<const std::uint64_t> sizes, bool source)
      : records_(records), sizes_(sizes), source_(source) {}

  void copy(std::byte* h_staging, std::uint64_t bytes) {
    while (bytes > 0) {
      if (offset_ == sizes_[record_]) {
        ++record_;
        offset_ = 0;
        continue;
      }
      Bytes& record = records_[record_];
      if (!source_ && offset_ == 0) record.resize(static_cast<std::size_t>(sizes_[record_]));
      const std::uint64_t part = std::min(bytes, sizes_[record_] - offset_);
      std::byte* const place = record.data() + offset_;
      std::memcpy(source_ ? h_staging : place, source_ ? place : h_staging, static_cast<std::size_t>(part));
      h_staging += part;
      offset_ += part;
      bytes -= part;
    }
  }

 private:
  std::vector<Bytes>& records_;
  std::span<const std::uint64_t> sizes_;
  bool source_;
  std::size_t record_ = 0;
  std::uint64_t offset_ = 0;
};

}  // namespace sparsecast
