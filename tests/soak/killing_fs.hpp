// SPDX-License-Identifier: Apache-2.0
#pragma once

// The operating system's file system, in a process that is killed at a chosen call of it.

#include <signal.h>
#include <unistd.h>

#include <atomic>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "sparsecast/io.hpp"

namespace sparsecast::soak {

/// Lies in memory that parent and child share.
struct CallCounter {
  static constexpr std::uint64_t kNever = ~std::uint64_t{0};
  static constexpr std::uint64_t kMostCalls = 1 << 14;
  std::atomic<std::uint64_t> calls{0};
  std::atomic<bool> is_write[kMostCalls]{};  ///< Whether each call, by number, is a write.
};

/// Counts the calls that read or change anything, from 0, and sends the process SIGKILL in the place of call `kill_at`.
/// `torn`: a write in that place is half done first. What was done before stays, as the kernel keeps it.
class KillingFileSystem : public FileSystem {
 public:
  KillingFileSystem(CallCounter& counter, std::uint64_t kill_at, bool torn)
      : counter_(counter), kill_at_(kill_at), torn_(torn) {}

  std::unique_ptr<File> open(const std::string& path, OpenMode mode) override {
    step();
    return std::make_unique<OpenFile>(*this, inner_.open(path, mode));
  }
  bool exists(const std::string& path) override { return step(), inner_.exists(path); }
  bool is_directory(const std::string& path) override { return step(), inner_.is_directory(path); }
  bool is_link(const std::string& path) override { return step(), inner_.is_link(path); }
  std::uint64_t names(const std::string& path) override { return step(), inner_.names(path); }
  std::string resolved(const std::string& path) override { return step(), inner_.resolved(path); }
  bool link(const std::string& from, const std::string& to) override { return step(), inner_.link(from, to); }
  void make_directory(const std::string& path) override { step(), inner_.make_directory(path); }
  bool is_private(const std::string& path) override { return inner_.is_private(path); }
  std::vector<std::string> list(const std::string& path) override { return step(), inner_.list(path); }
  void rename(const std::string& from, const std::string& to) override { step(), inner_.rename(from, to); }
  bool rename_exclusive(const std::string& from, const std::string& to) override {
    return step(), inner_.rename_exclusive(from, to);
  }
  void remove(const std::string& path) override { step(), inner_.remove(path); }
  void sync_directory(const std::string& path) override { step(), inner_.sync_directory(path); }
  std::chrono::system_clock::time_point modified(const std::string& path) override {
    return step(), inner_.modified(path);
  }
  std::chrono::steady_clock::time_point now() override { return inner_.now(); }
  std::chrono::system_clock::time_point wall_now() override { return inner_.wall_now(); }

 private:
  [[noreturn]] static void die() {
    ::kill(::getpid(), SIGKILL);
    for (;;) ::pause();
  }
  void step() {
    if (counter_.calls++ == kill_at_) die();
  }

  class OpenFile : public File {
   public:
    OpenFile(KillingFileSystem& system, std::unique_ptr<File> inner) : system_(system), inner_(std::move(inner)) {}
    std::uint64_t size() override { return inner_->size(); }
    void read_at(std::uint64_t offset, std::span<std::byte> buffer) override {
      system_.step();
      inner_->read_at(offset, buffer);
    }
    void write_at(std::uint64_t offset, std::span<const std::byte> buffer) override {
      const std::uint64_t call = system_.counter_.calls++;
      if (call < CallCounter::kMostCalls) system_.counter_.is_write[call] = true;
      if (call == system_.kill_at_) {
        if (system_.torn_) inner_->write_at(offset, buffer.first(buffer.size() / 2));
        die();
      }
      inner_->write_at(offset, buffer);
    }
    void truncate(std::uint64_t size) override { system_.step(), inner_->truncate(size); }
    void sync() override { system_.step(), inner_->sync(); }

   private:
    KillingFileSystem& system_;
    std::unique_ptr<File> inner_;
  };

  FileSystem& inner_ = FileSystem::posix();
  CallCounter& counter_;
  std::uint64_t kill_at_;
  bool torn_;
};

}  // namespace sparsecast::soak
