#pragma once

// A file system in memory that knows what a disk would hold after a power loss, and that fails when it is told to.
//
// Every file has what programs see (`seen`), what the disk holds for certain (`durable`), and the writes in between.
// fsync moves the writes to the disk. A failed fsync drops them, as Linux does: programs go on seeing bytes that no later
// fsync will write. Names have the same two views; fsync of a directory makes creations, renames and removals
// in it durable. crash_state() keeps a random part of what was not durable: whole writes, sectors of writes, name changes.
//
// Calls are counted. `crash_after` = n: call n is done, then CrashException leaves it and every later call.
// `fail_from` = n: call n throws Error{kIo} (a write may have put down its first half), and with `fail_for_ever` all later ones.
// For one thread.

#include <algorithm>
#include <map>
#include <memory>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "sparsecast/delta.hpp"
#include "sparsecast/io.hpp"

namespace sparsecast::tools {

struct CrashException {};

class CrashFileSystem : public FileSystem {
 public:
  static constexpr std::uint64_t kNever = ~std::uint64_t{0};
  static constexpr std::size_t kSectorBytes = 512;

  std::uint64_t crash_after = kNever;
  std::uint64_t fail_from = kNever;
  bool fail_for_ever = false;
  std::uint64_t calls() const { return calls_; }
  void reset_counter() { calls_ = 0; }
  const std::vector<std::string>& log() const { return log_; }

  /// The disk after a power loss now; another seed is another luck.
  std::unique_ptr<CrashFileSystem> crash_state(std::uint64_t seed) const {
    std::mt19937_64 random(seed);
    auto after = std::make_unique<CrashFileSystem>();
    after->directories_ = directories_;
    Names names = durable_names_;
    // A journal keeps a beginning of the changes; a weaker file system any part of them.
    const bool journal = random() % 2 == 0;
    const std::size_t kept = random() % (name_changes_.size() + 1);
    for (std::size_t i = 0; i < name_changes_.size(); ++i) {
      if (journal ? i < kept : random() % 2 == 0) name_changes_[i].apply(names);
    }
    std::map<const Inode*, std::shared_ptr<Inode>> copies;
    for (const auto& [path, inode] : names) {
      auto& copy = copies[inode.get()];
      if (!copy) {
        copy = std::make_shared<Inode>();
        copy->durable = inode->after_crash(random);
        copy->seen = copy->durable;
      }
      after->names_[path] = copy;
    }
    after->durable_names_ = after->names_;
    return after;
  }

  std::unique_ptr<File> open(const std::string& path, OpenMode mode) override {
    step("open", path);
    const auto found = names_.find(path);
    if (mode == OpenMode::kCreateExclusive && found != names_.end()) fail("open", path, "file exists");
    std::shared_ptr<Inode> inode;
    if (found != names_.end()) {
      inode = found->second;
      if (mode == OpenMode::kCreate) inode->truncate(0);
    } else {
      if (mode == OpenMode::kRead || mode == OpenMode::kReadWrite) fail("open", path, "no such file");
      inode = std::make_shared<Inode>();
      change({path, {}, inode});
    }
    done();
    return std::make_unique<OpenFile>(*this, path, inode);
  }
  std::unique_ptr<FileMapping> map(const std::string& path) override {
    step("map", path);
    const auto found = names_.find(path);
    if (found == names_.end()) fail("map", path, "no such file");
    done();
    return std::make_unique<Mapping>(found->second->seen);
  }
  bool exists(const std::string& path) override {
    step("exists", path);
    done();
    return names_.count(path) != 0 || directories_.count(path) != 0;
  }
  bool is_directory(const std::string& path) override {
    step("is_directory", path);
    done();
    return directories_.count(path) != 0;
  }
  void make_directory(const std::string& path) override {
    step("make_directory", path);
    directories_.insert(path);
    done();
  }
  std::vector<std::string> list(const std::string& path) override {
    step("list", path);
    std::vector<std::string> found;
    for (const auto& [name, inode] : names_) {
      if (parent_directory(name) == path) found.push_back(name.substr(path.size() + 1));
    }
    done();
    return found;
  }
  void rename(const std::string& from, const std::string& to) override {
    step("rename", from + " -> " + to);
    if (names_.count(from) == 0) fail("rename", from, "no such file");
    change({to, from, names_.at(from)});
    done();
  }
  void remove(const std::string& path) override {
    step("remove", path);
    if (names_.count(path) == 0) fail("remove", path, "no such file");
    change({{}, path, nullptr});
    done();
  }
  void sync_directory(const std::string& path) override {
    step("sync_directory", path);
    std::vector<NameChange> left;
    for (const NameChange& c : name_changes_) {
      if (c.directory() == path) {
        c.apply(durable_names_);
      } else {
        left.push_back(c);
      }
    }
    name_changes_ = std::move(left);
    done();
  }
  std::chrono::steady_clock::time_point now() override { return {}; }

