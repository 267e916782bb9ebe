#pragma once

// Handles that a C program holds. A handle is a number, never an address: one that is stale, or was never given out, is
// known as such without reading anything behind it.

#include <cstdint>
#include <memory>
#include <mutex>
#include <unordered_map>

namespace sparsecast::capi {

/// From handles (opaque pointers of type Handle) to the objects that they stand for.
template <class Handle, class Object>
class HandleTable {
 public:
  /// Of the process, and never destroyed: a program may use its handles until its last instruction.
  static HandleTable& instance() {
    static HandleTable* const table = new HandleTable;
    return *table;
  }

  Handle add(std::shared_ptr<Object> object) {
    const std::lock_guard lock(mutex_);
    const std::uintptr_t number = next_;
    objects_.emplace(number, std::move(object));
    next_ += kStep;
    return reinterpret_cast<Handle>(number);
  }
  /// Null for what is no handle.
  std::shared_ptr<Object> find(Handle handle) {
    const std::lock_guard lock(mutex_);
    const auto found = objects_.find(reinterpret_cast<std::uintptr_t>(handle));
    return found == objects_.end() ? nullptr : found->second;
  }
  std::shared_ptr<Object> remove(Handle handle) {
    const std::lock_guard lock(mutex_);
    auto node = objects_.extract(reinterpret_cast<std::uintptr_t>(handle));
    return node.empty() ? nullptr : std::move(node.mapped());
  }
  template <class Condition>
  void remove_if(const Condition& condition) {
    const std::lock_guard lock(mutex_);
    std::erase_if(objects_, [&](const auto& entry) { return condition(*entry.second); });
  }

 private:
  static constexpr std::uintptr_t kStep = 16;
  std::mutex mutex_;
  std::unordered_map<std::uintptr_t, std::shared_ptr<Object>> objects_;
  std::uintptr_t next_ = kStep;
};

}  // namespace sparsecast::capi
