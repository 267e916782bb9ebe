// SPDX-License-Identifier: Apache-2.0
#include "layout/layout_bytes.hpp"

#include <fmt/format.h>

#include <cstring>

#include "codec/record_layout.hpp"
#include "sparsecast/error.hpp"

namespace sparsecast {
namespace {

constexpr std::uint32_t kMagic = 0x594C4353;  // "SCLY"
constexpr std::uint32_t kVersion = 1;
constexpr std::uint64_t kMaxContentBytes = std::uint64_t{1} << 30;
/// Bound on the ratio of decompression: a zstd block of at least 3 bytes expands to at most 128 KiB.
constexpr std::uint64_t kMaxExpansion = std::uint64_t{1} << 16;
constexpr int kLevel = 3;

struct FileHeader {
  std::uint32_t magic;
  std::uint32_t version;
  std::uint64_t content_bytes;
  std::uint64_t checksum;
};

class Writer {
 public:
  explicit Writer(Bytes& out) : out_(out) {}
  void byte(std::uint8_t value) { out_.push_back(static_cast<std::byte>(value)); }
  void number(std::uint64_t value) {
    for (; value >= 0x80; value >>= 7) byte(static_cast<std::uint8_t>(value | 0x80));
    byte(static_cast<std::uint8_t>(value));
  }
  void bytes(ConstBytes value) { out_.insert(out_.end(), value.begin(), value.end()); }
  void text(const std::string& value) {
    number(value.size());
    bytes(std::as_bytes(std::span(value)));
  }

 private:
  Bytes& out_;
};

class Reader {
 public:
  explicit Reader(ConstBytes bytes) : bytes_(bytes) {}

  std::size_t left() const { return bytes_.size() - offset_; }
  [[noreturn]] void fail(const std::string& fault) const {
    throw Error(ErrorCode::kCorrupt, fault, fmt::format("layout: byte {} of its content", offset_));
  }
  ConstBytes take(std::size_t size) {
    if (size > left()) fail("the layout is cut off");
    offset_ += size;
    return bytes_.subspan(offset_ - size, size);
  }
  std::uint8_t byte() { return std::to_integer<std::uint8_t>(take(1)[0]); }
  /// Reads a number. Accepts only its shortest form, so that a layout has only one encoding.
  std::uint64_t number() {
    std::uint64_t value = 0;
    for (unsigned shift = 0; shift < 64; shift += 7) {
      const std::uint64_t next = byte();
      if (shift == 63 && next > 1) break;
      value |= (next & 0x7F) << shift;
      if (next < 0x80) {
        if (next == 0 && shift > 0) break;
        return value;
      }
    }
    fail("a number that is too long");
  }
  std::uint32_t index(std::uint64_t limit, const char* what) {
    const std::uint64_t value = number();
    if (value >= limit) fail(fmt::format("{} {} of {}", what, value, limit));
    return static_cast<std::uint32_t>(value);
  }
  /// Returns the number of items that follow, each of at least `least_bytes` bytes.
  std::size_t count(std::uint64_t limit, std::size_t least_bytes, const char* what) {
    const std::uint64_t value = number();
    if (value > limit) fail(fmt::format("{} {} are over the limit", value, what));
    if (value > left() / least_bytes) fail(fmt::format("{} bytes cannot hold {} {}", left(), value, what));
    return static_cast<std::size_t>(value);
  }
  std::string text() {
    const ConstBytes bytes = take(count(0xFFFF, 1, "bytes of a name"));
    return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
  }