 private:
  struct Write {
    std::uint64_t offset;
    Bytes bytes;
    bool truncate = false;  ///< To `offset`.
  };

  struct Inode {
    Bytes seen;
    Bytes durable;
    std::vector<Write> writes;

    void write(std::uint64_t offset, ConstBytes bytes) {
      put(seen, offset, bytes);
      writes.push_back({offset, Bytes(bytes.begin(), bytes.end())});
    }
    void truncate(std::uint64_t size) {
      seen.resize(size);
      writes.push_back({size, {}, true});
    }
    void make_durable() {
      for (const Write& w : writes) replay(durable, w);
      writes.clear();
    }
    Bytes after_crash(std::mt19937_64& random) const {
      Bytes content = durable;
      for (const Write& w : writes) {
        const std::uint64_t luck = random() % 3;
        if (luck == 0) continue;
        if (luck == 1 || w.truncate) {
          replay(content, w);
          continue;
        }
        for (std::size_t begin = 0; begin < w.bytes.size();) {
          const std::size_t end = std::min<std::size_t>(
              w.bytes.size(), begin + kSectorBytes - (w.offset + begin) % kSectorBytes);
          if (random() % 2 == 0) put(content, w.offset + begin, ConstBytes(w.bytes).subspan(begin, end - begin));
          begin = end;
        }
      }
      return content;
    }
    static void put(Bytes& content, std::uint64_t offset, ConstBytes bytes) {
      if (content.size() < offset + bytes.size()) content.resize(offset + bytes.size());
      std::copy(bytes.begin(), bytes.end(), content.begin() + static_cast<std::ptrdiff_t>(offset));
    }
    static void replay(Bytes& content, const Write& w) {
      if (w.truncate) {
        content.resize(w.offset);
      } else {
        put(content, w.offset, w.bytes);
      }
    }
  };
  using Names = std::map<std::string, std::shared_ptr<Inode>>;

  /// Creation (only `to`), removal (only `from`), or renaming.
  struct NameChange {
    std::string to;
    std::string from;
    std::shared_ptr<Inode> inode;

    void apply(Names& names) const {
      if (!from.empty()) names.erase(from);
      if (!to.empty()) names[to] = inode;
    }
    std::string directory() const { return parent_directory(to.empty() ? from : to); }
  };

  class OpenFile : public File {
   public:
    OpenFile(CrashFileSystem& fs, std::string path, std::shared_ptr<Inode> inode)
        : fs_(fs), path_(std::move(path)), inode_(std::move(inode)) {}
    std::uint64_t size() override {
      fs_.step("size", path_);
      fs_.done();
      return inode_->seen.size();
    }
    void read_at(std::uint64_t offset, std::span<std::byte> buffer) override {
      fs_.step("read", path_);
      if (offset + buffer.size() > inode_->seen.size()) fs_.fail("read", path_, "end of file");
      std::copy_n(inode_->seen.begin() + static_cast<std::ptrdiff_t>(offset), buffer.size(), buffer.begin());
      fs_.done();
    }
    void write_at(std::uint64_t offset, ConstBytes buffer) override {
      if (fs_.about_to_fail()) inode_->write(offset, buffer.first(buffer.size() / 2));
      fs_.step("write", path_);
      inode_->write(offset, buffer);
      fs_.done();
    }
    void truncate(std::uint64_t size) override {
      fs_.step("truncate", path_);
      inode_->truncate(size);
      fs_.done();
    }
    void sync() override {
      if (fs_.about_to_fail()) inode_->writes.clear();
      fs_.step("fsync", path_);
      inode_->make_durable();
      fs_.done();
    }

   private:
    CrashFileSystem& fs_;
    std::string path_;
    std::shared_ptr<Inode> inode_;
  };

  class Mapping : public FileMapping {
   public:
    explicit Mapping(Bytes content) : content_(std::move(content)) {}
    std::span<const std::byte> bytes() const noexcept override { return content_; }
    void release(std::uint64_t, std::uint64_t) const noexcept override {}

   private:
    Bytes content_;
  };

  [[noreturn]] static void fail(const char* call, const std::string& path, const char* why) {
    throw Error(ErrorCode::kIo, std::string(call) + " failed: " + why, path);
  }
  bool about_to_fail() const { return calls_ == fail_from || (fail_for_ever && calls_ > fail_from); }
  void step(const char* call, const std::string& path) {
    if (calls_ > crash_after) throw CrashException{};
    log_.push_back(std::string(call) + ' ' + path);
    const bool failing = about_to_fail();
    ++calls_;
    if (failing) fail(call, path, "injected");
  }
  void done() const {
    if (calls_ > crash_after) throw CrashException{};
  }
  void change(NameChange c) {
    c.apply(names_);
    name_changes_.push_back(std::move(c));
  }

  Names names_;
  Names durable_names_;
  std::vector<NameChange> name_changes_;
  std::set<std::string> directories_;
  std::uint64_t calls_ = 0;
  std::vector<std::string> log_;
};

}  // namespace sparsecast::tools
