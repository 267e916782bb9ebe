// SPDX-License-Identifier: Apache-2.0

// Transport of one delta as a file, which is either complete or does not exist.

#include "sparsecast/sync.hpp"

namespace sparsecast {

void write_delta_file(FileSystem& fs, const std::string& path, const TensorTable& table, const Delta& delta) {
  if (table.hash() != delta.info.table_hash) {
    throw Error(ErrorCode::kTableMismatch, "the delta was made for another tensor table", path);
  }
  AtomicFile file(fs, path);
  file.append(delta.header);
  file.append(pack_table(table, delta.info.delta_id));
  for (const Bytes& frame : delta.frames) file.append(frame);
  file.append(delta.commit);
  file.commit();
}

void stage_delta_file(Subscriber& subscriber, const DeltaFile& file) {
  try {
    subscriber.stage(file.header_record());
    for (std::size_t i = 0; i < file.frames(); ++i) subscriber.stage(file.frame(i));
    subscriber.stage(file.commit_record());
  } catch (const Error& error) {
    throw error.within(file.name());
  }
}

}  // namespace sparsecast