 private:
  ConstBytes bytes_;
  std::size_t offset_ = 0;
};

void pack_rank(Writer& writer, const RankLayout& rank) {
  writer.text(rank.node);
  writer.number(rank.tensors.size());
  for (const LocalTensor& local : rank.tensors) {
    writer.text(local.name);
    writer.byte(static_cast<std::uint8_t>(local.dtype));
    writer.number(local.elements);
  }
  writer.number(rank.shards.size());
  for (const Shard& shard : rank.shards) {
    writer.number(shard.tensor);
    writer.number(shard.local);
    writer.byte(shard.has_base ? 1 : 0);
    writer.number(shard.first);
    for (std::size_t d = 0; d < shard.strides.size(); ++d) {
      writer.number(shard.box.offset[d]);
      writer.number(shard.box.extent[d]);
      writer.number(static_cast<std::uint64_t>(shard.strides[d]));
    }
  }
}

LocalTensor unpack_local(Reader& reader) {
  LocalTensor local;
  local.name = reader.text();
  const auto dtype = dtype_from_code(reader.byte());
  if (!dtype) reader.fail("an unknown dtype");
  local.dtype = *dtype;
  local.elements = reader.number();
  return local;
}

Shard unpack_shard(Reader& reader, const TensorTable& table, std::size_t locals) {
  Shard shard;
  shard.tensor = reader.index(table.size(), "tensor");
  shard.local = reader.index(locals, "local tensor");
  const std::uint8_t has_base = reader.byte();
  if (has_base > 1) reader.fail("a flag that is neither 0 nor 1");
  shard.has_base = has_base == 1;
  shard.first = reader.number();
  const std::size_t dims = table[shard.tensor].shape.size();
  if (dims > kMaxLayoutDims) reader.fail(fmt::format("a shard of {} dimensions", dims));
  shard.box.offset.resize(dims);
  shard.box.extent.resize(dims);
  shard.strides.resize(dims);
  for (std::size_t d = 0; d < dims; ++d) {
    shard.box.offset[d] = reader.number();
    shard.box.extent[d] = reader.number();
    shard.strides[d] = static_cast<std::int64_t>(reader.number());
  }
  return shard;
}

/// Number of further entries that a layout may have.
struct Allowance {
  std::size_t locals = Layout::kMaxShards;
  std::size_t shards = Layout::kMaxShards;
};

RankLayout unpack_rank(Reader& reader, const TensorTable& table, Allowance& allowance) {
  RankLayout rank;
  rank.node = reader.text();
  const std::size_t locals = reader.count(allowance.locals, 3, "local tensors");
  allowance.locals -= locals;
  rank.tensors.reserve(locals);
  for (std::size_t i = 0; i < locals; ++i) rank.tensors.push_back(unpack_local(reader));
  const std::size_t shards = reader.count(allowance.shards, 4, "shards");
  allowance.shards -= shards;
  rank.shards.reserve(shards);
  for (std::size_t i = 0; i < shards; ++i) rank.shards.push_back(unpack_shard(reader, table, locals));
  return rank;
}

}  // namespace

Bytes pack_layout(const Layout& layout) {
  Bytes content;
  Writer writer(content);
  const Bytes table = layout.table().serialize();
  const auto table_bytes = static_cast<std::uint32_t>(table.size());
  writer.bytes(std::as_bytes(std::span(&table_bytes, 1)));
  writer.bytes(table);
  writer.number(layout.ties().size());
  for (const TiedTensor& tie : layout.ties()) {
    writer.text(tie.alias);
    writer.text(tie.original);
  }
  writer.number(layout.ranks().size());
  for (const RankLayout& rank : layout.ranks()) pack_rank(writer, rank);
  return content;
}

Layout unpack_layout(ConstBytes content) {
  Reader reader(content);
  std::uint32_t table_bytes = 0;
  std::memcpy(&table_bytes, reader.take(sizeof(table_bytes)).data(), sizeof(table_bytes));
  TensorTable table = TensorTable::parse(reader.take(table_bytes));
  std::vector<TiedTensor> ties(reader.count(table.size(), 4, "ties"));
  for (TiedTensor& tie : ties) {
    tie.alias = reader.text();
    tie.original = reader.text();
  }
  std::vector<RankLayout> ranks;
  const std::size_t count = reader.count(Layout::kMaxRanks, 3, "ranks");
  ranks.reserve(count);
  Allowance allowance;
  for (std::size_t r = 0; r < count; ++r) ranks.push_back(unpack_rank(reader, table, allowance));
  if (reader.left() != 0) reader.fail(fmt::format("{} bytes follow the layout", reader.left()));
  try {
    return Layout(std::move(table), std::move(ranks), std::move(ties));
  } catch (const Error& error) {
    throw Error(ErrorCode::kCorrupt, error.message(), error.context());
  }
}

Bytes compress_layout(ConstBytes content) {
  const Bytes smaller = compress_smaller(content, kLevel);
  const ConstBytes stored = smaller.empty() ? content : ConstBytes(smaller);
  const FileHeader header{kMagic, kVersion, content.size(), xxh3_64(stored)};
  Bytes bytes(sizeof(header) + stored.size());
  std::memcpy(bytes.data(), &header, sizeof(header));
  std::memcpy(bytes.data() + sizeof(header), stored.data(), stored.size());
  return bytes;
}

Bytes decompress_layout(ConstBytes bytes) {
  FileHeader header;
  if (bytes.size() < sizeof(header)) throw Error(ErrorCode::kCorrupt, "the layout is cut off");
  std::memcpy(&header, bytes.data(), sizeof(header));
  if (header.magic != kMagic) throw Error(ErrorCode::kCorrupt, "these are not the bytes of a layout");
  if (header.version != kVersion) {
    throw Error(ErrorCode::kUnsupported, fmt::format("a layout of version {}", header.version));
  }
  const ConstBytes stored = bytes.subspan(sizeof(header));
  if (header.content_bytes > kMaxContentBytes || header.content_bytes / kMaxExpansion > stored.size()) {
    throw Error(ErrorCode::kCorrupt,
                fmt::format("{} bytes cannot hold a layout of {}", bytes.size(), header.content_bytes));
  }
  if (xxh3_64(stored) != header.checksum) throw Error(ErrorCode::kCorrupt, "the layout's checksum does not hold");
  return stored.size() == header.content_bytes ? Bytes(stored.begin(), stored.end())
                                               : decompress_exact(stored, header.content_bytes);
}

}  // namespace sparsecast
