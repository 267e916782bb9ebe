// SPDX-License-Identifier: Apache-2.0
#include "support/fault_fs.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>

#include "sparsecast/error.hpp"
#include "support/fault_inode.hpp"
#include "support/random.hpp"

namespace sparsecast::test {
namespace {

using Bytes = std::vector<std::byte>;

[[noreturn]] void fail(const std::string& operation, const std::string& path, int error) {
  throw Error(ErrorCode::kIo, fmt::format("{} failed: {}", operation, std::strerror(error)), path);
}

/// 2026-01-01 00:00 UTC.
constexpr std::chrono::system_clock::time_point kWallStart{std::chrono::seconds{1767225600}};

}  // namespace

/// Creation (only `to`), removal (only `from`), or renaming; of a directory when the inode is null.
struct FaultFileSystem::NameChange {
  std::string from;
  std::string to;
  std::shared_ptr<FaultInode> inode;

  void apply(Names& names) const {
    if (!from.empty() && !to.empty() && !inode) {
      move_directory(names);
      return;
    }
    if (!from.empty()) names.erase(from);
    if (!to.empty()) names[to] = inode;
  }
  /// Moves a directory with its contents in one step; nothing if its creation was lost.
  void move_directory(Names& names) const {
    if (names.count(from) == 0) return;
    Names moved;
    for (auto name = names.lower_bound(from); name != names.end() && name->first.starts_with(from);) {
      const bool inside = name->first == from || name->first.starts_with(from + "/");
      if (inside) moved[to + name->first.substr(from.size())] = name->second;
      name = inside ? names.erase(name) : std::next(name);
    }
    names.merge(moved);
  }
  std::string directory() const { return parent_directory(to.empty() ? from : to); }
};

template <class Effect, class OnFailure>
auto FaultFileSystem::perform(Operation operation, bool confirms, Effect effect, OnFailure on_failure) {
  const std::lock_guard lock(mutex_);
  if (crashed_) throw CrashException{};
  const std::uint64_t number = log_.size();
  log_.push_back(operation);
  if (shrink_ && number == shrink_->at) {
    find_file("shrink", shrink_->path)->apply(FaultWrite::truncation(shrink_->size));
  }
  const bool strikes = fault_ && (number == fault_->at || (number > fault_->at && fault_->repeat == Repeat::kForEver));
  if (!strikes) return effect();
  if (fault_->kind == Kind::kCrash) {
    crashed_ = true;
    try {
      if (!confirms) effect();
    } catch (const Error&) {
      // It would have been refused: then it changed nothing.
    }
    throw CrashException{};
  }
  on_failure(fault_->kind);
  fail(operation.name, operation.path, fault_->error);
}

template <class Effect>
auto FaultFileSystem::perform(Operation operation, Effect effect) {
  return perform(std::move(operation), false, std::move(effect), [](Kind) {});
}

class FaultFileSystem::OpenFile : public File {
 public:
  OpenFile(FaultFileSystem& fs, std::string path, std::shared_ptr<FaultInode> inode, bool writable)
      : fs_(fs), path_(std::move(path)), inode_(std::move(inode)), writable_(writable) {}

  std::uint64_t size() override {
    return fs_.perform({"size", path_, 0, 0, {}}, [&] { return std::uint64_t{inode_->seen->size()}; });
  }

  void read_at(std::uint64_t offset, std::span<std::byte> buffer) override {
    fs_.perform({"read", path_, offset, buffer.size(), {}}, [&] {
      const Bytes& content = *inode_->seen;
      if (buffer.empty()) return;
      if (offset > content.size() || buffer.size() > content.size() - offset) {
        throw Error(ErrorCode::kIo, fmt::format("the file ends at offset {}", content.size()), path_);
      }
      std::memcpy(buffer.data(), content.data() + offset, buffer.size());
    });
  }

