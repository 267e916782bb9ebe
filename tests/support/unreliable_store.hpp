// SPDX-License-Identifier: Apache-2.0
#pragma once

// A store in front of another store, which loses, delays or blocks a request or its reply at a chosen call.

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "sparsecast/error.hpp"
#include "sparsecast/object_store.hpp"

namespace sparsecast::test {

class UnreliableStore : public ObjectStore {
 public:
  enum class Fault {
    kNone,
    kRefused,    ///< Never arrives.
    kReplyLost,  ///< The request arrives, and the reply is lost.
    kLate,       ///< The caller gets an error, and the request arrives with deliver().
    kStuck,      ///< Does not return before release().
  };

  explicit UnreliableStore(std::shared_ptr<ObjectStore> inner) : inner_(std::move(inner)) {}

  /// The call of that number, from 0 on, and, if `all`, every one after it.
  void fail_at(std::uint64_t call, Fault fault, bool all = false) {
    const std::lock_guard lock(mutex_);
    calls_ = 0;
    at_ = call;
    fault_ = fault;
    all_ = all;
  }
  std::uint64_t calls() const {
    const std::lock_guard lock(mutex_);
    return calls_;
  }
  /// Delivers late objects, in order.
  void deliver() {
    std::vector<std::function<void()>> late;
    {
      const std::lock_guard lock(mutex_);
      late.swap(late_);
    }
    for (const auto& request : late) request();
  }
  void release() {
    const std::lock_guard lock(mutex_);
    fault_ = Fault::kNone;
    released_.notify_all();
  }

  const std::string& location() const noexcept override { return inner_->location(); }
  void put(const std::string& key, ConstBytes bytes) override {
    const Bytes copy(bytes.begin(), bytes.end());
    change([this, key, copy] { inner_->put(key, copy); });
  }
  bool put_if_absent(const std::string& key, ConstBytes bytes) override {
    const Bytes copy(bytes.begin(), bytes.end());
    bool created = false;
    const auto result = std::make_shared<bool>(false);
    change([this, key, copy, result] { *result = inner_->put_if_absent(key, copy); });
    created = *result;
    return created;
  }
  std::unique_ptr<ObjectUpload> upload(const std::string& key, std::uint64_t) override {
    return std::make_unique<Upload>(*this, key);
  }
  std::optional<Bytes> get(const std::string& key, std::uint64_t max_bytes) override {
    ask();
    return inner_->get(key, max_bytes);
  }
  std::optional<std::uint64_t> size(const std::string& key) override {
    ask();
    return inner_->size(key);
  }
  void get_range(const std::string& key, std::uint64_t offset, std::span<std::byte> buffer) override {
    ask();
    inner_->get_range(key, offset, buffer);
  }
  std::vector<StoredObject> list(const std::string& prefix) override {
    ask();
    return inner_->list(prefix);
  }
  void remove(const std::string& key) override {
    change([this, key] { inner_->remove(key); });
  }
  std::chrono::system_clock::time_point wall_now() override { return inner_->wall_now(); }

 private:
  class Upload : public ObjectUpload {
   public:
    Upload(UnreliableStore& store, std::string key) : store_(store), key_(std::move(key)) {}
    void append(ConstBytes bytes) override { bytes_.insert(bytes_.end(), bytes.begin(), bytes.end()); }
    void commit() override { store_.put(key_, bytes_); }

   private:
    UnreliableStore& store_;
    std::string key_;
    Bytes bytes_;
  };

  [[noreturn]] void fail() const { throw Error(ErrorCode::kIo, "the connection was lost", location()); }

  /// The fault of this call; waits here when it is stuck.
  Fault next() {
    std::unique_lock lock(mutex_);
    const std::uint64_t call = calls_++;
    if (call != at_ && !(all_ && call > at_)) return Fault::kNone;
    if (fault_ != Fault::kStuck) return fault_;
    released_.wait_for(lock, std::chrono::seconds(60), [&] { return fault_ != Fault::kStuck; });
    return Fault::kNone;
  }
  void ask() {
    if (next() != Fault::kNone) fail();
  }
  void change(const std::function<void()>& request) {
    const Fault fault = next();
    if (fault == Fault::kLate) {
      const std::lock_guard lock(mutex_);
      late_.push_back(request);
    }
    if (fault == Fault::kNone || fault == Fault::kReplyLost) request();
    if (fault != Fault::kNone) fail();
  }

  std::shared_ptr<ObjectStore> inner_;
  mutable std::mutex mutex_;
  std::condition_variable released_;
  std::uint64_t calls_ = 0;
  std::uint64_t at_ = ~std::uint64_t{0};
  Fault fault_ = Fault::kNone;
  bool all_ = false;
  std::vector<std::function<void()>> late_;
};

}  // namespace sparsecast::test
