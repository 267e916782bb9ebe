// SPDX-License-Identifier: Apache-2.0

// Table records that must be refused although their checksum, and mostly the header's hash of them, is right.

#include <zstd.h>

#include "golden_vectors.hpp"
#include "support/forge.hpp"

namespace sparsecast::test {
namespace {

/// The bytes of docs/wire-format.md §3, written by hand.
class TableBytes {
 public:
  explicit TableBytes(std::uint32_t count) { put(count); }

  TableBytes& entry(const std::string& name, unsigned dtype, const std::vector<std::uint64_t>& dims) {
    put(static_cast<std::uint16_t>(name.size()));
    put(static_cast<std::uint8_t>(dtype));
    put(static_cast<std::uint8_t>(dims.size()));
    for (const std::uint64_t dim : dims) put(dim);
    for (const char c : name) put(c);
    return *this;
  }
  template <class T>
  TableBytes& put(T value) {
    bytes_.resize(bytes_.size() + sizeof(T));
    std::memcpy(bytes_.data() + bytes_.size() - sizeof(T), &value, sizeof(T));
    return *this;
  }
  TableBytes& cut(std::size_t count) {
    bytes_.resize(bytes_.size() - count);
    return *this;
  }
  const Bytes& bytes() const { return bytes_; }

 private:
  Bytes bytes_;
};

class Collection {
 public:
  /// A delta without changes whose table is `raw`; header and record agree about it.
  void add(const std::string& name, const std::string& why, const TableBytes& raw, std::uint32_t tensors,
           std::uint64_t elements) {
    const Bytes& bytes = raw.bytes();
    Bytes record(at::kTableBody + (bytes.size() + 7) / 8 * 8);
    std::memcpy(record.data(), "SCT1", 4);
    set_field(record, 4, static_cast<std::uint32_t>(record.size()));
    set_field(record, at::kTableStored, static_cast<std::uint32_t>(bytes.size()));
    set_field(record, 20, static_cast<std::uint32_t>(bytes.size()));
    set_field(record, 28, tensors);
    if (!bytes.empty()) std::memcpy(record.data() + at::kTableBody, bytes.data(), bytes.size());
    add_record(name, why, record, xxh3_128(bytes), tensors, elements);
  }
  void add_record(const std::string& name, const std::string& why, const Bytes& record, const Hash128& hash,
                  std::uint32_t tensors, std::uint64_t elements, ErrorCode code = ErrorCode::kCorrupt) {
    const BadBase start = bad_base();
    std::vector<Bytes> records = encode_records(start.table, start.base, start.base, {});
    set_field(records[0], 48, hash);
    set_field(records[0], 80, elements);
    set_field(records[0], 88, tensors);
    records[1] = record;
    refresh_checksums(records);
    vectors_.push_back({"table_" + name, why, code, join(records)});
  }
  std::vector<BadVector> take() { return std::move(vectors_); }

 private:
  std::vector<BadVector> vectors_;
};

/// The real table record with one field altered.
void add_altered(Collection& all, const std::string& name, const std::string& why, std::size_t offset, auto value) {
  const BadBase start = bad_base();
  std::vector<Bytes> records = encode_records(start.table, start.base, start.base, {});
  set_field(records[1], offset, value);
  all.add_record(name, why, records[1], start.table.hash(), 3, start.table.elements());
}

}  // namespace

std::vector<BadVector> bad_tables() {
  constexpr std::uint64_t kElements = 8;
  Collection all;
  all.add("empty", "not even a count", TableBytes(0).cut(4), 0, 0);
  all.add("count_too_large", "it promises an entry that is not there", TableBytes(2).entry("a", 1, {8}), 2, kElements);
  all.add("count_too_small", "bytes follow the last entry", TableBytes(1).entry("a", 1, {8}).entry("b", 1, {8}), 1,
          kElements);
  all.add("huge_count", "more than 2^20 tensors", TableBytes(0xFFFFFFFF), 0xFFFFFFFF, 0);
  all.add("cut_in_name", "the last name is cut off", TableBytes(1).entry("name", 1, {8}).cut(2), 1, kElements);
  all.add("cut_in_dims", "the last shape is cut off",
          TableBytes(1).put(std::uint16_t{1}).put(std::uint8_t{1}).put(std::uint8_t{2}).put(std::uint64_t{8}), 1,
          kElements);
  all.add("empty_name", "a tensor without a name", TableBytes(1).entry("", 1, {8}), 1, kElements);
  all.add("same_names", "two tensors of one name", TableBytes(2).entry("a", 1, {4}).entry("a", 1, {4}), 2, kElements);
  all.add("not_utf8", "a name that is not UTF-8", TableBytes(1).entry("a\xC0\xAF", 1, {8}), 1, kElements);
  all.add("surrogate", "a name with a surrogate", TableBytes(1).entry("\xED\xA0\x80", 1, {8}), 1, kElements);
  all.add("dtype_0", "dtype 0", TableBytes(1).entry("a", 0, {8}), 1, kElements);
  all.add("dtype_24", "dtype 24", TableBytes(1).entry("a", 24, {8}), 1, kElements);
  all.add("rank_33", "rank 33", TableBytes(1).entry("a", 1, std::vector<std::uint64_t>(33, 1)), 1, 1);
  all.add("too_many_elements", "more than 2^46 elements", TableBytes(1).entry("a", 1, {(std::uint64_t{1} << 46) + 1}),
          1, (std::uint64_t{1} << 46) + 1);
  all.add("overflow", "a shape whose product overflows to 8",
          TableBytes(1).entry("a", 1, {8, (std::uint64_t{1} << 61) + 1}), 1, kElements);

  add_altered(all, "flags", "an unknown flag of the table", 24, 2U);
  add_altered(all, "reserved", "a reserved byte of the table is set", 36, std::uint8_t{1});
  add_altered(all, "raw_bytes", "another decoded length than it states", 20, 7U);
  add_altered(all, "raw_bytes_over_limit", "a decoded length over 2^26", 20, (1U << 26) + 1);
  add_altered(all, "stored_bytes", "a stored length beyond the record", at::kTableStored, 4'000U);
  add_altered(all, "tensors", "another number of tensors than the header's", 28, 2U);
  return all.take();
}

}  // namespace sparsecast::test