  void write_at(std::uint64_t offset, std::span<const std::byte> buffer) override {
    const auto write = [&](std::span<const std::byte> part) {
      if (!writable_) fail("write", path_, EBADF);
      if (!part.empty()) inode_->apply(FaultWrite(offset, Bytes(part.begin(), part.end())));
      inode_->modified = fs_.now_;
    };
    fs_.perform(
        {"write", path_, offset, buffer.size(), {}}, false, [&] { write(buffer); },
        [&](Kind kind) {
          if (kind == Kind::kShortWrite) write(buffer.first(buffer.size() / 2));
        });
  }

  void truncate(std::uint64_t size) override {
    fs_.perform({"truncate", path_, size, 0, {}}, [&] {
      if (!writable_) fail("truncate", path_, EINVAL);
      inode_->apply(FaultWrite::truncation(size));
      inode_->modified = fs_.now_;
    });
  }

  void sync() override {
    fs_.perform(
        {"sync", path_, 0, 0, {}}, true, [&] { inode_->sync(); }, [&](Kind) { inode_->fail_sync(); });
  }

 private:
  FaultFileSystem& fs_;
  std::string path_;
  std::shared_ptr<FaultInode> inode_;
  bool writable_;
};

FaultFileSystem::FaultFileSystem() = default;
FaultFileSystem::~FaultFileSystem() = default;

void FaultFileSystem::fail_at(std::uint64_t operation, int error, Repeat repeat) {
  const std::lock_guard lock(mutex_);
  fault_ = Fault{operation, Kind::kError, error, repeat};
}

void FaultFileSystem::short_write_at(std::uint64_t operation, int error) {
  const std::lock_guard lock(mutex_);
  fault_ = Fault{operation, Kind::kShortWrite, error, Repeat::kOnce};
}

void FaultFileSystem::shrink_at(std::uint64_t operation, const std::string& path, std::uint64_t size) {
  shrink_ = Shrink{operation, path, size};
}

void FaultFileSystem::crash_at(std::uint64_t operation) {
  const std::lock_guard lock(mutex_);
  fault_ = Fault{operation, Kind::kCrash, 0, Repeat::kForEver};
}

void FaultFileSystem::clear_fault() {
  const std::lock_guard lock(mutex_);
  fault_.reset();
}

std::uint64_t FaultFileSystem::operations() const {
  const std::lock_guard lock(mutex_);
  return log_.size();
}

std::vector<FaultFileSystem::Operation> FaultFileSystem::log() const {
  const std::lock_guard lock(mutex_);
  return log_;
}

void FaultFileSystem::reset_log() {
  const std::lock_guard lock(mutex_);
  log_.clear();
}

template <class KeepChange, class ContentOf>
std::unique_ptr<FaultFileSystem> FaultFileSystem::state_after(KeepChange keep_change, ContentOf content_of) const {
  Names names = durable_names_;
  for (std::size_t i = 0; i < name_changes_.size(); ++i) {
    if (keep_change(i)) name_changes_[i].apply(names);
  }
  auto after = std::make_unique<FaultFileSystem>();
  std::map<const FaultInode*, std::shared_ptr<FaultInode>> copies;
  // Sorted, so a directory comes before what it holds: what lost its directory is lost with it.
  for (const auto& [path, inode] : names) {
    if (!after->is_known_directory(parent_directory(path))) continue;
    std::shared_ptr<FaultInode>& copy = copies[inode.get()];
    if (inode && !copy) {
      copy = std::make_shared<FaultInode>(content_of(*inode));
      copy->modified = inode->modified;
    }
    after->names_[path] = copy;
  }
  after->durable_names_ = after->names_;
  after->now_ = now_;
  return after;
}

std::unique_ptr<FaultFileSystem> FaultFileSystem::crash_state(std::uint64_t seed) const {
  const std::lock_guard lock(mutex_);
  Random random(seed);
  const bool journal = random.chance(0.5);
  const std::uint64_t kept = random.below(name_changes_.size() + 1);
  return state_after([&](std::size_t i) { return journal ? i < kept : random.chance(0.5); },
                     [&](const FaultInode& inode) { return inode.after_crash(random); });
}

std::unique_ptr<FaultFileSystem> FaultFileSystem::durable_state() const {
  const std::lock_guard lock(mutex_);
  return state_after([](std::size_t) { return false; }, [](const FaultInode& inode) { return inode.durable(); });
}

void FaultFileSystem::put_file(const std::string& path, std::span<const std::byte> content) {
  const std::lock_guard lock(mutex_);
  for (std::string directory = parent_directory(path); !is_known_directory(directory);
       directory = parent_directory(directory)) {
    names_[directory] = durable_names_[directory] = nullptr;
  }
  auto inode = std::make_shared<FaultInode>(Bytes(content.begin(), content.end()));
  inode->modified = now_;
  names_[path] = durable_names_[path] = std::move(inode);
}

void FaultFileSystem::put_file(const std::string& path, const std::string& content) {
  put_file(path, std::as_bytes(std::span(content)));
}

std::optional<std::string> FaultFileSystem::content(const std::string& path) const {
  const std::lock_guard lock(mutex_);
  const auto found = names_.find(path);
  if (found == names_.end() || !found->second) return std::nullopt;
  const Bytes& bytes = *found->second->seen;
  return std::string(reinterpret_cast<const char*>(bytes.data()), bytes.size());
}

std::vector<std::string> FaultFileSystem::files() const {
  const std::lock_guard lock(mutex_);
  std::vector<std::string> paths;
  for (const auto& [path, inode] : names_) {
    if (inode) paths.push_back(path);
  }
  return paths;
}

void FaultFileSystem::advance(std::chrono::nanoseconds duration) {
  const std::lock_guard lock(mutex_);
  now_ += std::chrono::duration_cast<std::chrono::steady_clock::duration>(duration);
}

std::chrono::steady_clock::time_point FaultFileSystem::now() {
  const std::lock_guard lock(mutex_);
  return now_;
}

std::chrono::system_clock::time_point FaultFileSystem::wall_now() {
  const std::lock_guard lock(mutex_);
  return kWallStart + std::chrono::duration_cast<std::chrono::system_clock::duration>(now_.time_since_epoch());
}

bool FaultFileSystem::is_known_directory(const std::string& path) const {
  if (path == "." || path == "/") return true;
  const auto found = names_.find(path);
  return found != names_.end() && !found->second;
}

const std::shared_ptr<FaultInode>& FaultFileSystem::find_file(const char* operation, const std::string& path) const {
  if (is_known_directory(path)) fail(operation, path, EISDIR);
  const auto found = names_.find(path);
  if (found == names_.end()) fail(operation, path, ENOENT);
  return found->second;
}

void FaultFileSystem::require_parent(const char* operation, const std::string& path) const {
  if (!is_known_directory(parent_directory(path))) fail(operation, path, ENOENT);
}

void FaultFileSystem::change_names(NameChange change) {
  change.apply(names_);
  name_changes_.push_back(std::move(change));
}

std::unique_ptr<File> FaultFileSystem::open(const std::string& path, OpenMode mode) {
  return perform({"open", path, 0, 0, {}}, [&]() -> std::unique_ptr<File> {
    const bool exclusive = mode == OpenMode::kCreateExclusive || mode == OpenMode::kCreatePrivate;
    const bool creates = mode == OpenMode::kCreate || exclusive;
    if (!creates || is_known_directory(path) || names_.count(path) != 0) {
      if (exclusive) fail("open", path, EEXIST);
      const std::shared_ptr<FaultInode>& inode = find_file("open", path);
      if (mode == OpenMode::kCreate) {
        inode->apply(FaultWrite::truncation(0));
        inode->modified = now_;
      }
      return std::make_unique<OpenFile>(*this, path, inode, mode != OpenMode::kRead);
    }
    require_parent("open", path);
    auto inode = std::make_shared<FaultInode>();
    inode->modified = now_;
    change_names({{}, path, inode});
    return std::make_unique<OpenFile>(*this, path, inode, true);
  });
}

bool FaultFileSystem::exists(const std::string& path) {
  return perform({"exists", path, 0, 0, {}}, [&] { return is_known_directory(path) || names_.count(path) != 0; });
}

bool FaultFileSystem::is_directory(const std::string& path) {
  return perform({"is_directory", path, 0, 0, {}}, [&] { return is_known_directory(path); });
}

void FaultFileSystem::make_directory(const std::string& path) {
  perform({"make_directory", path, 0, 0, {}}, [&] {
    if (is_known_directory(path)) return;
    if (names_.count(path) != 0) fail("make_directory", path, EEXIST);
    require_parent("make_directory", path);
    change_names({{}, path, nullptr});
  });
}

bool FaultFileSystem::is_private(const std::string& path) {
  return perform({"is_private", path, 0, 0, {}}, [&] {
    find_file("is_private", path);
    return true;  // There is only one user here.
  });
}

std::vector<std::string> FaultFileSystem::list(const std::string& path) {
  return perform({"list", path, 0, 0, {}}, [&] {
    if (!is_known_directory(path)) fail("list", path, names_.count(path) != 0 ? ENOTDIR : ENOENT);
    std::vector<std::string> entries;
    for (const auto& [name, inode] : names_) {
      if (parent_directory(name) == path) entries.push_back(name.substr(name.find_last_of('/') + 1));
    }
    return entries;
  });
}

void FaultFileSystem::rename(const std::string& from, const std::string& to) {
  perform({"rename", from, 0, 0, to}, [&] {
    const bool directory = is_known_directory(from);
    const std::shared_ptr<FaultInode> inode = directory ? nullptr : find_file("rename", from);
    require_parent("rename", to);
    if (is_known_directory(to)) fail("rename", to, directory ? ENOTEMPTY : EISDIR);
    if (directory && names_.count(to) != 0) fail("rename", to, ENOTDIR);
    if (from != to) change_names({from, to, inode});
  });
}

bool FaultFileSystem::rename_exclusive(const std::string& from, const std::string& to) {
  return perform({"rename_exclusive", from, 0, 0, to}, [&] {
    const std::shared_ptr<FaultInode> inode = find_file("rename_exclusive", from);
    require_parent("rename_exclusive", to);
    if (is_known_directory(to) || names_.count(to) != 0) return false;
    // A link and a removal, of which a crash may keep either.
    change_names({{}, to, inode});
    change_names({from, {}, nullptr});
    return true;
  });
}

bool FaultFileSystem::link(const std::string& from, const std::string& to) {
  return perform({"link", from, 0, 0, to}, [&] {
    const std::shared_ptr<FaultInode> inode = find_file("link", from);
    require_parent("link", to);
    if (is_known_directory(to) || names_.count(to) != 0) fail("link", to, EEXIST);
    change_names({{}, to, inode});
    return true;
  });
}

std::chrono::system_clock::time_point FaultFileSystem::modified(const std::string& path) {
  return perform({"modified", path, 0, 0, {}}, [&] {
    const auto since_start = find_file("modified", path)->modified.time_since_epoch();
    return kWallStart + std::chrono::duration_cast<std::chrono::system_clock::duration>(since_start);
  });
}

void FaultFileSystem::remove(const std::string& path) {
  perform({"remove", path, 0, 0, {}}, [&] {
    const auto found = names_.find(path);
    if (found == names_.end()) fail("remove", path, ENOENT);
    for (const auto& [name, inode] : names_) {
      if (!found->second && parent_directory(name) == path) fail("remove", path, ENOTEMPTY);
    }
    change_names({path, {}, nullptr});
  });
}

void FaultFileSystem::sync_directory(const std::string& path) {
  perform(
      {"sync_directory", path, 0, 0, {}}, true,
      [&] {
        if (!is_known_directory(path)) fail("sync_directory", path, ENOENT);
        std::vector<NameChange> others;
        for (const NameChange& change : name_changes_) {
          if (change.directory() != path) {
            others.push_back(change);
            continue;
          }
          change.apply(durable_names_);
          // The contents of a removed directory must not appear in a later one of the same name.
          if (change.to.empty()) {
            std::erase_if(others, [&](const NameChange& inner) { return inner.directory() == change.from; });
          }
        }
        name_changes_ = std::move(others);
      },
      [](Kind) {});
}

}  // namespace sparsecast::test
