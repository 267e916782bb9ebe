// SPDX-License-Identifier: Apache-2.0
#pragma once

// The CUDA runtime of the fake NCCL: memory is that of the host, and a stream is a thread with a queue.

#include <atomic>
#include <functional>
#include <map>
#include <mutex>
#include <set>
#include <string>

#include "transport/nccl/device_api.hpp"

namespace sparsecast::test {

class FakeDevice final : public DeviceApi {
 public:
  /// `same_gpu`: devices that report one and the same UUID. `allocated` counts what is not freed, `host_waits` the
  /// records of events that the host has waited for. `fails`: asked in every call that may fail.
  FakeDevice(const std::set<int>& same_gpu, std::atomic<int>& allocated, std::atomic<int>& host_waits,
             std::function<bool()> fails)
      : same_gpu_(same_gpu), allocated_(allocated), host_waits_(host_waits), fails_(std::move(fails)) {}

  /// Behind what the stream does already.
  static void enqueue(void* stream, std::function<void()> task);
  /// Ends all waits of streams, and frees what was left behind.
  void close();
  /// Returns the current device of the calling thread.
  static int device_in_use();
  /// Returns the bytes of device and pinned memory that were allocated while `device` was the current one.
  std::uint64_t held_bytes(int device);
  /// Returns the devices on which a context was made: by setting it, and by nearly every call while it was the current
  /// one.
  std::set<int> contexts();

  int current_device() override { return device_in_use(); }
  void use_device(int device) override;
  bool has_context(int device) override { return contexts().count(device) != 0; }
  bool holds(const void*, int) override { return true; }
  std::string uuid(int device) override;
  void* allocate(std::uint64_t bytes) override;
  void free(void* pointer) noexcept override;
  void* allocate_host(std::uint64_t bytes) override { return allocate(bytes); }
  void free_host(void* pointer) noexcept override { free(pointer); }
  void* create_stream() override;
  void destroy_stream(void* stream) noexcept override;
  void* create_event() override;
  void destroy_event(void* event) noexcept override;
  /// An unknown stream is one of the emulated CUDA runtime, all of whose work is done; the host waits for it.
  void record(void* event, void* stream) override;
  void wait(void* stream, void* event) override;
  bool finished(void* event) override;
  void copy_to_device(void* to, const void* from, std::uint64_t bytes, void* stream) override;
  void copy_to_host(void* to, const void* from, std::uint64_t bytes, void* stream) override;
  void copy_on_device(void* to, const void* from, std::uint64_t bytes, void* stream) override;

 private:
  struct Block {
    std::uint64_t bytes = 0;
    int device = 0;
  };

  bool knows(void* stream);
  void make_context();
  void may_fail() const;

  const std::set<int>& same_gpu_;
  std::atomic<int>& allocated_;
  std::atomic<int>& host_waits_;
  std::function<bool()> fails_;
  std::atomic<bool> closing_{false};
  std::mutex mutex_;
  std::set<void*> streams_;
  std::set<int> contexts_;
  std::map<void*, Block> blocks_;  ///< Memory that is not freed.
};

}  // namespace sparsecast::test
