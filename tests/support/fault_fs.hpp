// SPDX-License-Identifier: Apache-2.0
#pragma once

// A file system in memory for tests that can fail at any operation, and that knows what a disk would hold after a
// power loss at any operation.
//
// Operations. Every call through FileSystem and File counts as one operation, in the order of the calls, from 0; only
// now(), closing, and a mapping's bytes() and release() do not. `operations()` is the number so far, `log()` says what
// they were. A test therefore runs its scenario once without a fault, reads the number of operations, and runs it again
// for each of them with a fault there.
//
// Faults (one is armed at a time; the operation's number counts from the last reset_log()):
//   fail_at(n, errno)         operation n throws Error{kIo} and has no effect; once, or for ever from n on.
//   short_write_at(n, errno)  operation n, if it is a write, writes its first half and then throws; otherwise as
//                             fail_at.
//   crash_at(n)               CrashException leaves operation n and every later one. It is not a std::exception, so
//                             that no handler in the code under test takes it for an error.
// A write or a change of a name in which the crash comes may still reach the disk; an fsync in which it comes promises
// nothing. An fsync that fails leaves its writes visible to programs while no later fsync will write them: this is what
// Linux does, and why a failed fsync must never be tried again and believed.
//
// Durability. A file has the content that programs see, and a history of writes that no fsync has confirmed. A name
// (creation, rename, removal, directory) is durable only after sync_directory() of the directory that holds it.
// crash_state(seed) is a new file system as the disk could be after a power loss now:
//   - every unconfirmed write is kept, lost, or torn (each 512-byte sector of it by itself; a lost part of a file that
//     grew reads as zeros), whatever became of the writes before it;
//   - of the unconfirmed changes of names either a beginning is kept (a journal) or any part; each is all or nothing;
//   - what was confirmed is there.
// durable_state() is the harshest of these states: exactly what was confirmed.
//
// Limits: paths are compared as text ("a" and "./a" differ); "." and "/" exist always; a directory is
// renamed only to a name that is free, and what was changed in it and not confirmed before is confirmed by no later
// sync_directory();
// no links, no permissions. A mapping sees later writes into its range, as a shared mapping does, but keeps its length.
// Thread-safe as FileSystem asks, but the numbering of operations is only reproducible with one thread.

#include <cerrno>
#include <chrono>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "sparsecast/io.hpp"

namespace sparsecast::test {

/// The power is gone: thrown by the operation in which it went and by every later one.
struct CrashException {};

struct FaultInode;

class FaultFileSystem : public FileSystem {
 public:
  static constexpr std::size_t kSectorBytes = 512;

  struct Operation {
    std::string name;  ///< "open", "write", "sync", "rename", "sync_directory", ...
    std::string path;
    std::uint64_t offset = 0;  ///< Offset of reads and writes; the new size of a truncation.
    std::uint64_t bytes = 0;   ///< Bytes of reads and writes.
    std::string to;            ///< The new name of a rename.
  };
  enum class Repeat { kOnce, kForEver };

  FaultFileSystem();
  ~FaultFileSystem() override;

  void fail_at(std::uint64_t operation, int error = EIO, Repeat repeat = Repeat::kOnce);
  void short_write_at(std::uint64_t operation, int error = ENOSPC);
  void crash_at(std::uint64_t operation);
  /// Before that operation another process cuts a file short.
  void shrink_at(std::uint64_t operation, const std::string& path, std::uint64_t size);
  void clear_fault();

  std::uint64_t operations() const;
  std::vector<Operation> log() const;
  /// Forgets the log and counts from 0 again.
  void reset_log();

  std::unique_ptr<FaultFileSystem> crash_state(std::uint64_t seed) const;
  std::unique_ptr<FaultFileSystem> durable_state() const;

  /// Puts a durable file there, with its directories; not an operation and never fails.
  void put_file(const std::string& path, std::span<const std::byte> content);
  void put_file(const std::string& path, const std::string& content);
  /// Returns the content of the file as programs see it; nullopt if there is none. Not an operation; works after a
  /// crash.
  std::optional<std::string> content(const std::string& path) const;
  /// Paths of all files that programs see, sorted; not an operation.
  std::vector<std::string> files() const;

  /// The clock stands still but for this.
  void advance(std::chrono::nanoseconds duration);

  std::unique_ptr<File> open(const std::string& path, OpenMode mode) override;
  bool exists(const std::string& path) override;
  bool is_directory(const std::string& path) override;
  bool link(const std::string& from, const std::string& to) override;
  void make_directory(const std::string& path) override;
  bool is_private(const std::string& path) override;
  std::vector<std::string> list(const std::string& path) override;
  void rename(const std::string& from, const std::string& to) override;
  bool rename_exclusive(const std::string& from, const std::string& to) override;
  void remove(const std::string& path) override;
  void sync_directory(const std::string& path) override;
  std::chrono::system_clock::time_point modified(const std::string& path) override;
  std::chrono::steady_clock::time_point now() override;
  std::chrono::system_clock::time_point wall_now() override;

 private:
  struct NameChange;
  class OpenFile;
  using Names = std::map<std::string, std::shared_ptr<FaultInode>>;  ///< An inode of null is a directory.
  enum class Kind { kError, kShortWrite, kCrash };
  struct Fault {
    std::uint64_t at;
    Kind kind;
    int error;
    Repeat repeat;
  };

  /// Counts the operation and does what the armed fault asks. `effect` changes or reads the state; `on_failure` is what
  /// happens all the same when it fails. A crash comes after `effect`, or in its place when `confirms` is true.
  template <class Effect, class OnFailure>
  auto perform(Operation operation, bool confirms, Effect effect, OnFailure on_failure);
  template <class Effect>
  auto perform(Operation operation, Effect effect);

  bool is_known_directory(const std::string& path) const;
  const std::shared_ptr<FaultInode>& find_file(const char* operation, const std::string& path) const;
  void require_parent(const char* operation, const std::string& path) const;
  void change_names(NameChange change);
  template <class KeepChange, class ContentOf>
  std::unique_ptr<FaultFileSystem> state_after(KeepChange keep_change, ContentOf content_of) const;

  mutable std::mutex mutex_;
  Names names_;
  Names durable_names_;
  std::vector<NameChange> name_changes_;
  struct Shrink {
    std::uint64_t at;
    std::string path;
    std::uint64_t size;
  };
  std::optional<Fault> fault_;
  std::optional<Shrink> shrink_;
  bool crashed_ = false;
  std::vector<Operation> log_;
  std::chrono::steady_clock::time_point now_{};
};

}  // namespace sparsecast::test
