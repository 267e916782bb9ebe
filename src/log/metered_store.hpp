#pragma once

#include <atomic>
#include <memory>
#include <mutex>

#include "sparsecast/object_store.hpp"

namespace sparsecast {

/// Passes everything on and counts what is read: objects (an object read in ranges counts once, by its first byte) and
/// bytes. A question that finds nothing is no read. Keeps one small object between two reads of it in one step.
class MeteredStore : public ObjectStore {
 public:
  explicit MeteredStore(std::shared_ptr<ObjectStore> store) : store_(std::move(store)) {}

  std::uint64_t objects() const noexcept { return objects_; }
  std::uint64_t bytes() const noexcept { return bytes_; }
  void reset() noexcept { objects_ = bytes_ = 0; }
  /// The next object that is found under `key` answers later reads of it, until this is called again.
  void keep(const std::string& key) {
    const std::lock_guard lock(mutex_);
    kept_key_ = key;
    kept_.reset();
  }

  const std::string& location() const noexcept override { return store_->location(); }
  void put(const std::string& key, ConstBytes bytes) override { store_->put(key, bytes); }
  bool put_if_absent(const std::string& key, ConstBytes bytes) override { return store_->put_if_absent(key, bytes); }
  std::unique_ptr<ObjectUpload> upload(const std::string& key, std::uint64_t expected_bytes) override {
    return store_->upload(key, expected_bytes);
  }
  std::optional<Bytes> get(const std::string& key, std::uint64_t max_bytes) override {
    {
      const std::lock_guard lock(mutex_);
      if (key == kept_key_ && kept_) return kept_;
    }
    std::optional<Bytes> found = store_->get(key, max_bytes);
    if (!found) return found;
    count(0, found->size());
    const std::lock_guard lock(mutex_);
    if (key == kept_key_) kept_ = found;
    return found;
  }
  std::optional<std::uint64_t> size(const std::string& key) override { return store_->size(key); }
  void get_range(const std::string& key, std::uint64_t offset, std::span<std::byte> buffer) override {
    store_->get_range(key, offset, buffer);
    count(offset, buffer.size());
  }
  std::vector<StoredObject> list(const std::string& prefix) override { return store_->list(prefix); }
  void remove(const std::string& key) override { store_->remove(key); }
  std::chrono::system_clock::time_point wall_now() override { return store_->wall_now(); }

 private:
  void count(std::uint64_t offset, std::uint64_t bytes) noexcept {
    if (offset == 0) ++objects_;
    bytes_ += bytes;
  }

  std::shared_ptr<ObjectStore> store_;
  std::atomic<std::uint64_t> objects_{0};
  std::atomic<std::uint64_t> bytes_{0};
  std::mutex mutex_;
  std::string kept_key_;
  std::optional<Bytes> kept_;
};

}  // namespace sparsecast
