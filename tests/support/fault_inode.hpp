// SPDX-License-Identifier: Apache-2.0
#pragma once

// The content of one file of FaultFileSystem: what programs see, and what a disk may hold of it.

#include <algorithm>
#include <cstdint>
#include <memory>
#include <vector>

#include "support/fault_fs.hpp"
#include "support/random.hpp"

namespace sparsecast::test {

/// One change of a file's content.
struct FaultWrite {
  std::uint64_t offset = 0;
  std::vector<std::byte> bytes;
  bool truncates = false;  ///< To the size `offset`.
  bool confirmed = false;  ///< Whether an fsync has confirmed it.

  FaultWrite(std::uint64_t at, std::vector<std::byte> content) : offset(at), bytes(std::move(content)) {}
  static FaultWrite truncation(std::uint64_t size) {
    FaultWrite write(size, {});
    write.truncates = true;
    return write;
  }

  void replay(std::vector<std::byte>& content) const {
    if (truncates) {
      content.resize(offset);
    } else {
      put(content, 0, bytes.size());
    }
  }

  void replay_torn(std::vector<std::byte>& content, Random& random) const {
    for (std::size_t begin = 0; begin < bytes.size();) {
      const std::size_t in_sector = (offset + begin) % FaultFileSystem::kSectorBytes;
      const std::size_t end = std::min(bytes.size(), begin + FaultFileSystem::kSectorBytes - in_sector);
      if (random.chance(0.5)) put(content, begin, end);
      begin = end;
    }
  }

 private:
  void put(std::vector<std::byte>& content, std::size_t begin, std::size_t end) const {
    content.resize(std::max<std::size_t>(content.size(), offset + end));
    std::copy(bytes.begin() + static_cast<std::ptrdiff_t>(begin), bytes.begin() + static_cast<std::ptrdiff_t>(end),
              content.begin() + static_cast<std::ptrdiff_t>(offset + begin));
  }
};

struct FaultInode {
  /// Content as programs see it. Shared with mappings; replaced when the length changes, so that mapped bytes keep
  /// their addresses.
  std::shared_ptr<std::vector<std::byte>> seen = std::make_shared<std::vector<std::byte>>();
  std::vector<std::byte> origin;    ///< Content certainly on the disk before `history`.
  std::vector<FaultWrite> history;  ///< In the order of the calls.
  std::size_t abandoned = 0;  ///< So many first entries of `history` met a failed fsync: none confirms them later.
  std::chrono::steady_clock::time_point
      modified{};  ///< Modification time by the clock of the file system; survives every crash.

  explicit FaultInode(std::vector<std::byte> content = {}) : origin(std::move(content)) { *seen = origin; }

  void apply(FaultWrite write) {
    const bool resizes = write.truncates || write.offset + write.bytes.size() > seen->size();
    if (resizes && seen.use_count() > 1) seen = std::make_shared<std::vector<std::byte>>(*seen);
    write.replay(*seen);
    history.push_back(std::move(write));
  }

  void sync() {
    for (std::size_t i = abandoned; i < history.size(); ++i) history[i].confirmed = true;
    if (abandoned != 0) return;
    origin = *seen;
    history.clear();
  }

  void fail_sync() { abandoned = history.size(); }

  std::vector<std::byte> durable() const {
    std::vector<std::byte> content = origin;
    for (const FaultWrite& write : history) {
      if (write.confirmed) write.replay(content);
    }
    return content;
  }

  /// Each unconfirmed write is kept, torn or lost; a truncation is kept or lost.
  std::vector<std::byte> after_crash(Random& random) const {
    std::vector<std::byte> content = origin;
    for (const FaultWrite& write : history) {
      const std::uint64_t luck = write.confirmed ? 0 : random.below(3);
      if (luck == 0) write.replay(content);
      if (luck == 1 && !write.truncates) write.replay_torn(content, random);
    }
    return content;
  }
};

}  // namespace sparsecast::test
