// SPDX-License-Identifier: Apache-2.0
#include "transport/message_plan.hpp"

#include <fmt/format.h>

#include <algorithm>

namespace sparsecast {
namespace {

constexpr std::uint64_t kMark = 0x31'74'73'61'63'72'70'73;  // "sprcast1", little-endian.

// Records of at least this size get a message of their own, which is as fast as joining and saves the copy.
constexpr std::uint64_t kAloneBytes = std::uint64_t{256} << 10;
constexpr std::uint64_t kJoinedBytes = std::uint64_t{16} << 20;

// Enough to hide the latency between messages. A false size table makes a receiver allocate at most one batch before
// data arrives.
constexpr std::size_t kBatchMessages = 16;
constexpr std::uint64_t kBatchBytes = std::uint64_t{256} << 20;

}  // namespace

Opening pack_opening(std::span<const std::uint64_t> sizes) {
  Opening opening{};
  opening[0] = kMark;
  opening[1] = sizes.size();
  for (const std::uint64_t size : sizes) opening[2] += size;
  std::copy_n(sizes.begin(), std::min(sizes.size(), kOpeningSizes), opening.begin() + kOpeningFields);
  return opening;
}

std::vector<std::uint64_t> parse_opening(const Opening& opening, const WireLimits& limits) {
  const std::uint64_t count = opening[1];
  if (opening[0] != kMark) {
    throw Error(ErrorCode::kCorrupt, fmt::format("a broadcast opened with {:#x}, not with its mark", opening[0]));
  }
  if (count > limits.max_records) {
    throw Error(ErrorCode::kCorrupt,
                fmt::format("a broadcast announced {} records, over the limit of {}", count, limits.max_records));
  }
  if (opening[2] > limits.max_bytes) {
    throw Error(ErrorCode::kCorrupt,
                fmt::format("a broadcast announced {} bytes, over the limit of {}", opening[2], limits.max_bytes));
  }
  std::vector<std::uint64_t> sizes(count);
  std::copy_n(opening.begin() + kOpeningFields, std::min(sizes.size(), kOpeningSizes), sizes.begin());
  return sizes;
}

void check_sizes(const Opening& opening, std::span<const std::uint64_t> sizes) {
  std::uint64_t left = opening[2];
  for (std::size_t i = 0; i < sizes.size(); ++i) {
    if (sizes[i] > left) {
      throw Error(ErrorCode::kCorrupt, fmt::format("a broadcast announced {} bytes in all, but record {} of {} has {}",
                                                   opening[2], i, sizes.size(), sizes[i]));
    }
    left -= sizes[i];
  }
  if (left != 0) {
    throw Error(ErrorCode::kCorrupt,
                fmt::format("a broadcast announced {} bytes in all, {} more than its records have", opening[2], left));
  }
}

MessageCutter::MessageCutter(std::span<const std::uint64_t> sizes, std::uint64_t piece_bytes)
    : sizes_(sizes), piece_bytes_(piece_bytes) {}

Message MessageCutter::next_message() {
  const std::uint64_t alone = std::min(kAloneBytes, piece_bytes_);
  const std::uint64_t joined = std::min(kJoinedBytes, piece_bytes_);
  Message message;
  while (record_ < sizes_.size()) {
    const std::uint64_t left = sizes_[record_] - offset_;
    const bool large = sizes_[record_] >= alone;
    if (!message.pieces.empty() && (large || message.bytes + left > joined)) break;
    const std::uint64_t take = std::min(left, piece_bytes_);
    if (take != 0) message.pieces.push_back({record_, offset_, take});
    message.bytes += take;
    offset_ += take;
    if (offset_ == sizes_[record_]) {
      ++record_;
      offset_ = 0;
    }
    if (large) break;
  }
  return message;
}

std::vector<Message> MessageCutter::next_batch() {
  std::vector<Message> batch;
  std::uint64_t bytes = 0;
  while (batch.size() < kBatchMessages && bytes < kBatchBytes) {
    Message message = next_message();
    if (message.pieces.empty()) break;
    bytes += message.bytes;
    batch.push_back(std::move(message));
  }
  return batch;
}

}  // namespace sparsecast
