// SPDX-License-Identifier: Apache-2.0
#include "sync/frame_head.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>

#include "codec/record_layout.hpp"
#include "sparsecast/error.hpp"

namespace sparsecast {
namespace {

struct HeadPrefix {
  std::uint32_t streams = 0;
  std::uint32_t zero = 0;
};

struct StreamPrefix {
  std::uint32_t header_bytes = 0;
  std::uint32_t commit_bytes = 0;
  std::uint32_t frames = 0;
  std::uint32_t zero = 0;
};

/// Assigns offsets to the frames of the stream, after the frames of earlier streams.
void place(StreamHead& stream, std::uint64_t& end) {
  for (const std::uint32_t size : stream.sizes) {
    stream.offsets.push_back((end + kFrameAlignment - 1) / kFrameAlignment * kFrameAlignment);
    end = stream.offsets.back() + size;
  }
}

/// Reads a peer's bytes part by part, from the front.
class HeadReader {
 public:
  explicit HeadReader(ConstBytes left) : left_(left) {}

  ConstBytes take(std::uint64_t bytes) {
    if (bytes > left_.size()) throw Error(ErrorCode::kCorrupt, "the head of the frames is cut off");
    const ConstBytes part = left_.first(static_cast<std::size_t>(bytes));
    left_ = left_.subspan(part.size());
    return part;
  }
  template <class Value>
  Value value() {
    Value value;
    std::memcpy(&value, take(sizeof(Value)).data(), sizeof(Value));
    return value;
  }
  Bytes record(std::uint32_t bytes) {
    const ConstBytes part = take(bytes);
    return {part.begin(), part.end()};
  }
  std::size_t left() const { return left_.size(); }

 private:
  ConstBytes left_;
};

StreamHead parse_stream(HeadReader& reader) {
  const auto prefix = reader.value<StreamPrefix>();
  StreamHead stream;
  stream.header = reader.record(prefix.header_bytes);
  stream.commit = reader.record(prefix.commit_bytes);
  const ConstBytes sizes = reader.take(std::uint64_t{prefix.frames} * sizeof(std::uint32_t));
  stream.sizes.resize(prefix.frames);
  std::ranges::copy(sizes, std::as_writable_bytes(std::span(stream.sizes)).begin());
  const std::size_t unpadded = stream.header.size() + stream.commit.size() + sizes.size();
  const ConstBytes padding = reader.take(layout::pad8(unpadded) - unpadded);
  if (prefix.zero != 0 || std::ranges::any_of(padding, [](std::byte b) { return b != std::byte{0}; })) {
    throw Error(ErrorCode::kCorrupt, "the head of the frames is not zero where it must be");
  }
  for (const std::uint32_t size : stream.sizes) {
    if (size < kFramePrefix || size % 8 != 0)
      throw Error(ErrorCode::kCorrupt, fmt::format("a frame of {} bytes", size));
  }
  return stream;
}

}  // namespace

std::vector<DeviceRecord> StreamHead::frames_in(const std::byte* d_range) const {
  std::vector<DeviceRecord> frames;
  for (std::size_t f = 0; f < sizes.size(); ++f) frames.push_back({d_range + offsets[f], sizes[f]});
  return frames;
}

void FrameHead::add(const DeviceDelta& delta) {
  StreamHead stream{.header = delta.header, .commit = delta.commit, .sizes = {}, .offsets = {}};
  for (const DeviceRecord& frame : delta.frames) stream.sizes.push_back(frame.record_bytes);
  place(stream, bytes);
  streams.push_back(std::move(stream));
}

void FrameHead::add(const Delta& delta) {
  StreamHead stream{.header = delta.header, .commit = delta.commit, .sizes = {}, .offsets = {}};
  for (const Bytes& frame : delta.frames) stream.sizes.push_back(static_cast<std::uint32_t>(frame.size()));
  place(stream, bytes);
  streams.push_back(std::move(stream));
}

std::size_t expected_head_bytes(std::size_t streams) {
  constexpr std::size_t kStream =
      sizeof(StreamPrefix) + layout::pad8(layout::kHeaderBytes + layout::kCommitBytes + sizeof(std::uint32_t));
  constexpr std::size_t kMoreFrames = 64 * sizeof(std::uint32_t);
  return sizeof(HeadPrefix) + streams * kStream + kMoreFrames;
}

Bytes FrameHead::pack() const {
  std::size_t total = sizeof(HeadPrefix);
  for (const StreamHead& stream : streams) {
    total += sizeof(StreamPrefix) +
             layout::pad8(stream.header.size() + stream.commit.size() + stream.sizes.size() * sizeof(std::uint32_t));
  }
  Bytes out(total);
  std::byte* end = out.data();
  const auto put = [&](ConstBytes part) {
    if (!part.empty()) std::memcpy(end, part.data(), part.size());
    end += part.size();
  };
  const HeadPrefix prefix{static_cast<std::uint32_t>(streams.size()), 0};
  put(std::as_bytes(std::span(&prefix, 1)));
  for (const StreamHead& stream : streams) {
    const StreamPrefix lengths{static_cast<std::uint32_t>(stream.header.size()),
                               static_cast<std::uint32_t>(stream.commit.size()),
                               static_cast<std::uint32_t>(stream.sizes.size()), 0};
    put(std::as_bytes(std::span(&lengths, 1)));
    put(stream.header);
    put(stream.commit);
    put(std::as_bytes(std::span(stream.sizes)));
    end = out.data() + layout::pad8(static_cast<std::size_t>(end - out.data()));
  }
  return out;
}

FrameHead parse_frame_head(ConstBytes head, std::uint64_t range_bytes) {
  HeadReader reader(head);
  const auto prefix = reader.value<HeadPrefix>();
  if (prefix.zero != 0 || prefix.streams > reader.left() / sizeof(StreamPrefix)) {
    throw Error(ErrorCode::kCorrupt, fmt::format("a head of {} bytes for {} streams", head.size(), prefix.streams));
  }
  FrameHead parsed;
  for (std::uint32_t s = 0; s < prefix.streams; ++s) {
    parsed.streams.push_back(parse_stream(reader));
    // Cannot wrap: a head has fewer sizes than bytes, and each is below 2^32.
    place(parsed.streams.back(), parsed.bytes);
  }
  if (reader.left() != 0) throw Error(ErrorCode::kCorrupt, "bytes follow the head of the frames");
  if (parsed.bytes != range_bytes) {
    throw Error(ErrorCode::kCorrupt, fmt::format("frames of {} bytes were announced as {}", parsed.bytes, range_bytes));
  }
  return parsed;
}

const std::byte* range_of_frames(const FrameHead& head, std::span<const DeviceDelta* const> deltas) {
  const std::byte* d_range = nullptr;
  for (std::size_t s = 0; s < deltas.size(); ++s) {
    for (std::size_t f = 0; f < deltas[s]->frames.size(); ++f) {
      const std::byte* const d_record = deltas[s]->frames[f].d_record;
      const std::uint64_t offset = head.streams[s].offsets[f];
      if (d_range == nullptr) d_range = d_record;  // The first frame has offset 0.
      if (d_record != d_range + offset) return nullptr;
    }
  }
  return d_range;
}

}  // namespace sparsecast
