// SPDX-License-Identifier: Apache-2.0
#include "store/curl/s3_client.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>

#include "core/parallel.hpp"
#include "sparsecast/error.hpp"
#include "store/s3_answers.hpp"

namespace sparsecast {
namespace {

/// An object that changes more often than this while it is read does not belong to a delta log.
constexpr int kMaxReplacements = 8;

/// Destination of the body of a part. Refuses a body that exceeds its limit.
class ByteSink {
 public:
  virtual ~ByteSink() = default;
  std::function<bool(ConstBytes)> begin() {
    taken = 0;
    restart();
    return [this](ConstBytes bytes) {
      if (bytes.size() > most - taken) return false;
      append(bytes);
      taken += bytes.size();
      return true;
    };
  }

  const std::uint64_t most;
  std::uint64_t taken = 0;

 protected:
  explicit ByteSink(std::uint64_t most_bytes) : most(most_bytes) {}
  virtual void restart() {}
  virtual void append(ConstBytes bytes) = 0;
};

class BufferSink : public ByteSink {
 public:
  explicit BufferSink(std::span<std::byte> buffer) : ByteSink(buffer.size()), buffer_(buffer) {}

 private:
  void append(ConstBytes bytes) override {
    std::copy(bytes.begin(), bytes.end(), buffer_.begin() + static_cast<std::ptrdiff_t>(taken));
  }
  std::span<std::byte> buffer_;
};

/// A sink that grows as bytes arrive, because most objects are much smaller than a part.
class GrowingSink : public ByteSink {
 public:
  explicit GrowingSink(std::uint64_t most_bytes) : ByteSink(most_bytes) {}
  Bytes bytes;

 private:
  void restart() override { bytes.clear(); }
  void append(ConstBytes more) override { bytes.insert(bytes.end(), more.begin(), more.end()); }
};

struct ReadPart {
  int status = 0;  ///< Status of the answer: 206, or 404 or 416 without bytes.
  std::string tag;
  std::uint64_t taken = 0;
  std::uint64_t total = 0;  ///< Size of the whole object in bytes.
};

[[noreturn]] void refuse_end(const S3Client& client, const std::string& key, std::uint64_t size, std::uint64_t wanted) {
  throw Error(ErrorCode::kCorrupt, fmt::format("it ends at byte {}, before byte {}", size, wanted),
              client.name_of(key));
}

/// Requests as many bytes as the sink accepts. Returns fewer if the object ends earlier.
ReadPart read_part(S3Client& client, const std::string& key, std::uint64_t offset, ByteSink& sink) {
  const std::uint64_t last = offset + sink.most - 1;
  S3Request request;
  request.key = key;
  request.headers = {fmt::format("Range: bytes={}-{}", offset, last)};
  request.make_taker = [&] { return sink.begin(); };
  const HttpAnswer answer = client.call(request, {404, 416});
  ReadPart part{answer.status, answer.header("etag"), sink.taken, 0};
  if (answer.status == 404 || answer.status == 416) return part;

  const std::string name = client.name_of(key);
  if (answer.status == 200) {
    // A server that ignores ranges returns the whole object, which is as good if the range begins at 0.
    if (offset != 0) refuse_answer(name, "it has no ranges");
    part.total = part.taken;
    return part;
  }
  const auto range = parse_content_range(answer.header("content-range"));
  if (answer.status != 206 || !range || !range->total) refuse_answer(name, "a part without its range");
  if (range->first != offset || range->last - range->first + 1 != part.taken ||
      part.taken != std::min<std::uint64_t>(sink.most, *range->total - offset)) {
    refuse_answer(name, fmt::format("bytes {}-{} of {} with a body of {}, for {}-{}", range->first, range->last,
                                    *range->total, part.taken, offset, last));
  }
  part.total = *range->total;
  return part;
}

/// Reads the rest of an object whose first part has been read. Returns false if the rest is of another version.
bool read_rest(S3Client& client, const std::string& key, std::uint64_t offset, std::span<std::byte> rest,
               const ReadPart& first) {
  const std::uint64_t step = client.options().part_bytes;
  std::atomic<bool> same{true};
  parallel_for(client.options().connections, (rest.size() + step - 1) / step, [&](std::size_t, std::size_t i) {
    if (!same) return;
    const auto buffer = rest.subspan(i * step, std::min<std::uint64_t>(step, rest.size() - i * step));
    BufferSink sink(buffer);
    const ReadPart part = read_part(client, key, offset + i * step, sink);
    if (part.status != 206 || part.tag != first.tag || part.total != first.total) same = false;
  });
  return same;
}

[[noreturn]] void refuse_restless(const S3Client& client, const std::string& key) {
  throw Error(ErrorCode::kIo, fmt::format("it was replaced {} times while it was read", kMaxReplacements),
              client.name_of(key));
}

}  // namespace

std::optional<std::uint64_t> read_s3_size(S3Client& client, const std::string& key) {
  S3Request request;
  request.method = "HEAD";
  request.key = key;
  const HttpAnswer answer = client.call(request, {404});
  if (answer.status == 404) return std::nullopt;
  const auto size = parse_decimal(answer.header("content-length"));
  if (!size) refuse_answer(client.name_of(key), "an object without a length");
  return size;
}

std::optional<Bytes> read_s3_object(S3Client& client, const std::string& key, std::uint64_t max_bytes) {
  for (int tries = 0; tries < kMaxReplacements; ++tries) {
    // Requests one byte more than the limit, to detect a larger object and because an empty range cannot be requested.
    GrowingSink sink(max_bytes < client.options().part_bytes ? max_bytes + 1 : client.options().part_bytes);
    const ReadPart first = read_part(client, key, 0, sink);
    if (first.status == 404) return std::nullopt;
    if (first.status == 416) {  // An empty object has no valid range.
      const auto size = read_s3_size(client, key);
      if (!size) return std::nullopt;
      if (*size == 0) return Bytes();
      continue;
    }
    if (first.total > max_bytes) {
      throw Error(ErrorCode::kCorrupt,
                  fmt::format("it has {} bytes, more than the {} that it can have", first.total, max_bytes),
                  client.name_of(key));
    }
    Bytes bytes = std::move(sink.bytes);
    bytes.resize(first.total);
    if (first.taken == first.total ||
        read_rest(client, key, first.taken, std::span(bytes).subspan(first.taken), first)) {
      return bytes;
    }
  }
  refuse_restless(client, key);
}

void read_s3_range(S3Client& client, const std::string& key, std::uint64_t offset, std::span<std::byte> buffer) {
  const std::uint64_t end = offset + buffer.size();
  const bool countable = end >= offset;
  for (int tries = 0; tries < kMaxReplacements; ++tries) {
    ReadPart first{416, {}, 0, 0};
    const auto head = buffer.first(std::min<std::uint64_t>(client.options().part_bytes, buffer.size()));
    BufferSink sink(head);
    if (countable) first = read_part(client, key, offset, sink);
    if (first.status == 416) {
      const auto size = read_s3_size(client, key);
      if (size && countable && *size > offset) continue;  // The object has grown meanwhile.
      if (size) refuse_end(client, key, *size, end);
      first.status = 404;
    }
    if (first.status == 404) throw Error(ErrorCode::kGone, "there is no such object", client.name_of(key));
    if (first.total < end) refuse_end(client, key, first.total, end);
    if (first.taken == buffer.size() ||
        read_rest(client, key, offset + first.taken, buffer.subspan(first.taken), first)) {
      return;
    }
  }
  refuse_restless(client, key);
}

}  // namespace sparsecast
