// SPDX-License-Identifier: Apache-2.0

// Arbitrary bytes as a delta file: refused with an Error, or every block of it decodes. Each input is tried as it is,
// and then with its checksums, ids and sums made right, so that the rules behind them are reached.

#include <cstddef>
#include <cstdint>
#include <cstdlib>

#include "support/forge.hpp"

namespace {

using namespace sparsecast;
using namespace sparsecast::test;

void parse(ConstBytes bytes) {
  try {
    const DeltaFile file = DeltaFile::over(bytes, "fuzz");
    const DeltaReport report = file.report();
    if (report.changed != file.commit().changed) std::abort();
  } catch (const Error&) {
    // Refused, as nearly everything must be.
  }
}

/// Cuts where records say that they end, whatever they say.
std::vector<Bytes> split_leniently(ConstBytes bytes) {
  std::vector<Bytes> records;
  while (bytes.size() >= 8 && records.size() < 64) {
    const std::size_t stated = field<std::uint32_t>(bytes, 4);
    const std::size_t size = stated < 8 || stated > bytes.size() ? bytes.size() : stated;
    records.emplace_back(bytes.begin(), bytes.begin() + static_cast<std::ptrdiff_t>(size));
    bytes = bytes.subspan(size);
  }
  return records;
}

/// The header names the table that follows it, if that is stored as it is.
void name_table(Bytes& header, const Bytes& table) {
  const std::size_t stored = field<std::uint32_t>(table, at::kTableStored);
  if (table.size() < at::kTableBody || stored > table.size() - at::kTableBody) return;
  const ConstBytes raw = ConstBytes(table).subspan(at::kTableBody, stored);
  if (field<std::uint32_t>(table, 24) != 0) return;
  set_field(header, 48, xxh3_128(raw));
  try {
    const TensorTable parsed = TensorTable::parse(raw);
    set_field(header, 80, parsed.elements());
    set_field(header, 88, static_cast<std::uint32_t>(parsed.size()));
  } catch (const Error&) {
    // The parser will say so again.
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const ConstBytes bytes{reinterpret_cast<const std::byte*>(data), size};
  parse(bytes);
  std::vector<Bytes> records = split_leniently(bytes);
  if (records.size() < 2 || records[0].size() != at::kHeaderId + 8) return 0;
  name_table(records[0], records[1]);
  refresh_checksums(records);
  parse(join(records));
  return 0;
}
