// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstring>
#include <vector>

#include "cuda/common/device_memory.hpp"
#include "cuda/common/device_stream.hpp"

namespace sparsecast::cuda {

/// Copies the tables of an object to the device while the object is constructed. Copies through pinned memory, because
/// a copy from pageable memory may block the host beyond any deadline. Uses a separate stream and waits for it, so that
/// the tables are ready for every stream.
class TableUpload {
 public:
  /// Adds a table: finish() will copy to.bytes() bytes from `from` to `to`. `from` may be null if `to` is empty. Both
  /// must stay valid until finish().
  void add(const DeviceMemory& to, const void* from) {
    if (to.bytes() == 0) return;
    tables_.push_back({to.as(), from, to.bytes()});
    bytes_ += to.bytes();
  }

  /// Copies all tables and waits for the copies. Throws Error{kTimeout} after the deadline of `host`.
  void finish(const HostWait& host) {
    if (bytes_ == 0) return;
    const Stream stream;
    const PinnedMemory h_tables(bytes_);
    std::byte* h_table = h_tables.as();
    for (const Table& table : tables_) {
      std::memcpy(h_table, table.from, table.bytes);
      copy_async(table.d_to, h_table, table.bytes, cudaMemcpyHostToDevice, stream.get());
      h_table += table.bytes;
    }
    host.wait(stream.get(), "take the tables");
  }

 private:
  struct Table {
    std::byte* d_to = nullptr;
    const void* from = nullptr;
    std::size_t bytes = 0;
  };

  std::vector<Table> tables_;
  std::size_t bytes_ = 0;
};

}  // namespace sparsecast::cuda
