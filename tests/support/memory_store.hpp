// SPDX-License-Identifier: Apache-2.0
#pragma once

// An object store in memory that records what is asked of it, and lets a test change, fail or watch any of it.

#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <vector>

#include "sparsecast/error.hpp"
#include "sparsecast/object_store.hpp"

namespace sparsecast::test {

class MemoryStore : public ObjectStore {
 public:
  struct Call {
    std::string name;  ///< "get", "put", ...
    std::string key;
    bool found = true;
  };

  /// Called before each operation, outside the lock; may throw, and may change the store.
  std::function<void(const std::string& operation, const std::string& key)> before;

  std::vector<Call> calls() const {
    const std::lock_guard lock(mutex_);
    return calls_;
  }
  void forget_calls() {
    const std::lock_guard lock(mutex_);
    calls_.clear();
  }
  /// Keys of the objects that were read, each as often as it was (the first byte counts).
  std::vector<std::string> reads() const {
    std::vector<std::string> keys;
    for (const Call& call : calls()) {
      if (call.found && (call.name == "get" || call.name == "get_range")) keys.push_back(call.key);
    }
    return keys;
  }
  /// Not operations.
  std::map<std::string, Bytes> objects() const {
    const std::lock_guard lock(mutex_);
    return objects_;
  }
  void set_objects(std::map<std::string, Bytes> objects) {
    const std::lock_guard lock(mutex_);
    objects_ = std::move(objects);
  }
  void set(const std::string& key, Bytes bytes) {
    const std::lock_guard lock(mutex_);
    objects_[key] = std::move(bytes);
  }
  void erase(const std::string& key) {
    const std::lock_guard lock(mutex_);
    objects_.erase(key);
  }
  std::chrono::system_clock::time_point now{std::chrono::seconds{1767225600}};  ///< 2026-01-01.

  const std::string& location() const noexcept override { return location_; }
  void put(const std::string& key, ConstBytes bytes) override {
    const auto lock = begin("put", key);
    objects_[key] = Bytes(bytes.begin(), bytes.end());
  }
  bool put_if_absent(const std::string& key, ConstBytes bytes) override {
    const auto lock = begin("put_if_absent", key);
    return objects_.emplace(key, Bytes(bytes.begin(), bytes.end())).second;
  }
  std::unique_ptr<ObjectUpload> upload(const std::string& key, std::uint64_t) override {
    return std::make_unique<Upload>(*this, key);
  }
  std::optional<Bytes> get(const std::string& key, std::uint64_t max_bytes) override {
    const auto lock = begin("get", key);
    const auto found = objects_.find(key);
    if (found == objects_.end()) {
      calls_.back().found = false;
      return std::nullopt;
    }
    if (found->second.size() > max_bytes) throw Error(ErrorCode::kCorrupt, "larger than allowed", key);
    return found->second;
  }
  std::optional<std::uint64_t> size(const std::string& key) override {
    const auto lock = begin("size", key);
    const auto found = objects_.find(key);
    if (found == objects_.end()) return std::nullopt;
    return found->second.size();
  }
  void get_range(const std::string& key, std::uint64_t offset, std::span<std::byte> buffer) override {
    const auto lock = begin(offset == 0 ? "get_range" : "get_more", key);
    const auto found = objects_.find(key);
    if (found == objects_.end()) throw Error(ErrorCode::kGone, "there is no such object", key);
    if (offset > found->second.size() || buffer.size() > found->second.size() - offset) {
      throw Error(ErrorCode::kCorrupt, "the object ends before", key);
    }
    std::copy_n(found->second.begin() + static_cast<std::ptrdiff_t>(offset), buffer.size(), buffer.begin());
  }
  std::vector<StoredObject> list(const std::string& prefix) override {
    const auto lock = begin("list", prefix);
    std::vector<StoredObject> listed;
    for (const auto& [key, bytes] : objects_) {
      if (key.starts_with(prefix)) listed.push_back({key, bytes.size(), now});
    }
    return listed;
  }
  void remove(const std::string& key) override {
    const auto lock = begin("remove", key);
    objects_.erase(key);
  }
  std::chrono::system_clock::time_point wall_now() override { return now; }

 private:
  class Upload : public ObjectUpload {
   public:
    Upload(MemoryStore& store, std::string key) : store_(store), key_(std::move(key)) {}
    void append(ConstBytes bytes) override { bytes_.insert(bytes_.end(), bytes.begin(), bytes.end()); }
    void commit() override { store_.put(key_, bytes_); }

   private:
    MemoryStore& store_;
    std::string key_;
    Bytes bytes_;
  };

  std::unique_lock<std::mutex> begin(const char* operation, const std::string& key) {
    if (before) before(operation, key);
    std::unique_lock lock(mutex_);
    calls_.push_back({operation, key});
    return lock;
  }

  const std::string location_ = "memory";
  mutable std::mutex mutex_;
  std::map<std::string, Bytes> objects_;
  std::vector<Call> calls_;
};

}  // namespace sparsecast::test
